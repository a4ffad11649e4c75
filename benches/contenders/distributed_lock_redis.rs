//! `distributed-lock-redis`: Redlock over fred, here on one server.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::prelude::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::RedisLockProvider;
use futures_util::future::BoxFuture;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "distributed-lock-redis",
    package: "distributed-lock-redis",
    about: "does not wait on one server, whatever its timeout: here it is asked again every 100 ms; no fence; renewed by a task per lock. A lock object per section, since its token belongs to the object.",
    plain: &["set"],
    waits: true,
    renews: true,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms)),
};

/// What `rlock` and `async-redis-lock` pause by default.
const PAUSE: Duration = Duration::from_millis(100);

struct DistributedLockRedis {
    provider: RedisLockProvider,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    let provider = RedisLockProvider::builder()
        .url(terms.url.as_str())
        .expiry(terms.ttl)
        .extension_cadence(terms.ttl / 3)
        .min_validity(terms.ttl * 9 / 10);
    Arc::new(DistributedLockRedis { provider: provider.build().await.unwrap() })
}

impl Contender for DistributedLockRedis {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let lock = self.provider.create_lock(key);
            let handle = loop {
                if let Some(handle) = lock.try_acquire().await.unwrap() {
                    break handle;
                }
                tokio::time::sleep(PAUSE).await;
            };
            body.await;
            handle.release().await.unwrap();
        })
    }
}
