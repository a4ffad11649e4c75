//! Shutting down a client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::LockClient;
use crate::error::LostReason;
use crate::state::ClientState;
use crate::time::{Instant, timeout_at};

/// What was left when [`LockClient::drain`] returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Drained {
    /// Guards that were still alive, and acquisitions that were not dropped yet. Their leases have
    /// ended for this process; the keys become free after their ttl.
    pub held: usize,
    /// Releases that the store had not confirmed. Those keys become free after their ttl.
    pub pending: usize,
}

impl Drained {
    /// Nothing was left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.held == 0 && self.pending == 0
    }
}

impl LockClient {
    /// Shuts the client down: grants nothing more, lets holders finish, and waits until the store
    /// has confirmed the releases; all within `limit`. It begins when the future is first polled.
    ///
    /// A server that finishes its requests before it returns would let its waiters go on waiting
    /// all the while: use [`shutdown_on`](Self::shutdown_on) with a server.
    ///
    /// Tasks that wait for a lock get [`Draining`](crate::ErrorKind::Draining) at once. Leases that
    /// are still held after four fifths of `limit` are declared lost: bodies of `run`, the macro
    /// and the layer are dropped at their next await and their locks are released. The code that
    /// holds a guard cannot be stopped, so the guard's key is freed by its ttl.
    ///
    /// Outside a tokio runtime, or in one without timers, it only rejects new acquisitions, and
    /// returns what is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client draining; call it again to go on waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{ErrorKind, LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// use std::time::Duration;
    ///
    /// let guard = client.mutex("import").lock().await?;
    /// drop(guard); // the release is sent in the background
    /// let drained = client.drain(Duration::from_secs(5)).await;
    /// assert!(drained.is_clean(), "{drained:?}");
    /// assert_eq!(client.mutex("import").lock().await.unwrap_err().kind(), ErrorKind::Draining);
    /// # Ok(()) }
    /// ```
    pub fn drain(&self, limit: Duration) -> impl Future<Output = Drained> + Send + use<> {
        let state = Arc::clone(&self.0);
        async move {
            let now = Instant::now();
            let (last_call, end) = (now.saturating_add(limit / 5 * 4), now.saturating_add(limit));
            state.begin_drain();
            if state.ensure_running().is_err() {
                // Without a runtime this call cannot wait, and no task would release anything.
                return drained(&state);
            }
            if timeout_at(last_call, state.held.emptied()).await.is_err() {
                for lease in state.renewer.leases() {
                    lease.lose(LostReason::Draining);
                }
            }
            let idle = async {
                state.held.emptied().await;
                state.releaser.idle().await;
            };
            let _ = timeout_at(end, idle).await;
            drained(&state)
        }
    }

    /// Waits until the client begins to drain. For loops that take lock after lock, which end here
    /// rather than at the error of the next lock.
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
    /// let jobs = async {
    ///     loop {
    ///         tokio::select! {
    ///             done = client.mutex("job").lock() => drop(done),
    ///             () = client.draining() => break,
    ///         }
    ///         tokio::time::sleep(Duration::from_millis(5)).await;
    ///     }
    /// };
    /// tokio::join!(jobs, client.drain(Duration::from_secs(5)));
    /// # Ok(()) }
    /// ```
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        ClientState::draining(Arc::clone(&self.0)).map(drop)
    }
}

fn drained(state: &ClientState) -> Drained {
    Drained { held: state.held.count(), pending: state.releaser.pending_count() }
}
