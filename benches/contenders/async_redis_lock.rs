//! `async-redis-lock`.

use std::sync::Arc;
use std::time::Duration;

use async_redis_lock::{Locker, Options};
use futures_util::future::BoxFuture;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "async-redis-lock",
    package: "async-redis-lock",
    about: "polls every 100 ms; no fence; renewed by a task per lock.",
    plain: &[],
    waits: true,
    renews: true,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms)),
};

struct AsyncRedisLock {
    locker: Locker,
    options: Options,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    Arc::new(AsyncRedisLock {
        locker: Locker::from_redis_url(&terms.url).await.unwrap(),
        // It recommends a third of the ttl, and gives up after a second unless told otherwise.
        options: Options::new().ttl(terms.ttl).extend(terms.ttl / 3).timeout(None),
    })
}

impl Contender for AsyncRedisLock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let lock = self.locker.acquire_with_options(&self.options, key).await.unwrap();
            body.await;
            lock.release().await.unwrap();
        })
    }
}
