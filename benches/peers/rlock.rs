//! `rlock`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rlock::AcquireOptions;
use rlock::async_lock::RLock;

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "rlock",
    package: "rlock",
    about: "polls every 100 ms; no fencing token; renewed by a task per lock.",
    plain: &["set"],
    waits: true,
    renews: true,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config)),
};

struct Rlock {
    manager: RLock,
    options: AcquireOptions,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    Arc::new(Rlock {
        manager: RLock::new(config.url.as_str()).await.unwrap(),
        options: AcquireOptions::builder().ttl(config.ttl).build().unwrap(),
    })
}

impl Peer for Rlock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let acquire = self.manager.acquire_mutex_with_options(key, self.options.clone());
            let mut guard = acquire.await.unwrap();
            body.await;
            guard.release().await.unwrap();
        })
    }
}
