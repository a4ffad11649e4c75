//! The guard of a held lock.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use crate::bound::RunUntilLost;
use crate::error::Error;
use crate::held::{Ended, Lease};
use crate::scope::{Holds, Scoped};
use crate::store::Released;

/// A held lock. Dropping it releases the lock.
///
/// Derefs to its [`Lease`]. Owned and `Send`: it can be moved into a task or kept in a struct.
///
/// # Note: drop is not release
///
/// A drop cannot wait. If another task of this process waits for the key, it gets the lock from the guard, without a
/// round trip; [`Mutex`](crate::Mutex) says when. Otherwise the drop hands the release to the client's janitor and returns. The
/// janitor repeats it until the store has answered, and this process claims the key again right behind it; for others it
/// becomes free a round trip later. [`release`](Self::release) waits for the answer, and reports it. In a program
/// that is about to end, call [`LockClient::drain`](crate::LockClient::drain) after dropping.
///
/// # Note: a guard does not stop its holder
///
/// When the lease is lost, the code that holds the guard goes on. [`Mutex::run`](crate::Mutex::run) and
/// [`run_until_lost`](Self::run_until_lost) do stop a future, at its next await.
///
/// # Note: a guard that is never dropped is held for ever
///
/// One that is forgotten (`std::mem::forget`), leaked, or kept in a place that nobody clears is renewed as long as its process
/// lives. [`max_hold`](crate::LockOptions::with_max_hold) bounds that: then the lease is lost with the reason
/// [`MaxHold`](crate::LostReason::MaxHold), this process may claim the key again, and others get it when the ttl of the last
/// renewal is over. A lease [without renewal](crate::LockOptions::without_renewal) ends by its ttl anyway. When the client
/// [drains](crate::LockClient::drain), such a guard takes all the time there is, and its key is left to the ttl.
#[must_use = "the lock is released as soon as the guard is dropped"]
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

    /// Releases the lock and waits for the store's answer; does not wait if another task of this process gets the lock.
    ///
    /// Asks the store once more if the first answer does not come; after that the janitor goes on trying in the background.
    /// Under `min_hold` the key stays taken for the rest of that time, and the lock is released all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, even before its first poll, releases in the background.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if the store did not answer two
    /// tries, `Unknown` also if the first was not answered and the second came after the lease's deadline: then the lock is no
    /// longer ours, and nobody can tell what freed it. [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime; the
    /// release is made good where the client is used next. What was done under the lock stays done, whatever the answer.
    pub async fn release(mut self) -> Result<Released, Error> {
        let ended = self.lease.0.end();
        // The guard's own drop has nothing to do, now or when the future is dropped.
        self.ended = true;
        let key = self.lease.key().label();
        let (job, held) = match ended {
            Ended::GivenBack(job, held) => (job, held),
            // To the next holder of this process, while it was good.
            Ended::HandedOn(held) => {
                tracing::debug!(target: "lock_core", key, ?held, "lock handed on");
                return Ok(Released::InTime);
            }
            // Only the guard ends a lease, and it is here.
            Ended::Before => return Ok(Released::InTime),
        };
        let client = &self.lease.0.client;
        let released = client.janitor.finish(job, client).await?;
        if released == Released::InTime {
            tracing::debug!(target: "lock_core", key, ?held, ?released, "lock released");
        } else {
            tracing::warn!(
                target: "lock_core", key, ?held, ?released,
                "the lease was over before the lock was released"
            );
        }
        Ok(released)
    }

    /// Releases the lock from a thread that may block, a plain one or one of `spawn_blocking`, and waits for the answer.
    ///
    /// # Panics
    ///
    /// If called within an async context.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`NoRuntime`](crate::ErrorKind::NoRuntime) on a plain thread if the client's tasks run
    /// nowhere.
    pub fn blocking_release(self) -> Result<Released, Error> {
        let client = Arc::clone(&self.lease.0.client);
        client.block_on(self.release())?
    }

    /// Drives `future` as long as the lease is good, as [`Mutex::run`](crate::Mutex::run) does.
    ///
    /// The clock is read before each poll: no poll starts at or after the deadline. What a poll does is not interrupted, so a
    /// call that blocks the thread may outlast the lease. Within the future the lock counts as held by the
    /// task: [`current`](crate::current) gives the lease, and nested calls of functions that lock the same key through the macro
    /// enter it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. The guard is not touched.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease ended first: `future` was dropped at an await.
    pub fn run_until_lost<F: Future>(&self, future: F) -> RunUntilLost<F> {
        RunUntilLost::new(self.lease(), Scoped::new(Holds::own(self.lease()), future))
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
        if self.ended || mutant!("dropped-guard-is-left-to-its-ttl") {
            return;
        }
        let held = &self.lease.0;
        if let Ended::GivenBack(job, _) = held.end() {
            held.client.janitor.push(job);
        }
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard").field("lease", &self.lease).finish()
    }
}
