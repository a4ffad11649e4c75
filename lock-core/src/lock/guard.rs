//! The guard of a held lock.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use super::run_until_lost::RunUntilLost;
use crate::error::Error;
use crate::held::{Ended, Lease, ScopeEntry, Scoped};
use crate::lease::Released;

/// A held lock. Dropping it releases the lock.
///
/// Derefs to its [`Lease`]. Owned and `Send`: it can be moved into a task or kept in a struct.
///
/// # Note: drop is not release
///
/// A drop cannot wait. If another task of this process waits for the key, it gets the lock from the
/// guard without a round trip; [`Mutex`](crate::Mutex) says when. Otherwise the drop leaves the
/// release to a background task of the client and returns. The task repeats the release until the
/// store has replied. This process can claim the key again right behind it; for other processes the
/// key becomes free a round trip later. [`release`](Self::release) waits for the reply and returns
/// it. In a program that is about to exit, call
/// [`LockClient::drain`](crate::LockClient::drain) after dropping.
///
/// # Note: `let _ =` releases at once
///
/// `let _ = mutex.lock().await?;` drops the guard in the same statement, and the code below it runs
/// without the lock. The compiler does not warn, and even suggests this for a guard that is not
/// used. Write `let guard = ..`, or `let _guard = ..` if it is never mentioned again. Two lints
/// find the mistake, and both are off unless you turn them on: `let_underscore_drop` of rustc and
/// `clippy::let_underscore_must_use`. (`clippy::let_underscore_lock` knows other locks only.)
///
/// ```compile_fail
/// #![deny(let_underscore_drop)]
///
/// # use lock_core::{Error, Mutex};
/// # async fn work() {}
/// async fn unlocked(mutex: Mutex) -> Result<(), Error> {
///     let _ = mutex.lock().await?;
///     work().await; // without the lock
///     Ok(())
/// }
/// ```
///
/// # Note: a guard does not stop its holder
///
/// When the lease is lost, the code that holds the guard goes on.
/// [`Mutex::run`](crate::Mutex::run) and [`run_until_lost`](Self::run_until_lost) stop a future at
/// its next await.
///
/// # Note: a guard that is never dropped is held for ever
///
/// A guard that is forgotten (`std::mem::forget`), leaked, or kept in a collection that is never
/// cleared is renewed as long as its process lives.
/// [`max_hold`](crate::LockOptions::with_max_hold) bounds that: then the lease is lost with the
/// reason [`MaxHold`](crate::LostReason::MaxHold), this process may claim the key again, and other
/// processes get it when the ttl of the last renewal has passed. A lease
/// [without renewal](crate::LockOptions::without_renewal) ends by its ttl anyway. When the client
/// [drains](crate::LockClient::drain), such a guard uses up the whole limit, and its key expires
/// after its ttl.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockClient, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = LockClient::builder(MemoryStore::new()).build()?;
/// let guard = client.mutex("import").lock().await?;
/// println!("held under {}, for {:?} more", guard.fencing_token(), guard.remaining());
///
/// let task = tokio::spawn(async move {
///     assert!(guard.is_valid());
///     guard.release().await
/// });
/// task.await??;
/// # Ok(()) }
/// ```
#[must_use = "dropping the guard releases the lock: bind it to a name, `let guard = ..` or \
              `let _guard = ..`; `let _ = ..` releases at once"]
pub struct MutexGuard {
    lease: Lease,
    /// Whether a release has begun.
    ended: bool,
}

impl MutexGuard {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, ended: false }
    }

    /// A handle that watches this lock.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Releases the lock and waits for the store's reply. Does not wait if another task of this
    /// process gets the lock.
    ///
    /// If the first reply does not come, the release is sent once more; after that the client goes
    /// on trying in the background. Under `min_hold` the key stays taken for the rest of that time,
    /// though the lock is released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, even before its first poll, releases in the background.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if
    /// the store did not reply to two attempts. `Unknown` also if the first attempt got no reply
    /// and the second came after the lease's deadline: the lock is no longer held, but whether the
    /// release or the expiry ended it is not known. [`NoRuntime`](crate::ErrorKind::NoRuntime)
    /// outside a tokio runtime, or in one without timers; the release is then sent where the client
    /// is used next. What was done under the lock stays done, whatever the reply.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, Released, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("import").lock().await?;
    /// // .. the work ..
    /// match guard.release().await? {
    ///     Released::InTime => println!("held all the time"),
    ///     late => println!("{late:?}: the lease had ended before; was the work fenced?"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<Released, Error> {
        let ended = self.lease.0.end();
        // The guard's own drop has nothing to do, now or when the future is dropped.
        self.ended = true;
        let key = self.lease.key().label();
        let (pending, held) = match ended {
            Ended::GivenBack(pending, held) => (pending, held),
            // To the next holder in this process, while the lease was good.
            Ended::HandedOn(held) => {
                tracing::debug!(target: "lock_core", key, held_seconds = held.as_secs_f64(), "lock handed on");
                return Ok(Released::InTime);
            }
            // Only the guard ends a lease, and this is the guard.
            Ended::Before => return Ok(Released::InTime),
        };
        let client = &self.lease.0.client;
        let mut release = client.releaser.begin(pending);
        client.ensure_releasing()?;
        let released = release.finish(&*client.store).await?;
        if released == Released::InTime {
            tracing::debug!(target: "lock_core", key, held_seconds = held.as_secs_f64(), ?released, "lock released");
        } else {
            tracing::warn!(
                target: "lock_core", key, held_seconds = held.as_secs_f64(), ?released,
                "the lease had ended before the lock was released"
            );
        }
        Ok(released)
    }

    /// Releases the lock from a thread that may block, a plain one or one of `spawn_blocking`, and
    /// waits for the reply.
    ///
    /// # Panics
    ///
    /// If called within an async context.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`NoRuntime`](crate::ErrorKind::NoRuntime) on a plain thread
    /// if the client's tasks run nowhere.
    pub fn blocking_release(self) -> Result<Released, Error> {
        let client = Arc::clone(&self.lease.0.client);
        client.block_on(self.release())?
    }

    /// Drives `future` as long as the lease is good, as [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// The clock is read before each poll: no poll starts at or after the deadline. What a poll
    /// does is not interrupted, so a call that blocks the thread may outlast the lease. Within the
    /// future the lock counts as held by the task: [`current`](crate::current) gives the lease, and
    /// nested calls of functions that lock the same key through the macro enter it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. The guard is not touched.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease ended first: `future` was dropped at an await.
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
    /// let short = client.mutex("import").with_max_hold(Duration::from_millis(20));
    /// let guard = short.lock().await?;
    /// assert_eq!(guard.run_until_lost(async { 7 }).await?, 7);
    ///
    /// let endless = guard.run_until_lost(std::future::pending::<()>());
    /// assert!(endless.await.unwrap_err().is_lost());
    /// # Ok(()) }
    /// ```
    pub fn run_until_lost<F: Future>(&self, future: F) -> RunUntilLost<F> {
        RunUntilLost::new(self.lease(), Scoped::new(ScopeEntry::own(self.lease()), future))
    }
}

impl Deref for MutexGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (lease, key) = (&self.lease.0, self.lease.key().label());
        let held = match lease.end() {
            Ended::GivenBack(pending, held) => {
                lease.client.releaser.push(pending);
                held
            }
            Ended::HandedOn(held) => held,
            Ended::Before => return,
        };
        let held_seconds = held.as_secs_f64();
        tracing::debug!(target: "lock_core", key, held_seconds, "guard dropped");
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard").field("lease", &self.lease).finish()
    }
}
