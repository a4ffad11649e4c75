//! Leases on one Redis server, or on a cluster.
//!
//! From top to bottom; a file uses its own floor and those below:
//!
//! - this file and `builder`, `check`, `inspect`, `permissions`: the store, as users and operators
//!   see it
//! - `wait`: waiting for a taken lock in its queue
//! - `protocol`: claims, renewals and releases; `in_doubt`: what the server may still do for a
//!   token
//! - `servers`: one server or a cluster; `cluster`: which node has a lock, and how to reach it
//! - `transport`: the connection, and what is sent on it
//! - `keys`, `scripts`, `error`, `info`, `credentials`: names, texts, and what a dial needs

mod builder;
mod check;
#[cfg(feature = "redis-cluster")]
mod cluster;
#[cfg(not(feature = "redis-cluster"))]
#[path = "no_cluster.rs"]
mod cluster;
mod credentials;
mod error;
#[cfg(feature = "test-util")]
mod fuzzing;
mod in_doubt;
mod info;
mod inspect;
mod keys;
#[cfg(feature = "redis-quorum")]
mod member;
mod permissions;
mod protocol;
mod scripts;
mod servers;
mod transport;
mod url;
#[cfg(feature = "redis-quorum")]
mod vote;
mod wait;

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::Handle;

pub use self::builder::RedisStoreBuilder;
#[cfg(feature = "serde")]
pub(crate) use self::builder::{check_replica_acks, check_timeout, check_url};
pub use self::credentials::Credentials;
#[cfg(feature = "test-util")]
pub use self::fuzzing::{Reading, read_reply};
use self::in_doubt::InDoubt;
use self::protocol::Server;
use self::servers::Servers;
use self::transport::{Connection, Endpoint, ReplicaAcks, Sentinels, Timeouts};
#[cfg(feature = "test-util")]
pub use self::transport::{Connector, Socket};
use self::wait::{Incoming, Mailboxes, Parked, Waits};
use super::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Inspect, Release,
    ReleaseReply, Renewal, Renewed, Store, Survives,
};
use crate::error::Error;

