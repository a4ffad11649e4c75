//! A lock with one owner at a time.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use super::acquire::{self, AcquireRequest};
use super::entered::Entered;
use super::guard::MutexGuard;
use crate::error::Error;
use crate::held::Lease;
use crate::key::Key;
use crate::options::{LockOptions, ResolvedOptions, option_setters};
use crate::state::ClientState;
use crate::store::Name;

/// A lock on one key, held by one owner at a time across all processes that share the store and
/// namespace.
///
/// Making a `Mutex` does no I/O, and cloning it is cheap; keeping it is a little faster than making
/// one for each use. The futures of [`lock`](Self::lock) and [`try_lock`](Self::try_lock) own what
/// they need, so they can be spawned, joined and selected as they are; that of [`run`](Self::run)
/// borrows the mutex.
///
/// # Order of service
///
/// Tasks of one client that [`lock`](Self::lock) the same key are served in order of arrival, and
/// only the first of them claims the lock in the store. When a guard ends, the next task gets the
/// lock from it in memory, in about a microsecond: with its own
/// [fencing token](crate::FencingToken), deadline check and options. What is left of the lease goes
/// along. If that is noticeably less than the next task's ttl, it is renewed after 50 ms, so that
/// short sections do not cost a command.
///
/// One grant of the store serves at most 64 tasks in this way, or as many as come within 5 ms. Then
/// the lock goes back to the store, so that other processes get their turn, and the next task's
/// claim follows that release. A waiting process therefore waits for one block of each process
/// before it, of 5 ms or one section, whichever is longer, however many tasks wait there. A process
/// with a hundred waiting tasks gets the same share as a process with one.
///
/// The lock also goes back to the store at once when no task of this process waits, when the lease
/// was lost, when its holder has a `min_hold`, when the next task needs a fencing token and the
/// lease was taken [without](Self::without_fencing), when too little of the lease is left, and
/// while the client drains. Two clients in one process are two processes to each other.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, key, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).build()?;
/// let order = 42;
/// let mutex = client.mutex(key!("order:<order>")).with_wait(Duration::from_millis(50));
///
/// let guard = mutex.lock().await?;
/// assert!(mutex.lock().await.unwrap_err().is_busy()); // guards are not re-entrant
/// drop(guard);
/// assert_eq!(mutex.run(async |_| "paid").await?, "paid");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    client: Arc<ClientState>,
    key: Result<(Key, Name), Error>,
    options: LockOptions,
    /// The options with the client's defaults below.
    resolved: Result<ResolvedOptions, Error>,
}

impl Mutex {
    pub(crate) fn new(client: Arc<ClientState>, key: Result<Key, Error>) -> Self {
        let key = key.and_then(|key| {
            let name = Name::new(client.namespace.as_deref(), &key)?;
            Ok((key, name))
        });
        let (options, resolved) = (LockOptions::new(), Ok(client.resolved));
        Self { client, key, options, resolved }
    }

