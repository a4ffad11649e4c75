//! The start-up check: whether a server can keep locks, and whether this user has the permissions.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::cluster::Cluster;
use super::error::{self, Fault};
use super::keys::{self, Tag};
use super::servers::{Servers, no_master};
use super::transport::{Command, Connection, Live, Operation, QueuePlace};
use crate::error::Error;
use crate::runtime;
use crate::store::{Name, Token};
use crate::time::Instant;

/// Checks once that the server can keep locks, and warns of eviction. The dial refuses a replica.
///
/// Of a cluster one node is checked, whichever can be reached and serves its slots: users and
/// settings are meant to be the same on all. What is wrong with another node is an error of the
/// calls for its locks.
pub(super) async fn check(servers: &Servers) -> Result<(), Error> {
    runtime::current()?;
    match servers {
        Servers::One(connection) => {
            let live = connection.live(None).await?;
            check_server(connection, live, Tag::SINGLE, false).await
        }
        Servers::Cluster(cluster) => check_cluster(cluster).await,
    }
}

async fn check_cluster(cluster: &Cluster) -> Result<(), Error> {
    let masters = cluster.masters().await?;
    if cluster.uncovered() > 0 {
        tracing::warn!(
            target: "lock_core", server = cluster.label(), slots = cluster.uncovered(),
            "no node of the cluster is known to serve some of the slots: locks in these are refused"
        );
    }
    let mut opening: FuturesUnordered<_> =
        masters.iter().map(|(it, tag)| async move { (it, *tag, it.live(None).await) }).collect();
    let mut told = None::<Error>;
    while let Some((connection, tag, live)) = opening.next().await {
        let error = match live {
            Ok(live) => match check_server(connection, live, tag, true).await {
                Err(error) if !error.is_permanent() => error,
                outcome => return outcome,
            },
            Err(fault) => fault.into(),
        };
        // What a server says of itself is worth more than that there is none.
        if told.as_ref().is_none_or(|told| !told.is_permanent()) {
            told = Some(error);
        }
    }
    Err(told.unwrap_or_else(|| no_master(cluster).into()))
}

/// Checks one server. `tag` is one of the companions that it has.
async fn check_server(
    connection: &Arc<Connection>,
    live: Arc<Live>,
    tag: Tag,
    is_node: bool,
) -> Result<(), Error> {
    if let Some(policy) = live.info.evicts_by() {
        tracing::warn!(
            target: "lock_core", policy,
            "this server may evict locks when its memory is full: use `noeviction`"
        );
    }
    connection.clock().warn_if_far(connection.label());
    // In a task of its own, which removes what it made even if the caller is gone.
    let checking = check_permissions(Arc::clone(connection), live, tag, is_node);
    let checked = connection.spawn(checking)?;
    checked.await.unwrap_or_else(|gone| Err(connection.task_is_gone(gone)))
}

/// Takes, renews and hands on a lock whose name cannot be a user's. That needs all permissions
/// but those of pub/sub.
async fn check_permissions(
    connection: Arc<Connection>,
    live: Arc<Live>,
    tag: Tag,
    is_node: bool,
) -> Result<(), Error> {
    // By the tag in the namespace, all records are in one slot of a cluster.
    let (namespace, token, next) = (keys::check_namespace(tag), Token::fresh()?, Token::fresh()?);
    let name = Name::internal(&namespace, token.encode(&mut [0; Token::TEXT_LEN]));
    let member: Arc<str> = format!("{}:1000:~", next.encode(&mut [0; Token::TEXT_LEN])).into();
    let call_until = connection.timeouts().call_until();
    let void_after = connection.clock().latest_at(call_until, live.generation);
    let claim = |place| Operation::Claim { ttl_ms: 1_000, void_after, place };
    let release = |member| Operation::Release { member, hold_ms: 0 };
    let delete = async |key: &str| live.send(redis::cmd("DEL").arg(key)).await.map(drop);
    let execute = async |token, operation| {
        let command = Command { name: name.clone(), tag, token, operation };
        loop {
            match live.batcher.reply(live.batcher.submit(command.clone(), None)).await?.unconfirmed
            {
                None => return Ok(()),
                // A replica may be late once. The server waits for it before it replies.
                Some(error) if !error.is_permanent() && Instant::now() < call_until => {}
                Some(error) => return Err(Fault::Unconfirmed(error)),
            }
        }
    };
    let outcome = async {
        execute(token, claim(None)).await?;
        execute(token, Operation::Renew { ttl_ms: 2_000, cut: None }).await?;
        let place = QueuePlace { member: Arc::clone(&member), keep_ms: 1_000 };
        execute(next, claim(Some(place.clone()))).await?;
        execute(next, claim(Some(place))).await?;
        // Now the lock is free and has a queue: the next claim hands it on.
        delete(name.as_str()).await?;
        execute(token, claim(None)).await?;
        execute(token, release(Some(Arc::clone(&member)))).await?;
        execute(next, release(None)).await
    };
    let outcome = outcome.await;
    // Also after a failure: unlike the lock, a counter never expires.
    let mut key = String::new();
    let cleaned = delete(keys::counter(name.namespace(), tag, &mut key)).await;
    match outcome.and(cleaned) {
        Ok(()) => Ok(()),
        // The user is confined to another namespace, which is not known here.
        Err(Fault::Refused(error)) if error::is_about_a_key(&error) => Ok(()),
        // The slot of these records moves, or has just moved. Nothing was forbidden so far.
        Err(fault) if is_node && fault.is_in_another_place() => Ok(()),
        // Whatever it did, no user's lock is affected.
        Err(Fault::Refused(error)) => Err(Error::refused(error, true)),
        Err(fault) => Err(fault.into()),
    }
}
