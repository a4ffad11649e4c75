//! A Redis value that refuses late holders.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult, Script, ToRedisArgs};

use super::{FencingToken, StaleFence};

static SET_IF_NEWER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("set_if_newer.lua")));

/// Sets `key` to `value`, unless a holder with a larger token has written it. The largest token
/// stands in `fence_key`, which on a cluster must be in the same slot.
///
/// Works on any connection of the `redis` crate, to the lock's server or another. A holder may
/// write more than once.
///
/// # Cancel safety
///
/// If the future is dropped the value may or may not be written; writing it again with the same
/// token is harmless.
///
/// # Errors
///
/// The outer one if Redis fails, if the lease has no fencing token
/// ([`without_fencing`](crate::LockOptions::without_fencing)), or if both keys are the same; the
/// inner one if a newer holder has written.
pub async fn set_if_newer<C: ConnectionLike + Send>(
    connection: &mut C,
    key: &str,
    fence_key: &str,
    value: impl ToRedisArgs,
    token: FencingToken,
) -> RedisResult<Result<(), StaleFence>> {
    if token == FencingToken::NONE {
        let why = "the lease was taken without fencing: it has no token to compare";
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, why)));
    }
    if key == fence_key {
        let why = "the value would overwrite its own fence: `fence_key` must be another key";
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, why)));
    }
    let mut call = SET_IF_NEWER.key(key);
    call.key(fence_key).arg(value).arg(token.get());
    let written: bool = call.invoke_async(connection).await?;
    Ok(if written { Ok(()) } else { Err(StaleFence) })
}
