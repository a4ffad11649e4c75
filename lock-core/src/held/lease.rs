//! The handle that watches a held lock.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::inner::LeaseInner;
use super::watch::LostWatch;
use crate::error::{Error, ErrorKind, LostReason};
use crate::fencing::FencingToken;
use crate::key::Key;
use crate::options::{check_longest, check_ttl};
use crate::state::ClientState;
use crate::store::Renewal;
use crate::time::{Deadline, Instant};

/// Watches a held lock and can extend it. Only the guard can release it.
///
/// Cheap to clone and to send. It does not keep the lock: when the guard releases it, the lease
/// ends.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockClient, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = LockClient::builder(MemoryStore::new()).build()?;
/// let guard = client.mutex("import").lock().await?;
/// let lease = guard.lease(); // for a task that watches
/// assert!(lease.is_valid() && lease.fencing_token() == guard.fencing_token());
///
/// guard.release().await?;
/// assert!(!lease.is_valid());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lease(pub(crate) Arc<LeaseInner>);

impl Lease {
    /// What is locked.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The number of this grant. Send it with each write to a resource that checks it.
    ///
    /// 0 if the lock was taken [without fencing](crate::LockOptions::without_fencing).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// How long the lease is good for if nothing renews it; zero when it has ended. Reads the
    /// clock, does no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.observe().unwrap_or(Duration::ZERO)
    }

    /// Whether the lease is good at this moment. Reads the clock, does no I/O.
    ///
    /// The result may be outdated as soon as it is returned: the process may be paused right after.
    /// What must not happen twice needs the [fencing token](Self::fencing_token) at the resource as
    /// well.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.observe().is_ok()
    }

    /// Waits until the lease has ended, and returns why; also when its own guard has
    /// [released](LostReason::Released) it.
    ///
    /// Ready at the local deadline, as exactly as the runtime's timers are, even if the store does
    /// not reply. A blocked runtime or a suspended machine delays it; [`is_valid`](Self::is_valid)
    /// is exact.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: a lost lease stays lost, and the next call returns at
    /// once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, LostReason, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// use std::time::Duration;
    ///
    /// let guard = client.mutex("import").with_max_hold(Duration::from_millis(20)).lock().await?;
    /// let lease = guard.lease();
    /// let watcher = tokio::spawn(async move { lease.lost().await });
    /// assert_eq!(watcher.await?, LostReason::MaxHold);
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> LostReason {
        let mut watch = LostWatch::new(Arc::clone(&self.0));
        let mut deadline = pin!(Deadline::default());
        poll_fn(|cx| watch.poll_lost(deadline.as_mut(), cx)).await
    }

    /// Waits until the client of the lease begins to drain: this process is about to end, so a long
    /// body saves its work and returns. One that goes on is stopped after four fifths of the limit
    /// of [`drain`](crate::LockClient::drain) or [`shutdown_on`](crate::LockClient::shutdown_on).
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
    /// let files = ["a", "b", "c"];
    /// let importer = client.mutex("import");
    /// let import = importer.run(async |lease| {
    ///     for file in files {
    ///         println!("import {file}");
    ///         tokio::select! {
    ///             () = tokio::time::sleep(Duration::from_millis(10)) => {}
    ///             () = lease.draining() => return Some(file), // and go on after it next time
    ///         }
    ///     }
    ///     None
    /// });
    /// let (stopped_after, drained) = tokio::join!(import, client.drain(Duration::from_secs(5)));
    /// # drop((stopped_after, drained));
    /// # Ok(()) }
    /// ```
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        ClientState::draining(Arc::clone(&self.0.client)).map(drop)
    }

    /// Makes the lease last for `ttl` from now, less the margin, or until `max_hold`; one round
    /// trip. Never shortens it.
    ///
    /// Later renewals keep the lock's own ttl, and do not shorten this one either.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may have lengthened its expiry, but the lease keeps its
    /// deadline: it ends earlier here than in the store, which is safe.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lease has ended, [`Unknown`](ErrorKind::Unknown) or
    /// [`Unavailable`](ErrorKind::Unavailable) if the store did not confirm: the lease keeps its
    /// deadline. [`InvalidOptions`](ErrorKind::InvalidOptions) if `ttl` is not within 100 ms and 24
    /// h; [`NoRuntime`](ErrorKind::NoRuntime) outside a tokio runtime, or in one without timers.
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
    /// let guard = client.mutex("migration").lock().await?;
    /// // The next step must not be cut off by a short outage of the store.
    /// guard.extend(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn extend(&self, ttl: Duration) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let lease = Arc::clone(&self.0);
        async move {
            check_ttl(ttl)?;
            check_longest("ttl", ttl, lease.client.longest_ttl)?;
            let (left, _extending) = lease.begin_extend(ttl).map_err(Error::lost)?;
            lease.client.ensure_running()?;
            let until = Instant::now().saturating_add(left);
            let renewal = Renewal::new(lease.name().clone(), lease.token, ttl, until);
            let reply = lease.client.store.renew(std::slice::from_ref(&renewal)).await.pop();
            lease.apply(reply.unwrap_or_else(|| Err(Error::of(ErrorKind::Unknown))), ttl)?;
            lease.observe().map(|_| ()).map_err(Error::lost)
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.0.key)
            .field("fencing_token", &self.0.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
