//! `rslock`: Redlock, here with one server.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rslock::LockManager;

use super::peer::{self, Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: peer::RSLOCK,
    package: "rslock",
    about: "polls at random intervals of up to 200 ms; no fencing token; no \
        renewal except in `using`.",
    plain: &["set"],
    waits: true,
    renews: false,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(ready(connect(config))),
};

struct Rslock {
    manager: LockManager,
    ttl: Duration,
}

fn connect(config: &Config) -> Arc<dyn Peer> {
    Arc::new(Rslock { manager: LockManager::new(config.urls()), ttl: config.ttl })
}

impl Peer for Rslock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.manager.acquire(key, self.ttl).await.unwrap();
            body.await;
            guard.release().await;
        })
    }
}
