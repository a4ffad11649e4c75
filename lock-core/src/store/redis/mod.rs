//! Leases on one Redis server.
//!
//! From top to bottom; a file uses its own floor and those below:
//!
//! - this file and `builder`, `check`, `inspect`: the store, as users and operators see it
//! - `wait`: waiting for a taken lock in its queue
//! - `protocol`: claims, renewals and releases; `in_doubt`: what the server may still do for a
//!   token
//! - `transport`: the connection, and what is sent on it
//! - `keys`, `scripts`, `error`, `info`, `credentials`: names, texts, and what a dial needs

mod builder;
mod check;
mod credentials;
mod error;
#[cfg(feature = "test-util")]
mod fuzzing;
mod in_doubt;
mod info;
mod inspect;
mod keys;
mod protocol;
mod scripts;
mod transport;
mod wait;

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::Handle;

pub use self::builder::RedisStoreBuilder;
pub use self::credentials::Credentials;
#[cfg(feature = "test-util")]
pub use self::fuzzing::{Reading, read_reply};
use self::in_doubt::InDoubt;
use self::keys::Tag;
use self::protocol::Server;
use self::transport::{Connection, Endpoint, Timeouts};
#[cfg(feature = "test-util")]
pub use self::transport::{Connector, Socket};
use self::wait::{Incoming, Mailboxes, Parked, Waits};
use super::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Inspect, Release,
    ReleaseReply, Renewal, Renewed, Store, Survives,
};
use crate::error::Error;

/// Leases on one Redis server: Redis 6.2 or later, or Valkey. Tested on Redis 6.2, 7.0 and 8.2, and
/// on Valkey 9.1.
///
/// A lock is the plain key `<namespace>:<key>`. Its value is the token and its expiry the ttl, as
/// `SET key token NX PX ttl` makes it. So mixed fleets exclude each other (redis-py's `Lock`,
/// node-redlock, redsync), and `redis-cli get` shows who holds a lock: the first 8 digits of the
/// value are the [`ClientId`](super::ClientId) of the client. One more key per namespace,
/// `<namespace>:{0}:fence`, numbers the grants. While processes wait for a lock they queue in two
/// sorted sets, `<namespace>:{0}:q:<key>` and `<namespace>:{0}:a:<key>`, which disappear with the
/// last waiter. Each store that waits listens on a channel of its own,
/// `<namespace>:{0}:inbox:<id>`. Each hand-off sends a message to the new holder, and an empty one
/// to the client that releases.
///
/// # Permissions
///
/// A user needs no more than this (for the namespace `lock`):
///
/// ```text
/// ACL SETUSER locker on >password ~lock:* resetchannels &lock:* \
///     +eval +evalsha +get +mget +set +del +exists +pttl +pexpire +time \
///     +zadd +zrem +zscore +zrank +zrange +zrangebyscore +zpopmin +zcount \
///     +publish +subscribe +info +ping +hello
/// ```
///
/// [`LockClient::list`](crate::LockClient::list), for operators, needs `+scan` as well, and a URL
/// that names a database `+select`. A client sends nothing that is not permitted here, so `ACL LOG`
/// stays empty. All clients of a lock need the same permissions. A client that may not publish
/// hands the lock over without a message, and the next holder finds out when it claims again, after
/// a second.
///
/// # What it relies on
///
/// One primary that does not forget unexpired keys. A failover to a replica may lose the latest
/// grants, and any eviction policy but `noeviction` may drop locks when the memory is full; the
/// start-up check warns of the latter. Fencing tokens keep growing through both. Redis 6.2 does not
/// apply `min-replicas-to-write` to scripts, so it grants locks without replicas.
pub struct RedisStore {
    server: Server<Parked>,
    waits: Waits,
}

impl RedisStore {
    /// A store on the server at `endpoint`, which is called `label` in messages.
    fn new(endpoint: Endpoint, label: String, timeouts: Timeouts) -> Self {
        let tag = Tag::SINGLE;
        let (mailboxes, in_doubt) = (Arc::<Mailboxes>::default(), Arc::<InDoubt<_>>::default());
        let incoming =
            Incoming { mailboxes: Arc::clone(&mailboxes), in_doubt: Arc::clone(&in_doubt), tag };
        let connection = Connection::new(endpoint, label, timeouts, incoming);
        Self { server: Server::new(connection, in_doubt, tag), waits: Waits::new(mailboxes, tag) }
    }
}

impl Store for RedisStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(self.server.try_acquire(claim))
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(self.waits.acquire(&self.server, claim, context))
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        // The batcher writes what is ready at the same time in one go.
        Box::pin(join_all(renewals.iter().map(|renewal| self.server.renew(renewal))))
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        // One attempt, whatever happens to it: the client counts attempts to tell what a repeated
        // one means.
        Box::pin(self.server.release(release))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().with_fair().with_fencing().with_survives(Survives::Restart)
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn run_on(&self, runtime: &Handle) {
        self.server.connection().run_on(runtime);
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.server.connection().label())
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in doubt: it names tokens.
        let connection = self.server.connection();
        f.debug_struct("RedisStore").field("connection", connection).finish_non_exhaustive()
    }
}
