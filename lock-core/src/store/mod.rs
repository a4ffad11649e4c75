//! Where leases are kept: the contract between this crate and the implementer of a store.
//!
//! Users build a [`LockClient`](crate::LockClient) on a store and never call one.
//!
//! The rules that every store keeps:
//!
//! - **Grants are exclusive.** From a grant until its ttl ends by the store's clock, no other token
//!   is granted the name, unless the holder released it.
//! - **Compare the token.** Renewal and release act only if the stored token is the given one,
//!   in one atomic step. A renewal never creates a lock.
//! - **Only lengthen.** A renewal, or a claim that finds its own token, never shortens the expiry.
//!   One exception: what a step of the store's clock added may be taken back, to what
//!   [`Renewal::needs`] tells, by a command that cannot undo a longer renewal.
//! - **Repeats are harmless.** A claim, renewal or release that is delivered twice has the effect
//!   of one. A claim that finds its own token is granted again.
//! - **Report what is known.** "Busy" only if another owner certainly has the lock;
//!   [`Error::unknown`] when the store may have acted; [`Error::unavailable`] when it certainly did
//!   not, or did nothing that counts. A name whose value is not a lock is [`Error::wrong_type`] for
//!   a claim, and another owner for renewals and releases.
//! - **Every future may be dropped.** After a claim the client then sends a release of the token,
//!   or another of its tasks claims with the same token. [`ReleaseReply::retry_at`] requests
//!   another release while a claim may still be under way.
//!
//! With the feature `test-util`, `conformance_tests!` tests these rules on your own store.

mod capability;
#[cfg(feature = "redis")]
mod connect;
#[cfg(feature = "redis")]
mod contended;
mod inspect;
#[cfg(feature = "redis-quorum")]
mod member;
mod memory;
#[cfg(feature = "redis-quorum")]
pub(crate) mod quorum;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
mod token;

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;

use tokio::runtime::Handle;

pub use self::capability::{Capabilities, Survives};
#[cfg(all(feature = "redis", feature = "serde"))]
pub(crate) use self::connect::{StoreSettings, check_urls};
#[cfg(feature = "redis")]
pub use self::connect::{connect, connect_lazy};
#[cfg(feature = "redis")]
pub(crate) use self::contended::Contended;
pub(crate) use self::inspect::ForceReleaseListeners;
pub use self::inspect::{ForceReleaseListener, LockRecord, MissingPermissions, Owner, StoreHealth};
#[cfg(feature = "redis-quorum")]
pub(crate) use self::member::{Ballot, Member, Purpose, Terms, Vote, VoteError, Voted};
#[cfg(all(feature = "redis-quorum", feature = "test-util"))]
pub(crate) use self::memory::Held;
pub use self::memory::MemoryStore;
#[cfg(feature = "redis-quorum")]
pub use self::quorum::{QuorumStore, QuorumStoreBuilder};
#[cfg(feature = "redis")]
pub use self::redis::{Credentials, RedisStore, RedisStoreBuilder};
pub use self::request::{
    AcquireContext, AcquireError, Claim, Grant, Name, Release, ReleaseReply, Renewal, Renewed,
    WaitEvent,
};
pub(crate) use self::request::{DEFAULT_NAMESPACE, LeaseNeeds, RECENTLY};
pub use self::token::{ClientId, Token};
use crate::Error;
pub use crate::lease::Released;

