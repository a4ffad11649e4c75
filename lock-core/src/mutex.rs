//! A lock held by one at a time.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Entered, Wish};
use crate::client::Inner;
use crate::error::Error;
use crate::guard::MutexGuard;
use crate::held::Lease;
use crate::key::Key;
use crate::options::{LockOptions, Terms};
use crate::registry::Address;
use crate::store::Name;

/// A lock on one key, held by one owner at a time across all processes that share the store and namespace.
///
/// Making one does no I/O, and cloning is cheap; one that is kept is a little faster than one made for each use. The futures of
/// [`lock`](Self::lock) and [`try_lock`](Self::try_lock) own what they need, so they can be spawned, joined and selected as they
/// are; that of [`run`](Self::run) borrows the mutex.
///
/// # Order of service
///
/// Tasks of one client that [`lock`](Self::lock) the same key are served in the order in which they came, and only the first of
/// them asks the store. When a guard ends, the next one gets the lock from it in memory, in about a microsecond: with a
/// [fencing token](crate::FencingToken) and a deadline check of its own, and on its own terms. What is left of the lease goes
/// along; if that is noticeably less than the next one's ttl, it is renewed after 50 ms, so that short sections do not pay.
///
/// One grant of the store serves at most 64 tasks so, or as many as come within 5 ms; then the lock really goes back, so that
/// other processes have their turn, and the next task's claim follows that release. So a process that waits has to wait
/// for one block of each process before it, of 5 ms or one section, whichever is longer, however many tasks wait there; a process
/// with a hundred tasks in line gets the same share as one with a single task.
///
/// The lock goes back to the store at once, too, when nobody waits here, when the lease was lost, when its holder has a
/// `min_hold`, when the next one needs a fencing token and the lease was taken [without](Self::without_fencing), when too
/// little of the lease is left, and while the client drains. Two clients in one process are two processes to each other.
#[derive(Clone)]
pub struct Mutex {
    client: Arc<Inner>,
    key: Result<(Key, Address), Error>,
    options: LockOptions,
    /// What results from the options and the client's defaults.
    terms: Result<Terms, Error>,
}

impl Mutex {
    pub(crate) fn new(client: Arc<Inner>, key: Result<Key, Error>) -> Self {
        let key = key.and_then(|key| {
            let name = Name::new(&client.namespace, &key)?;
            Ok((key, client.registry.address(name)))
        });
        let (options, terms) = (LockOptions::new(), Ok(client.terms));
        Self { client, key, options, terms }
    }

