//! Shutting down a client together with the server whose requests it locks.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::LockClient;
use super::drain::Drained;
use crate::error::Error;
use crate::runtime;
use crate::state::ClientState;
use crate::time::timeout_at;

/// A shutdown that [`LockClient::shutdown_on`] arranged.
///
/// # Examples
///
/// ```no_run
/// # async fn serve(
/// #     client: lock_core::LockClient,
/// #     server: impl Future<Output = ()>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use tokio::signal::unix::{SignalKind, signal};
///
/// let mut sigterm = signal(SignalKind::terminate())?;
/// let sigterm = async move {
///     sigterm.recv().await;
/// };
/// let shutdown = client.shutdown_on(sigterm, Duration::from_secs(10))?;
/// let (served, drained) = shutdown.finish(server).await;
/// if served.is_none() || !drained.is_clean() {
///     eprintln!("cut off: {drained:?}");
/// }
/// # Ok(()) }
/// ```
#[must_use = "await `finish` or `drained`, or the process ends before its locks are released"]
pub struct Shutdown {
    state: Arc<ClientState>,
    limit: Duration,
    /// Begins the drain without the signal.
    begin: Arc<Notify>,
    drain: JoinHandle<Option<Drained>>,
}

impl LockClient {
    /// Arranges that the client drains as soon as `signal` is ready, such as at SIGTERM, and tells
    /// a server that it is time to stop.
    ///
    /// A server that shuts down gracefully waits for its requests, and they may wait for locks. The
    /// drain must therefore begin with the signal and not after the server: tasks that wait for a
    /// lock get [`Draining`](crate::ErrorKind::Draining) at once, holders have four fifths of
    /// `limit`, and after `limit` nothing is waited for. The rest is as for [`drain`](Self::drain).
    ///
    /// `signal` runs in a task of the current runtime. If the returned value is dropped, the client
    /// drains at the signal all the same, but nothing waits for it.
    ///
    /// # Errors
    ///
    /// [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime with timers.
    ///
    /// # Examples
    ///
    /// With axum:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn serve(
    /// #     client: lock_core::LockClient,
    /// #     listener: tokio::net::TcpListener,
    /// #     router: axum::Router,
    /// #     sigterm: impl Future<Output = ()> + Send + 'static,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let shutdown = client.shutdown_on(sigterm, Duration::from_secs(10))?;
    /// let server = axum::serve(listener, router).with_graceful_shutdown(shutdown.started());
    /// let (served, drained) = shutdown.finish(server).await;
    /// # Ok(()) }
    /// ```
    pub fn shutdown_on(
        &self,
        signal: impl Future<Output = ()> + Send + 'static,
        limit: Duration,
    ) -> Result<Shutdown, Error> {
        let runtime = runtime::current()?;
        let (state, begin) = (Arc::clone(&self.0), Arc::new(Notify::new()));
        let drain = drain_on(Arc::downgrade(&state), signal, Arc::clone(&begin), limit);
        let drain = runtime.spawn(drain);
        Ok(Shutdown { state, limit, begin, drain })
    }
}

/// Drains the client, if it is still there, once `signal` is ready or `begin` is notified.
async fn drain_on(
    state: Weak<ClientState>,
    signal: impl Future<Output = ()> + Send + 'static,
    begin: Arc<Notify>,
    limit: Duration,
) -> Option<Drained> {
    // A task of its own: a signal that panics has come, too.
    let mut waiting = JoinSet::new();
    waiting.spawn(signal);
    tokio::select! {
        _ = waiting.join_next() => {}
        () = begin.notified() => {}
    }
    Some(LockClient(state.upgrade()?).drain(limit).await)
}

impl Shutdown {
    /// Ready when the client begins to drain: the moment for a server to stop accepting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// use std::time::Duration;
    ///
    /// let (terminate, terminated) = tokio::sync::oneshot::channel::<()>();
    /// let signal = async { terminated.await.unwrap_or(()) };
    /// let shutdown = client.shutdown_on(signal, Duration::from_secs(5))?;
    /// let accept = tokio::spawn(shutdown.started());
    /// assert!(!accept.is_finished());
    ///
    /// drop(terminate);
    /// accept.await?; // no request more
    /// assert!(shutdown.drained().await.is_clean());
    /// # Ok(()) }
    /// ```
    pub fn started(&self) -> impl Future<Output = ()> + Send + use<> {
        ClientState::draining(Arc::clone(&self.state)).map(drop)
    }

    /// Runs `server` until it has ended, but no longer than the limit after the signal, and waits
    /// until the client is drained. Returns what the server returned, `None` if the limit cut it
    /// off, and what is left of the locks.
    ///
    /// A server that ends by itself, such as by an error, starts the drain.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the server. The client drains at the signal all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// use std::time::Duration;
    ///
    /// let shutdown = client.shutdown_on(async {}, Duration::from_secs(5))?;
    /// let started = shutdown.started();
    /// let server = async {
    ///     started.await; // then it finishes its requests
    ///     "served"
    /// };
    /// let (served, drained) = shutdown.finish(server).await;
    /// assert!(served == Some("served") && drained.is_clean());
    /// # Ok(()) }
    /// ```
    pub async fn finish<S: IntoFuture>(self, server: S) -> (Option<S::Output>, Drained) {
        let mut server = pin!(server.into_future());
        let served = tokio::select! {
            biased;
            served = &mut server => Some(served),
            began = ClientState::draining(Arc::clone(&self.state)) => {
                timeout_at(began.saturating_add(self.limit), server).await.ok()
            }
        };
        self.begin.notify_one();
        (served, self.drained().await)
    }

    /// Waits for the signal and until the client is drained. For programs without a server.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client drains at the signal all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// use std::time::Duration;
    ///
    /// # let sigterm = async {};
    /// let shutdown = client.shutdown_on(sigterm, Duration::from_secs(5))?;
    /// // .. a worker that takes lock after lock, until one returns `Draining` ..
    /// let drained = shutdown.drained().await;
    /// assert!(drained.is_clean(), "{drained:?}");
    /// # Ok(()) }
    /// ```
    pub async fn drained(self) -> Drained {
        // The task ends without a result only with its runtime.
        match self.drain.await {
            Ok(Some(drained)) => drained,
            Ok(None) | Err(_) => LockClient(self.state).drain(Duration::ZERO).await,
        }
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown").field("limit", &self.limit).finish_non_exhaustive()
    }
}
