//! `async-redis-lock`.

use std::sync::Arc;
use std::time::Duration;

use async_redis_lock::{Locker, Options};
use futures_util::future::BoxFuture;

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "async-redis-lock",
    package: "async-redis-lock",
    about: "polls every 100 ms; no fencing token; renewed by a task per lock.",
    plain: &[],
    waits: true,
    renews: true,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config)),
};

struct AsyncRedisLock {
    locker: Locker,
    options: Options,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    Arc::new(AsyncRedisLock {
        locker: Locker::from_redis_url(&config.url).await.unwrap(),
        // Its docs recommend a third of the ttl. By default it gives up after a second.
        options: Options::new().ttl(config.ttl).extend(config.ttl / 3).timeout(None),
    })
}

impl Peer for AsyncRedisLock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let lock = self.locker.acquire_with_options(&self.options, key).await.unwrap();
            body.await;
            lock.release().await.unwrap();
        })
    }
}