    /// Overrides the client's defaults; what `options` do not set stays as it is.
    #[must_use]
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.options = options.or(self.options);
        self.terms = self.options.or(self.client.defaults).terms().map_err(Error::from);
        self
    }

    fn wish(&self) -> Result<Wish, Error> {
        let (key, address) = self.key.clone()?;
        Ok(Wish { client: Arc::clone(&self.client), key, address, terms: self.terms.clone()? })
    }

    /// Sets how long the store keeps the lock without a renewal.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.with_options(LockOptions::new().with_ttl(ttl))
    }

    /// Waits at most this long for another holder.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        self.with_options(LockOptions::new().with_wait(wait))
    }

    /// Does not wait for another holder.
    #[must_use]
    pub fn without_wait(self) -> Self {
        self.with_options(LockOptions::new().without_wait())
    }

    /// Waits until the lock is free.
    #[must_use]
    pub fn wait_forever(self) -> Self {
        self.with_options(LockOptions::new().wait_forever())
    }

    /// Lets the lease end after its ttl.
    #[must_use]
    pub fn without_renewal(self) -> Self {
        self.with_options(LockOptions::new().without_renewal())
    }

    /// Ends the lease after this long, however often it could be renewed.
    #[must_use]
    pub fn with_max_hold(self, max_hold: Duration) -> Self {
        self.with_options(LockOptions::new().with_max_hold(max_hold))
    }

    /// Keeps the key taken at least this long, even if it is released earlier.
    #[must_use]
    pub fn with_min_hold(self, min_hold: Duration) -> Self {
        self.with_options(LockOptions::new().with_min_hold(min_hold))
    }

    /// Numbers each grant with a [`FencingToken`](crate::FencingToken).
    #[must_use]
    pub fn with_fencing(self) -> Self {
        self.with_options(LockOptions::new().with_fencing())
    }

    /// Does without the number of the grant; what that gives and costs: [`LockOptions::without_fencing`].
    #[must_use]
    pub fn without_fencing(self) -> Self {
        self.with_options(LockOptions::new().without_fencing())
    }

    /// Takes the lock, waiting for another holder up to `wait`.
    ///
    /// Under contention tasks of one process are served in the [order](Self#order-of-service) in which they came, and one of
    /// them stands for the process in the store. When the store fails, it is asked again while there
    /// is time.
    ///
    /// It is not re-entrant: a task that keeps a guard of the key and asks for another one waits for itself until `wait` is over.
    /// [`run`](Self::run) within `run`, the macro and the layer enters the lock that the task has.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: if the store granted the lock meanwhile, or does so later,
    /// or another task handed it over in this moment, it goes to the next one in line or is released in the
    /// background. It costs the place in line. (A future that was polled once and is neither polled
    /// again nor dropped keeps its place, and with it everybody behind it.)
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::ErrorKind::Busy) if another owner still had the lock when `wait` was over;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if the store
    /// failed, within `wait` (or 50 ms, if that is longer; without a wait: within the store's own timeouts);
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if this task holds the key through `run`, the
    /// macro or the layer; [`WrongType`](crate::ErrorKind::WrongType) if the name holds something that is not a lock;
    /// [`Draining`](crate::ErrorKind::Draining) once the client drains; [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a
    /// tokio runtime; [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for what this mutex was made with.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("import").lock().await?;
    /// assert!(guard.is_valid());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard, Error>> + Send + use<> {
        acquire::lock(self.wish())
    }

    /// Takes the lock if it is free: one round trip, and none if this process has it.
    ///
    /// `None` means that another owner has it, or another task of this process: it does not take the lock from those who wait
    /// for it in line. A lock that a guard of this process gave back a moment ago counts as free: the release is sent first.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but never `Busy` or `WouldDeadlock`.
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<MutexGuard>, Error>> + Send + use<> {
        let wish = self.wish().map(Wish::without_wait);
        async move {
            match acquire::lock(wish).await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if error.is_busy() => Ok(None),
                Err(error) if error.kind() == crate::ErrorKind::WouldDeadlock => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Takes the lock, runs `body` as long as the lease is good, and releases.
    ///
    /// The body gets a [`Lease`], which watches and can extend but not release. No poll of the body starts at
    /// or after the lease's deadline; if the lease is lost, the body is dropped at its next await. What
    /// the body returns is never replaced by a failed release. If the task holds the key already through `run`, the macro or the
    /// layer, the body runs under that lease, and those that run side by side (`join!`) take turns.
    ///
    /// Returns once the next task of this process has the lock, or the store has answered the release; if it was asked twice
    /// without an answer, that goes to the log and the release is repeated in the background.
    ///
    /// A fallible body gives a `Result` in a `Result`: end the function with it, or write `.await??`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, then releases in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but never `WouldDeadlock`; and [`Lost`](crate::ErrorKind::Lost) if the lease ended before the
    /// body did: how far the body came is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let sum = client.mutex("sum").run(async |lease| {
    ///     assert!(lease.is_valid());
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    // Whether the future is `Send` is up to the body.
    #[allow(clippy::future_not_send)]
    pub async fn run<F, Fut>(&self, body: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future,
    {
        let entered = Entered::enter(self.wish()).await?;
        let output = {
            // The body, with what it captured, is gone before the release.
            let body = pin!(entered.bound(body(entered.lease())));
            body.await
        }?;
        #[cfg(lock_zoo)]
        if mutant!("failed-release-replaces-the-result") {
            return entered.release_or_fail().await.map(|_| output);
        }
        entered.release().await;
        Ok(output)
    }

    /// Takes the lock on a thread that may block: a plain one, or one of `spawn_blocking`. Give it back by
    /// [`blocking_release`](MutexGuard::blocking_release), or by dropping the guard.
    ///
    /// Waits no longer than [`lock`](Self::lock) does, whatever else the client's runtime is busy with.
    ///
    /// # Panics
    ///
    /// If called within an async context, where it would block the other tasks.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`NoRuntime`](crate::ErrorKind::NoRuntime) on a plain thread if the
    /// client was not used in a runtime that is still there, nor given one: somebody has to renew the lease.
    pub fn blocking_lock(&self) -> Result<MutexGuard, Error> {
        self.client.block_on(self.lock())?
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("key", &self.key.as_ref().map(|(key, _)| key))
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
