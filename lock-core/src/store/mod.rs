//! Where leases live: the contract between this crate and those who implement a store.
//!
//! Users build a [`LockClient`](crate::LockClient) on a store and never call one.
//!
//! The rules that every store keeps:
//!
//! - **Grants are exclusive.** Between a grant and the moment its ttl ends by the store's clock,
//!   nobody else is granted the name, unless the token's holder released it.
//! - **Compare the token.** Renewal and release act only if the stored token is the given one,
//!   in one atomic step. A renewal never creates a lock.
//! - **Only lengthen.** A renewal, or a claim that finds its own token, never shortens the expiry.
//! - **Repeats are harmless.** A claim, renewal or release that is delivered twice does no more
//!   than one. A claim that finds its own token is granted again.
//! - **Say what you know.** "Busy" only for a definite no; [`Error::unknown`] when the store may
//!   have acted; [`Error::unavailable`] when it certainly did not. A name that holds something else
//!   than a lock is [`Error::wrong_type`] for a claim, and another owner for renewals and releases.
//! - **Every future may be dropped.** The client then sends a release of the token;
//!   [`ReleaseReply::retry_at`] asks for another one while a claim may still be under way.
//!
//! With the feature `test-util`, `conformance_tests!` runs a suite for these rules on a store of
//! yours.

mod capability;
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
mod token;

use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;

pub use self::capability::{Capabilities, Survives};
pub use self::memory::MemoryStore;
#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};
pub(crate) use self::request::RECENTLY;
pub use self::request::{
    AcquireContext, AcquireError, Claim, Grant, Name, Release, ReleaseReply, Renewal, Renewed,
    WaitEvent,
};
pub use self::token::Token;
use crate::Error;
pub use crate::lease::Released;

/// What the methods of [`Store`] return: one box per network call is the price of `Arc<dyn Store>`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place where leases live. See the [module](self) for the rules.
///
/// `Display` names the store in messages and must not show a password.
pub trait Store: Debug + Display + Send + Sync + 'static {
    /// Asks once for the lock, without queueing: one round trip.
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>>;

    /// Asks for the lock and waits for it, in the store's own way, until `waiting.until()`.
    ///
    /// A free lock is granted in one round trip. Reports what it meets on the way to `waiting`,
    /// because other tasks of this process wait behind the claim and must be told the truth when
    /// they give up. Failures that may pass are retried, with the same token, while there is time.
    ///
    /// If it is dropped, or refused without being [definite](AcquireError::definite), it may be
    /// called again with the same token, by another task that wants the lock: a place in a queue is
    /// the token's.
    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>>;

    /// Renews leases, each on its own: one that fails does not fail another. The answers stand in
    /// the order of the renewals.
    ///
    /// Each is given up by its own [`until`](Renewal::until) at the latest. The client does not
    /// wait for its answer beyond that, though others of the call may have more time, and drops the
    /// future when it waits for none of them. Renewals that have little time come in calls of their
    /// own.
    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>>;

    /// Releases a token, whether or not it holds the lock, and ends its place in a queue. One
    /// attempt; the client repeats it.
    ///
    /// The client polls the future once, and may then claim the same name with another token
    /// without waiting for the answer. A store that sends commands in the order of first polls has
    /// the release in front; in any other order the rules hold all the same, only slower.
    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>>;

    /// What this store offers.
    fn capabilities(&self) -> Capabilities;
}

/// A store that is shared is a store.
impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        (**self).try_acquire(claim)
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        (**self).acquire(claim, waiting)
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
}