    /// Overrides the client's defaults; what `options` do not set stays as it is.
    #[must_use]
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.options = options.or(self.options);
        let resolved = self.options.or(self.client.defaults).resolve();
        let resolved = resolved.and_then(|resolved| resolved.within(self.client.longest_ttl));
        self.resolved = resolved.map_err(Error::from);
        self
    }

    option_setters!();

    fn request(&self) -> Result<AcquireRequest, Error> {
        let (key, name) = self.key.clone()?;
        let (client, options) = (Arc::clone(&self.client), self.resolved.clone()?);
        Ok(AcquireRequest { client, key, name, options })
    }

    /// Takes the lock, waiting for another holder up to `wait`.
    ///
    /// Under contention tasks of one process are served in [order](Self#order-of-service) of
    /// arrival, and the first of them claims the lock for the process. When the store fails, the
    /// claim is repeated while there is time.
    ///
    /// It is not re-entrant: a task that keeps a guard of the key and locks it again waits for
    /// itself until `wait` is over, and then gets [`Busy`](crate::ErrorKind::Busy), since a guard
    /// may be in any task's hands. [`run`](Self::run) within `run`, the macro and the layer enters
    /// the lock that the task holds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: if the store has granted the lock meanwhile, or
    /// grants it later, or another task has just handed it on, it goes to the next waiting task
    /// or is released in the background. The place in the queue is lost. (A future that was polled
    /// once and is neither polled again nor dropped keeps its place and blocks the tasks behind
    /// it.)
    ///
    /// # Errors
    ///
    /// [`Busy`](crate::ErrorKind::Busy) if another owner still had the lock when `wait` was over;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or [`Unknown`](crate::ErrorKind::Unknown) if
    /// the store failed, within `wait` (or 50 ms, if that is longer; without a wait: within the
    /// store's own timeouts); [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if this task holds
    /// the key through `run`, the macro or the layer; [`WrongType`](crate::ErrorKind::WrongType) if
    /// the name holds something that is not a lock; [`Draining`](crate::ErrorKind::Draining) once
    /// the client drains; [`NoRuntime`](crate::ErrorKind::NoRuntime) outside a tokio runtime, or in
    /// one that was built without `enable_all`; [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidOptions`](crate::ErrorKind::InvalidOptions) for what this mutex was made with.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("import").lock().await?;
    /// assert!(guard.is_valid());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard, Error>> + Send + use<> {
        acquire::lock(self.request())
    }

    /// Takes the lock if it is free: one round trip, and none if this process has it.
    ///
    /// `None` means that another owner has it, or another task of this process: tasks that wait for
    /// the lock are not overtaken. A lock that a guard of this process has just released counts as
    /// free: the release is sent first.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but never `Busy` or `WouldDeadlock`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let mutex = client.mutex("import");
    /// let Some(guard) = mutex.try_lock().await? else {
    ///     println!("another instance imports");
    ///     return Ok(());
    /// };
    /// assert!(mutex.try_lock().await?.is_none(), "it is held");
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn try_lock(
        &self,
    ) -> impl Future<Output = Result<Option<MutexGuard>, Error>> + Send + use<> {
        let request = self.request().map(AcquireRequest::without_wait);
        async move {
            match acquire::lock(request).await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if error.is_busy() => Ok(None),
                Err(error) if error.kind() == crate::ErrorKind::WouldDeadlock => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Takes the lock, runs `body` as long as the lease is good, and releases.
    ///
    /// The body gets a [`Lease`], which watches and can extend but not release. No poll of the body
    /// starts at or after the lease's deadline; if the lease is lost, the body is dropped at its
    /// next await. A failed release never replaces what the body returns. If the task holds the key
    /// already through `run`, the macro or the layer, the body runs under that lease, and bodies
    /// that run side by side (`join!`) take turns.
    ///
    /// Returns once the next task of this process has the lock, or the store has replied to the
    /// release. After two attempts without a reply that is logged, and the release is repeated in
    /// the background.
    ///
    /// A fallible body gives a `Result` in a `Result`: end the function with it, or write
    /// `.await??`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, then releases in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but never `WouldDeadlock`; and [`Lost`](crate::ErrorKind::Lost) if
    /// the lease ended before the body did: how far the body came is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
        let entered = Entered::enter(self.request()).await?;
        let output = {
            // The body, with what it captured, is gone before the release.
            let body = pin!(entered.bound(body(entered.lease())));
            body.await
        }?;
        entered.release().await;
        Ok(output)
    }

    /// Takes the lock on a thread that may block: a plain one, or one of `spawn_blocking`. Give it
    /// back by [`blocking_release`](MutexGuard::blocking_release), or by dropping the guard.
    ///
    /// Waits no longer than [`lock`](Self::lock) does, whatever else the client's runtime is busy
    /// with.
    ///
    /// # Panics
    ///
    /// If called within an async context, where it would block the other tasks.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`NoRuntime`](crate::ErrorKind::NoRuntime) on a plain thread if
    /// the client was not used in a runtime that is still there, nor given one: the lease has to be
    /// renewed by a background task.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let mutex = client.mutex("report");
    /// tokio::task::spawn_blocking(move || {
    ///     let guard = mutex.blocking_lock()?;
    ///     // .. what blocks the thread ..
    ///     guard.blocking_release()
    /// })
    /// .await??;
    /// # Ok(()) }
    /// ```
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
