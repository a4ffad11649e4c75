//! The start-up check: whether a server can keep locks, and whether this user has the permissions.

use std::sync::Arc;

use super::error::{self, Fault};
use super::keys::{self, Tag};
use super::protocol::Server;
use super::transport::{Command, Connection, Live, Operation, QueuePlace};
use crate::error::Error;
use crate::runtime;
use crate::store::{Name, Token};

/// Checks once that the server can keep locks, and warns of eviction. The dial refuses a replica.
pub(super) async fn check<P>(server: &Server<P>) -> Result<(), Error> {
    runtime::current()?;
    let connection = server.connection();
    let live = connection.live(None).await?;
    if let Some(policy) = live.info.evicts_by() {
        tracing::warn!(
            target: "lock_core", policy,
            "this server may evict locks when its memory is full: use `noeviction`"
        );
    }
    connection.clock().warn_if_far(connection.label());
    // In a task of its own, which removes what it made even if the caller is gone.
    let checked =
        connection.spawn(check_permissions(Arc::clone(connection), live, server.tag()))?;
    checked.await.unwrap_or_else(|gone| Err(connection.task_is_gone(gone)))
}

/// Takes, renews and hands over a lock whose name cannot be a user's. That needs all permissions
/// but those of pub/sub.
async fn check_permissions(
    connection: Arc<Connection>,
    live: Arc<Live>,
    tag: Tag,
) -> Result<(), Error> {
    let (token, next) = (Token::fresh()?, Token::fresh()?);
    let (mut text, mut next_text) = ([0; Token::TEXT_LEN], [0; Token::TEXT_LEN]);
    let namespace = keys::check_namespace(tag);
    let name = Name::internal(&namespace, token.encode(&mut text));
    let member: Arc<str> = format!("{}:1000:~", next.encode(&mut next_text)).into();
    let call_until = connection.timeouts().call_until();
    let void_after = connection.clock().latest_at(call_until);
    let claim = |place| Operation::Claim { ttl_ms: 1_000, void_after, place };
    let release = |member| Operation::Release { member, hold_ms: 0 };
    let delete = async |key: &str| live.send(redis::cmd("DEL").arg(key)).await.map(drop);
    let execute = async |token, operation| {
        let command = Command { name: name.clone(), tag, token, operation };
        live.batcher.execute(command, None).await.map(drop)
    };
    let outcome = async {
        execute(token, claim(None)).await?;
        execute(token, Operation::Renew { ttl_ms: 2_000 }).await?;
        let place = QueuePlace { member: Arc::clone(&member), life_ms: 1_000 };
        execute(next, claim(Some(place.clone()))).await?;
        execute(next, claim(Some(place))).await?;
        // Now the lock is free and has a queue: the next claim hands it over.
        delete(name.as_str()).await?;
        execute(token, claim(None)).await?;
        execute(token, release(Some(Arc::clone(&member)))).await?;
        execute(next, release(None)).await
    };
    let outcome = outcome.await;
    // Also after a failure: unlike the lock, a counter never expires.
    let mut counter = String::new();
    let cleaned = delete(keys::counter(&namespace, tag, &mut counter)).await;
    match outcome.and(cleaned) {
        Ok(()) => Ok(()),
        // The user is confined to another namespace, which is not known here.
        Err(Fault::Refused(error)) if error::is_about_a_key(&error) => Ok(()),
        // Whatever it did, no user's lock is affected.
        Err(Fault::Refused(error)) => Err(Error::refused(error, true)),
        Err(fault) => Err(fault.into()),
    }
}
