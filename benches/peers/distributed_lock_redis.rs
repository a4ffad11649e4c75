//! `distributed-lock-redis`: Redlock over fred, here on one server.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::prelude::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::RedisLockProvider;
use futures_util::future::BoxFuture;

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "distributed-lock-redis",
    package: "distributed-lock-redis",
    about: "never waits on a single server, whatever its timeout, so this benchmark retries every \
        100 ms; no fencing token; renewed by a task per lock. Uses a new lock object for each \
        section, because the token belongs to the object.",
    plain: &["set"],
    waits: true,
    renews: true,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config)),
};

/// The default polling interval of `rlock` and `async-redis-lock`.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

struct DistributedLockRedis {
    provider: RedisLockProvider,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    let provider = RedisLockProvider::builder()
        .url(config.url.as_str())
        .expiry(config.ttl)
        .extension_cadence(config.ttl / 3)
        .min_validity(config.ttl * 9 / 10);
    Arc::new(DistributedLockRedis { provider: provider.build().await.unwrap() })
}

impl Peer for DistributedLockRedis {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let lock = self.provider.create_lock(key);
            let handle = loop {
                if let Some(handle) = lock.try_acquire().await.unwrap() {
                    break handle;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            };
            body.await;
            handle.release().await.unwrap();
        })
    }
}
