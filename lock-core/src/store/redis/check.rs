//! The check at the start: whether a server can keep locks, and this user may ask it to.

use std::sync::Arc;

use super::ask::{Ask, Place};
use super::connection::{Connection, Live};
use super::error::{self, Fault, task_is_gone};
use super::keys;
use crate::error::{Error, ErrorKind};
use crate::runtime::spawn_handle;
use crate::store::Name;
use crate::store::Token;

/// The namespace of the locks that are tried: no user can choose it.
const CHECK: &str = "lock:{0}:check";

/// Checks once that the server can keep locks: refuses a replica, warns of eviction.
pub(super) async fn check(connection: &Arc<Connection>) -> Result<(), Error> {
    let live = connection.live(None).await?;
    let info = match connection.send(&live, &redis::cmd("INFO"), None).await {
        Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
        Err(Fault::Refused(error)) if error::code(&error) == Some("NOPERM") => {
            tracing::debug!(target: "lock_core", "start-up check skipped: INFO is not permitted");
            String::new()
        }
        Err(Fault::Refused(error)) => return Err(Error::refused(error, true)),
        Err(fault) => return Err(fault.into()),
    };
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if field("role").is_some_and(|role| role != "master") {
        return Err(Error::plain(
            ErrorKind::Unavailable,
            format!("{} is a replica: connect to the primary", connection.label()),
        ));
    }
    if field("maxmemory").is_some_and(|most| most != "0")
        && let Some(policy) = field("maxmemory_policy")
        && policy != "noeviction"
    {
        tracing::warn!(
            target: "lock_core", policy,
            "this server may evict locks when its memory is full: use `noeviction`"
        );
    }
    connection.clock().warn_if_far(connection.label());
    // In a task of its own, which removes what it made though nobody waits for it any more.
    let runtime = spawn_handle().ok_or_else(|| Error::of(ErrorKind::NoRuntime))?;
    let checked = runtime.spawn(check_permissions(Arc::clone(connection), live));
    checked.await.unwrap_or_else(|gone| Err(task_is_gone(gone)))
}

/// Takes, renews and hands over a lock whose name cannot be a user's, which needs all permissions but those of pub/sub.
async fn check_permissions(connection: Arc<Connection>, live: Arc<Live>) -> Result<(), Error> {
    let (token, next) = (Token::fresh()?, Token::fresh()?);
    let (mut text, mut next_text) = ([0; Token::TEXT_LEN], [0; Token::TEXT_LEN]);
    let name = Name::internal(CHECK, token.encode(&mut text));
    let member: Arc<str> = format!("{}:1000:~", next.encode(&mut next_text)).into();
    let void_after = connection.clock().latest_at(connection.one_call());
    let claim =
        |token, place| Ask::Claim { name: name.clone(), token, ttl_ms: 1_000, void_after, place };
    let release = |token, member| Ask::Release { name: name.clone(), token, member, hold_ms: 0 };
    let delete =
        async |key: &str| connection.send(&live, redis::cmd("DEL").arg(key), None).await.map(drop);
    let ask = async |ask| connection.ask(&live, ask, None).await.map(drop);
    let outcome = async {
        ask(claim(token, None)).await?;
        ask(Ask::Renew { name: name.clone(), token, ttl_ms: 2_000 }).await?;
        let place = Place { member: Arc::clone(&member), life_ms: 1_000 };
        ask(claim(next, Some(place.clone()))).await?;
        ask(claim(next, Some(place))).await?;
        // Free, with a queue: whoever asks hands it over.
        delete(name.as_str()).await?;
        ask(claim(token, None)).await?;
        ask(release(token, Some(Arc::clone(&member)))).await?;
        ask(release(next, None)).await
    };
    let outcome = outcome.await;
    // Whatever came of it: unlike the lock, a counter never expires.
    let mut counter = String::new();
    let cleaned = delete(keys::counter(CHECK, &mut counter)).await;
    match outcome.and(cleaned) {
        Ok(()) => Ok(()),
        // A user who is confined to another namespace is refused this name; its own is not known here.
        Err(Fault::Refused(error)) if error::is_about_a_key(&error) => Ok(()),
        // No lock of anybody is concerned.
        Err(Fault::Refused(error)) => Err(Error::refused(error, true)),
        Err(fault) => Err(fault.into()),
    }
}