/// Leases on one Redis server, on the master that sentinels name, or on a Redis Cluster: Redis 6.2
/// or later, or Valkey; on a cluster Redis 7.0 or later. Tested on Redis 6.2, 7.0 and 8.2, and on
/// Valkey 9.1; by TLS on Redis 7.0.
///
/// | URL | servers |
/// |---|---|
/// | `redis://host:port/database` | one server |
/// | `redis+sentinel://host,host,host/master-name` | the master that [sentinels](#sentinel) name |
/// | `redis+cluster://host,host,host` | a [cluster](#cluster), with the feature `redis-cluster` |
///
/// With `rediss` in place of `redis` each is by TLS; see [`connect`](Self::connect).
///
/// A lock is the plain key `<namespace>:<key>`. Its value is the token and its expiry the ttl, as
/// `SET key token NX PX ttl` makes it. So mixed fleets exclude each other (redis-py's `Lock`,
/// node-redlock, redsync), and `redis-cli get` shows who holds a lock: the first 8 digits of the
/// value are the [`ClientId`](super::ClientId) of the client. One more key per namespace,
/// `<namespace>:{0}:fence`, numbers the grants. While processes wait for a lock they queue in two
/// sorted sets, `<namespace>:{0}:q:<key>` and `<namespace>:{0}:a:<key>`, which disappear with the
/// last waiter, or within two minutes if all of them died. Each store that waits listens on a
/// channel of its own, `<namespace>:{0}:inbox:<id>`. Each hand-off sends a message to the new
/// holder, and an empty one to the client that releases. Where leases were renewed, stores also
/// listen on `<namespace>:{0}:forced`, where
/// [`force_release`](crate::LockClient::force_release) names the token that it took a lock from.
///
/// A lock [without a namespace](crate::LockClientBuilder::without_namespace) is the plain key
/// `<key>`, and its records are under `lock`, such as `lock:{0}:q:{}<key>`. A user needs the
/// permissions for `lock` and for the names of the locks, such as `~order:*`.
///
/// # Permissions
///
/// A user needs no more than this (for the namespace `lock`):
///
/// ```text
/// ACL SETUSER locker on >password ~lock:* resetchannels &lock:* \
///     +eval +evalsha +get +mget +set +del +exists +pttl +pexpire +time \
///     +zadd +zrem +zscore +zrank +zrange +zrangebyscore +zpopmin +zcount \
///     +publish +subscribe +info +ping +hello +client|setname
/// ```
///
/// [`LockClient::list`](crate::LockClient::list), for operators, needs `+scan` as well, and a URL
/// that names a database `+select`. A client sends nothing that is not permitted here, so `ACL LOG`
/// stays empty. All clients of a lock need the same permissions. A client that may not publish
/// hands the lock on without a message, and the next holder finds out when it claims again, after
/// a second.
///
/// The sentinels know other users than the servers. On each of them a client needs no more than
/// this; the URL names the user and the password as `sentinel_username` and `sentinel_password`:
///
/// ```text
/// ACL SETUSER watcher on >password resetchannels &+switch-master +sentinel|master +subscribe
/// ```
///
/// The users of a cluster are the same on all nodes:
///
/// ```text
/// ACL SETUSER locker on >password ~lock:* resetchannels &lock:* \
///     +eval +evalsha +get +mget +set +del +exists +pttl +pexpire +time \
///     +zadd +zrem +zscore +zrank +zrange +zrangebyscore +zpopmin +zcount \
///     +spublish +ssubscribe +cluster|slots +cluster|info +asking \
///     +info +ping +hello +client|setname
/// ```
///
/// # Sentinel
///
/// With a URL such as `redis+sentinel://sentinel-a,sentinel-b,sentinel-c/master-name` (see
/// [`connect`](Self::connect)) a client asks the sentinels which server is the master, before each
/// connection. A majority of those in the URL has to answer, and the answer with the highest
/// configuration epoch counts. While a connection is open, the client listens to each sentinel for
/// a new master, and asks all of them every 5 s. So it leaves an old master that lives on within a
/// second of the event, or within 6 s if no event arrives. Claims and renewals that were under way
/// there are sent once more, to the new master, with the same token; releases are repeated by their
/// callers or in the background. A held lease is kept if the new master knows it and answers before
/// its deadline.
///
/// Replication is asynchronous, so exclusion does not hold over every failover:
///
/// - *Lost grants.* A grant that the replica had not received when it was promoted is gone, and
///   another client may get the lock while the first one's lease lasts: for the ttl at most. That
///   needs a crash within the replication lag of the grant, usually less than a millisecond, or a
///   replica that was cut off before. With
///   [`with_replica_acks`](RedisStoreBuilder::with_replica_acks) a grant counts only if replicas
///   have it, so exclusion holds if one of those is promoted: certainly if all have to confirm.
/// - *Two masters.* After an ordered failover, or when it comes back after one, the old master
///   accepts claims until it is demoted, ten seconds and more. A client that reaches no sentinel
///   may stay with it. Only `min-replicas-to-write` stops it before, or acknowledgement by
///   replicas.
/// - A *renewal* that only the old master received is lost in the same way.
/// - A *release* that was not replicated comes back for the rest of its ttl, and those that wait
///   for the lock wait until that is over: a short ttl with renewal keeps it short. A *place* in
///   the queue comes back as well, and is passed over at once if its client is done with it.
///
/// Fencing tokens grow over a failover if the counter was replicated, or if the clock of the new
/// master is past the last number: so keep the clocks of the servers synchronised. Tokens of two
/// masters at the same time have no order.
///
/// Advice:
///
/// - Three sentinels or more, on different machines, and all of them in the URL.
/// - Two replicas or more, `min-replicas-to-write 1`, and `min-replicas-max-lag` of a third of the
///   ttl at most. This closes the time of two masters without help by clients. With a single
///   replica the new master accepts no claims until the old one has become its replica: 16 s in a
///   trial, against 5 s with two.
/// - Order failovers in quiet times. A master without persistence must not be restarted by itself:
///   if it is back before the sentinels notice, it has forgotten all locks, and so do its replicas.
///   A client warns of it.
/// - What must not happen twice checks the fencing token, or a database constraint, all the same.
///
/// # Cluster
///
/// With a URL such as `redis+cluster://node-a,node-b,node-c` a client asks one of these nodes which
/// node has which slot, and sends each command to the node that has the lock's. It keeps a
/// connection to each node that it needs, and a second one to each node on which one of its tasks
/// waits. The nodes of the URL are only a beginning, and are asked again when no other answers.
/// [`with_address_map`](RedisStoreBuilder::with_address_map) is for nodes that clients reach by
/// other addresses than the nodes give. There is one database, number 0.
///
/// The tag `0` in the names of companion records becomes the smallest number that puts them into
/// the slot of their lock, whatever the key holds. There is a counter for each namespace and slot:
/// fencing tokens of one lock grow, those of two have no order. A hash tag of the key's own works
/// as usual: `cart:{t7}` and `order:{t7}` are in one slot, so their commands share a call, which is
/// how to be fast on a cluster. A key of `key!` has the tags of its template, never one of a value.
/// Waiters listen to a sharded channel for each slot. A subscription is kept for as long as its
/// connection, so a client has one for each namespace and slot that a task of it ever waited in. A
/// connection with more than 4,096 of them, half of which had no waiter for a minute, is replaced.
/// Where a node takes no subscription, or answers none, the waiters for its locks poll.
///
/// While a *slot moves* to another node, key by key, held leases are renewed, but claims wait until
/// the lock's keys are together again: milliseconds if the slot holds locks alone. A release then
/// frees the lock after 100 ms without its queue, and the next waiter finds it free by itself. In a
/// move that gets stuck, claims fail as unavailable. Fencing tokens grow over moves, because the
/// counter moves as well. What moves is confirmed by no replica: if the master that a slot has
/// moved to fails before its replica has the keys, locks are lost that replicas had confirmed where
/// the slot was. So order no failover right behind a move.
///
/// When a *master fails*, its replica takes over after the node timeout and a moment. Exclusion has
/// the same limits as [with Sentinel](#sentinel): a grant that the replica did not receive is lost,
/// and so may be a renewal or a release, unless
/// [`with_replica_acks`](RedisStoreBuilder::with_replica_acks) is used. A master that is cut off
/// from the others stops by itself after the node timeout. Waiters keep their places if the replica
/// received them.
///
/// Advice:
///
/// - A ttl of 1.5 × (`cluster-node-timeout` + 2 s) or more, so that a lease outlasts the failover
///   of its master: two thirds of it are left when a renewal is due. With the default node timeout
///   of 15 s that is 26 s, so the default ttl of 10 s is too short there; a node timeout of 4 s is
///   short enough for it.
/// - Synchronised clocks. Replicas keep the time at which a lock expires, not how much is left, so
///   after a failover a lease ends by the clock of the new master: one that is ahead of the old
///   one's ends leases early. And fencing tokens follow the clock of a master that takes over
///   without the counter.
/// - What must not happen twice checks the fencing token, or a database constraint, all the same.
///
/// # What it relies on
///
/// One primary that does not forget unexpired keys. A failover to a replica may lose the latest
/// grants, and any eviction policy but `noeviction` may drop locks when the memory is full; the
/// start-up check warns of the latter. Fencing tokens keep growing through both. Redis 6.2 does not
/// apply `min-replicas-to-write` to scripts, so it grants locks without replicas.
///
/// # Examples
///
/// ```no_run
/// use lock_core::{LockClient, store::RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// LockClient::builder(store).with_namespace("shop").build()?.install()?;
/// # Ok(()) }
/// ```
pub struct RedisStore {
    server: Server<Parked>,
    waits: Waits,
}

