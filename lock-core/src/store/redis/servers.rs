//! One server or a cluster: where the command for a lock is sent.
//!
//! What sends a command knows neither nodes nor slots: it takes a [`Route`], sends the command to
//! the next [`Hop`], and asks the route what a failure means: whether to send it again. What else
//! is done with servers differs for a cluster, and matches on [`Servers`]: waiters subscribe their
//! inboxes, and the store looks at its connections for operators, checks and names them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::{Cmd, Value};

use super::cluster::{Cluster, ClusterRoute, Serving};
use super::error::Fault;
use super::keys::Tag;
use super::transport::{Command, Connection, Live, Reply, Submitted, Timeouts};
use crate::error::{Error, ErrorKind};
use crate::store::Name;
use crate::time::Instant;

/// The servers that have the locks.
pub(super) enum Servers {
    /// One server, or the one that sentinels name.
    One(Arc<Connection>),
    #[cfg_attr(not(feature = "redis-cluster"), allow(dead_code))]
    Cluster(Arc<Cluster>),
}

/// The way of one command.
pub(super) enum Route<'s> {
    One {
        connection: &'s Arc<Connection>,
        /// Whether the command may be sent again if its connection breaks.
        may_repeat: bool,
    },
    /// Boxed, so that a route to one server is small.
    Cluster(Box<ClusterRoute>),
}

/// Where a command is sent now.
pub(super) struct Hop<'r> {
    pub(super) connection: &'r Arc<Connection>,
    pub(super) live: Arc<Live>,
    /// Whether the node has to be asked to serve a slot that it is about to take.
    is_asking: bool,
    /// Of a cluster, tells whether the node still has the slot.
    serving: Option<Serving>,
}

/// For how long a claim or a renewal is tried while its keys are on two nodes. A wait reports the
/// failure then, and tries again.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a release: then the lock is freed without its queue.
const PATIENCE_OF_RELEASE: Duration = Duration::from_millis(100);

impl Servers {
    /// The way of a claim, a renewal or a question about `name`, which may be sent twice: claims
    /// and renewals name their token.
    pub(super) fn route(&self, name: &Name) -> Route<'_> {
        match self {
            Self::One(connection) => Route::One { connection, may_repeat: true },
            Self::Cluster(cluster) => Route::Cluster(cluster.route(name, PATIENCE, true)),
        }
    }

    /// The way of a release, or of an order, which is sent once: a repeated one has another reply.
    pub(super) fn route_once(&self, name: &Name) -> Route<'_> {
        match self {
            Self::One(connection) => Route::One { connection, may_repeat: false },
            Self::Cluster(cluster) => {
                Route::Cluster(cluster.route(name, PATIENCE_OF_RELEASE, false))
            }
        }
    }

    /// The hash tag for companions of `name`.
    pub(super) fn tag(&self, name: &Name) -> Tag {
        match self {
            Self::One(_) => Tag::SINGLE,
            Self::Cluster(cluster) => cluster.tag(name),
        }
    }

    /// Whether grants of `name` arrive where the lock is now: it may have moved since the channel
    /// was subscribed. Of one server, the connection tells of that.
    pub(super) fn hears(&self, name: &Name) -> bool {
        match self {
            Self::One(_) => true,
            Self::Cluster(cluster) => cluster.hears(name),
        }
    }

    /// An open connection to a server, and the tag of companions that it has.
    pub(super) async fn any(&self) -> Result<(Arc<Live>, Tag), Fault> {
        match self {
            Self::One(connection) => Ok((connection.live(None).await?, Tag::SINGLE)),
            Self::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                let opening = masters.iter().map(|(connection, tag)| {
                    Box::pin(async move { Ok::<_, Fault>((connection.live(None).await?, *tag)) })
                });
                match opening.collect::<Vec<_>>() {
                    opening if opening.is_empty() => Err(no_master(cluster)),
                    opening => Ok(select_ok(opening).await?.0),
                }
            }
        }
    }

    /// Whether replicas confirm what is written.
    pub(super) fn needs_acks(&self) -> bool {
        match self {
            Self::One(connection) => connection.needs_acks(),
            Self::Cluster(cluster) => cluster.needs_acks(),
        }
    }

    /// Whether a replica takes over if a server fails.
    pub(super) fn have_replicas(&self) -> bool {
        match self {
            Self::One(connection) => connection.has_sentinels(),
            Self::Cluster(_) => true,
        }
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        match self {
            Self::One(connection) => connection.timeouts(),
            Self::Cluster(cluster) => cluster.timeouts(),
        }
    }
}

/// The nodes that answer know of none that has slots.
pub(super) fn no_master(cluster: &Cluster) -> Fault {
    let what = format!("no node of {} is known to serve any slot", cluster.label());
    Fault::NotSent(Error::plain(ErrorKind::Unavailable, what))
}

impl Route<'_> {
    /// Where to send the command now.
    pub(super) async fn hop(&mut self, until: Option<Instant>) -> Result<Hop<'_>, Fault> {
        match self {
            Self::One { connection, .. } => {
                let live = connection.live(until).await?;
                Ok(Hop { connection, live, is_asking: false, serving: None })
            }
            Self::Cluster(route) => {
                // Boxed, or every future would carry the room for this.
                let (connection, live, serving) = Box::pin(route.next(until)).await?;
                Ok(Hop { connection, live, is_asking: serving.is_none(), serving })
            }
        }
    }

    /// The command ended with `fault`: returns when it is to be sent again, or the fault if it is
    /// not.
    pub(super) async fn after(
        &mut self,
        fault: Fault,
        until: Option<Instant>,
    ) -> Result<(), Fault> {
        match self {
            Self::One { may_repeat, .. } => {
                // A wrong server did nothing, so nothing is in doubt.
                let is_worth_it = matches!(fault, Fault::Broken(_)) || fault.is_by_wrong_server();
                if is_worth_it && std::mem::take(may_repeat) { Ok(()) } else { Err(fault) }
            }
            Self::Cluster(route) => Box::pin(route.after(fault, until)).await,
        }
    }
}

impl Hop<'_> {
    /// Submits a command, which is executed with others that are ready.
    pub(super) fn submit(&self, command: Command, until: Option<Instant>) -> Submitted<'_> {
        let batcher = &self.live.batcher;
        if self.is_asking {
            return Submitted::Alone(Box::pin(batcher.execute_asking(command, until)));
        }
        batcher.submit(command, until)
    }

    /// Waits for the reply to a submitted command. To be polled at once.
    pub(super) fn reply(
        &self,
        submitted: Submitted<'_>,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send {
        self.live.batcher.reply(submitted)
    }

    /// The reply, unless another node is known by now to have the lock. A master that was replaced
    /// replies until it learns of that, and what it grants then does not count. After a slot has
    /// moved, the same command has the same reply where the slot is.
    ///
    /// Of one server, the connection sees to that.
    pub(super) fn unless_replaced<T>(&self, reply: Result<T, Fault>) -> Result<T, Fault> {
        match &self.serving {
            Some(serving) if reply.is_ok() && serving.is_over() => Err(Fault::replaced()),
            _ => reply,
        }
    }

    /// Sends a command other than those that are batched, and waits for its reply.
    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Value, Fault> {
        if self.is_asking { self.live.send_asking(cmd).await } else { self.live.send(cmd).await }
    }
}