/// What the methods of [`Store`] return: one box per network call is the price of `Arc<dyn Store>`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A service that keeps leases. See the [module](self) for the rules.
///
/// `Display` names the store in messages and must not show a password.
///
/// # Examples
///
/// ```
/// use std::fmt;
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// use lock_core::store::{
///     AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, MemoryStore, Release,
///     ReleaseReply, Renewal, Renewed, Store,
/// };
/// use lock_core::{Error, LockClient};
///
/// /// Counts the claims for a store.
/// #[derive(Debug, Default)]
/// struct Counted {
///     inner: MemoryStore,
///     claims: AtomicUsize,
/// }
///
/// impl Store for Counted {
///     fn try_acquire<'a>(
///         &'a self,
///         claim: &'a Claim,
///     ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
///         self.claims.fetch_add(1, Relaxed);
///         self.inner.try_acquire(claim)
///     }
///
///     fn acquire<'a>(
///         &'a self,
///         claim: &'a Claim,
///         context: &'a AcquireContext<'a>,
///     ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
///         self.claims.fetch_add(1, Relaxed);
///         self.inner.acquire(claim, context)
///     }
///
///     fn renew<'a>(
///         &'a self,
///         renewals: &'a [Renewal],
///     ) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
///         self.inner.renew(renewals)
///     }
///
///     fn release<'a>(
///         &'a self,
///         release: &'a Release,
///     ) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
///         self.inner.release(release)
///     }
///
///     fn capabilities(&self) -> Capabilities {
///         self.inner.capabilities()
///     }
///
///     // And `inspector`, `run_on`, `set_connection_name`, if the store inside has them.
/// }
///
/// impl fmt::Display for Counted {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "counted {}", self.inner)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = std::sync::Arc::new(Counted::default());
/// let client = LockClient::builder(store.clone()).build()?;
/// client.mutex("k").lock().await?.release().await?;
/// assert_eq!(store.claims.load(Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait Store: Debug + Display + Send + Sync + 'static {
    /// Claims the lock once, without queueing: one round trip.
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>>;

    /// Claims the lock and waits for it, in the store's own way, until `context.until()`.
    ///
    /// A free lock is granted in one round trip. The store reports what it meets to `context`:
    /// other tasks of this process wait behind the claim, and return that when they give up.
    /// Temporary failures are retried with the same token while there is time.
    ///
    /// If the future is dropped, or fails without being [definite](AcquireError::definite), another
    /// task that wants the lock may call this again with the same token: a place in a queue belongs
    /// to the token.
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>>;

    /// Renews leases independently: if one renewal fails, the others do not. The replies are in the
    /// order of the renewals.
    ///
    /// Each renewal is given up at its own [`until`](Renewal::until) at the latest. The client does
    /// not wait for its reply after that, even if other renewals of the call have more time, and
    /// drops the future when it waits for none of them. Renewals that have little time come in
    /// calls of their own.
    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>>;

    /// Releases a token, whether or not it holds the lock, and ends its place in a queue. One
    /// attempt; the client repeats it.
    ///
    /// The client polls the future once, and may then claim the same name with another token
    /// without waiting for the reply. A store that sends commands in the order of first polls sends
    /// the release before that claim; in any other order the rules still hold, but the claim takes
    /// longer.
    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>>;

    /// What this store offers.
    fn capabilities(&self) -> Capabilities;

    /// What operators may ask of this store; `None` if it cannot tell.
    fn inspector(&self) -> Option<&dyn Inspect> {
        None
    }

    /// Runs what outlives a call on `runtime` from now on, instead of on the caller's runtime: a
    /// connection that was opened elsewhere is opened anew there. Clients call this if they were
    /// [given a runtime](crate::LockClientBuilder::with_runtime).
    ///
    /// By default does nothing, which is right for a store without tasks.
    fn run_on(&self, runtime: &Handle) {
        let _ = runtime;
    }

    /// Tells the server how to call the connection for commands, so that an operator finds the
    /// process that a client id belongs to. Clients call this when they are built: the name is
    /// `lock:<name>@<host>:<process id>:<client id>`, in visible ASCII without spaces. The first
    /// client of a store names it.
    ///
    /// By default does nothing, which is right for a store without connections.
    fn set_connection_name(&self, name: &str) {
        let _ = name;
    }
}

/// What operators ask of a store: who has a lock, and to take it from its owner. Not every store
/// can: see [`Store::inspector`].
pub trait Inspect: Send + Sync {
    /// Reads what the store knows of a lock, in one step and without changing anything.
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<LockRecord, Error>>;

    /// Takes the lock from `owner`, which [`inspect`](Self::inspect) found: the first waiter gets
    /// it, or it becomes free. `false` if another has it by now, or it is free: then nothing was
    /// done.
    ///
    /// Compared and taken in one step, so that a request that comes late or twice takes it from no
    /// other owner. The renewals and releases of the former owner find that it has the lock no
    /// more.
    fn force_release<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// From now on tells `listener` which tokens [`force_release`](Self::force_release) took the
    /// lock from, as far as the store learns of it. What it misses, renewals find. Clients call
    /// this when they are built.
    ///
    /// By default does nothing.
    fn report_forced_releases(&self, listener: Weak<dyn ForceReleaseListener>) {
        drop(listener);
    }

    /// The names under `namespace` that are taken, `most` at most, in no order. A name that was
    /// taken or freed meanwhile may be missing or listed. If a part of the store cannot be read,
    /// and there are fewer names than `most` in the others, an error that says which part it is.
    fn list<'a>(
        &'a self,
        namespace: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Name>, Error>>;

    /// What the store's user may not do of what locks under `namespace` need. Provided: nothing is
    /// missing, for a store that knows no permissions.
    fn missing_permissions<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<MissingPermissions, Error>> {
        let _ = namespace;
        Box::pin(std::future::ready(Ok(MissingPermissions::default())))
    }

    /// Asks the store how it is. An error if it does not answer.
    fn health(&self) -> BoxFuture<'_, Result<StoreHealth, Error>>;
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        (**self).try_acquire(claim)
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        (**self).acquire(claim, context)
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        (**self).renew(renewals)
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        (**self).release(release)
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        (**self).inspector()
    }

    fn run_on(&self, runtime: &Handle) {
        (**self).run_on(runtime);
    }

    fn set_connection_name(&self, name: &str) {
        (**self).set_connection_name(name);
    }
}