impl RedisStore {
    /// A store on the server at `endpoint`, or on the one that the sentinels name; it is called
    /// `label` in messages.
    fn new(
        endpoint: Endpoint,
        sentinels: Option<Sentinels>,
        label: String,
        timeouts: Timeouts,
        acks: Option<ReplicaAcks>,
    ) -> Self {
        let (mailboxes, in_doubt) = (Arc::<Mailboxes>::default(), Arc::<InDoubt<_>>::default());
        let incoming =
            Incoming { mailboxes: Arc::clone(&mailboxes), in_doubt: Arc::clone(&in_doubt) };
        let connection = Connection::new(endpoint, sentinels, label, timeouts, acks, incoming);
        let server = Server::new(Servers::One(connection), in_doubt);
        Self { server, waits: Waits::new(mailboxes) }
    }

    /// A store on a cluster.
    #[cfg(feature = "redis-cluster")]
    fn on_cluster(settings: cluster::ClusterSettings) -> Self {
        let (mailboxes, in_doubt) = (Arc::<Mailboxes>::default(), Arc::<InDoubt<_>>::default());
        let cluster = cluster::Cluster::new(settings, |cluster| wait::IncomingFromCluster {
            mailboxes: Arc::clone(&mailboxes),
            in_doubt: Arc::clone(&in_doubt),
            cluster,
        });
        let server = Server::new(Servers::Cluster(cluster), in_doubt);
        Self { server, waits: Waits::new(mailboxes) }
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
        let replies = join_all(renewals.iter().map(|renewal| self.server.renew(renewal)));
        Box::pin(async move {
            let replies = replies.await;
            self.waits.listen_for_forced_releases(&self.server, renewals);
            replies
        })
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        // One attempt, whatever happens to it: the client counts attempts to tell what a repeated
        // one means.
        Box::pin(self.server.release(release))
    }

    fn capabilities(&self) -> Capabilities {
        let servers = self.server.servers();
        let survives = if servers.needs_acks() {
            Survives::FailoverAcknowledged
        } else if servers.have_replicas() {
            Survives::FailoverMostly
        } else {
            Survives::Restart
        };
        Capabilities::none().with_fair().with_fencing().with_survives(survives)
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn run_on(&self, runtime: &Handle) {
        match self.server.servers() {
            Servers::One(connection) => connection.run_on(runtime),
            Servers::Cluster(cluster) => cluster.run_on(runtime),
        }
    }

    fn set_connection_name(&self, name: &str) {
        match self.server.servers() {
            Servers::One(connection) => connection.set_name(name.to_owned()),
            Servers::Cluster(cluster) => cluster.set_name(name),
        }
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connection = match self.server.servers() {
            Servers::One(connection) => connection,
            Servers::Cluster(cluster) => return f.write_str(cluster.label()),
        };
        f.write_str(connection.label())?;
        match connection.master() {
            Some(address) => write!(f, " (now {address})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in doubt: it names tokens.
        let mut debug = f.debug_struct("RedisStore");
        match self.server.servers() {
            Servers::One(connection) => debug.field("connection", connection),
            Servers::Cluster(cluster) => debug.field("cluster", &cluster.label()),
        };
        debug.finish_non_exhaustive()
    }
}
