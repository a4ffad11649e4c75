//! A fenced write to Redis, as an application would do it.

use std::sync::LazyLock;

use lock_core::FencingToken;
use lock_core::fencing::{SET_IF_NEWER, StaleFence, check_advanced};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, ToRedisArgs};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SET_IF_NEWER));

/// Sets `key` to `value` by [`SET_IF_NEWER`].
pub async fn set_if_newer(
    connection: &mut MultiplexedConnection,
    key: &str,
    fence_key: &str,
    value: impl ToRedisArgs,
    token: FencingToken,
) -> RedisResult<Result<(), StaleFence>> {
    let mut call = SCRIPT.key(key);
    call.key(fence_key).arg(value).arg(token.get());
    Ok(check_advanced(call.invoke_async(connection).await?))
}
