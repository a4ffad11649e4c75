//! What a quorum asks of one of its members, beyond what every store does.

use std::sync::Arc;
use std::time::Duration;

use super::{BoxFuture, Name, Owner, Store, Token};
use crate::error::Error;
use crate::time::Instant;

/// One of the servers of a quorum.
pub(crate) trait Member: Store {
    /// Connects if there is no connection, and waits for it until `until`.
    fn open(&self, until: Instant) -> BoxFuture<'_, Result<(), Error>>;

    /// Connects, and checks that the server can keep locks.
    fn check(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// The server's clock in microseconds, as far as it is known; `None` without a connection.
    fn clock(&self) -> Option<u64>;

    /// Which process the present connection leads to, as it names itself; `None` without a
    /// connection, or if it does not tell.
    fn process(&self) -> Option<Arc<str>>;

    /// Casts a ballot once. If the future is dropped, the token may hold the lock there, now or
    /// soon, until a release of it has a definite reply.
    fn vote<'a>(&'a self, ballot: &'a Ballot) -> BoxFuture<'a, Result<Voted, VoteError>>;

    /// The last number that the server accepted for the lock.
    fn last_number<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<u64, Error>>;

    /// Takes the lock from `owner`; `false` if another has it, or none. For the rest of the expiry
    /// the lock is as after a release with a hold; a lock that is so already becomes free.
    fn revoke<'a>(&'a self, name: &'a Name, owner: &'a Owner)
    -> BoxFuture<'a, Result<bool, Error>>;
}

/// What a member is asked to do for a token.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    pub(crate) name: Name,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    pub(crate) purpose: Purpose,
    pub(crate) terms: Terms,
    /// When the caller's time is over.
    pub(crate) until: Instant,
}

/// What a ballot is for. Each lengthens a lock that holds the token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// A claim of the lock that proposes this number.
    Number(u64),
    /// A claim of the lock without a number.
    Lock,
    /// A renewal that takes the lock again if it is free, before those that wait for it: the member
    /// lost it.
    Repair,
    /// A renewal that leaves a free lock as it is.
    Renew,
}

/// What a member has to know of the quorum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// For how long a member that may have forgotten locks does not vote.
    pub(crate) restart_delay: Duration,
    /// Members keep their data over a restart.
    pub(crate) durable: bool,
}

/// A member's reply to a ballot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Vote {
    /// The token has the lock there for at least the ttl from `since`, and the number is accepted.
    Accepted { since: Instant },
    /// The token has the lock there, but the member refuses the number: it accepts none up to
    /// `least`.
    Refused { since: Instant, least: u64 },
    /// Another token has the lock there for up to `left`.
    Taken { left: Duration, least: u64 },
    /// The lock is free there, and was left so.
    Free,
    /// The member may have forgotten locks: it does not vote for so long.
    Quarantined { left: Duration },
    /// The ballot reached the member too late: nothing was done.
    Void,
}

impl Vote {
    /// From when the token has the lock there, if it has.
    pub(crate) fn since(self) -> Option<Instant> {
        match self {
            Self::Accepted { since } | Self::Refused { since, .. } => Some(since),
            Self::Taken { .. } | Self::Free | Self::Quarantined { .. } | Self::Void => None,
        }
    }
}

/// A vote, and who gave it.
#[derive(Clone, Debug)]
pub(crate) struct Voted {
    pub(crate) vote: Vote,
    /// The process that the ballot was sent to, as it names itself; `None` if it does not tell. The
    /// member may lead to another one by now.
    pub(crate) process: Option<Arc<str>>,
}

/// A ballot without a reply that counts.
#[derive(Clone, Debug)]
pub(crate) struct VoteError {
    pub(crate) error: Error,
    /// Whether the ballot certainly had no effect, and will have none.
    pub(crate) definite: bool,
}
