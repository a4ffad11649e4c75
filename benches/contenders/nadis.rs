//! The lock of `nadis`, the one peer that is woken instead of polling.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nadis::client::RedisClient;
use nadis::config::{CompatibilityProfile, RedisConfig};
use nadis::lock::DistributedLock;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "nadis",
    package: "nadis",
    about: "a release wakes all waiters by pub/sub, each of which dials a connection of its own; no fence; renewed by a task per lock.",
    plain: &["publish", "pttl"],
    waits: true,
    renews: true,
    peer: true,
    least_ttl: Duration::from_secs(3),
    connect: |terms| Box::pin(connect(terms)),
};

struct Nadis {
    locks: DistributedLock,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    let mut config = RedisConfig::new(terms.url.as_str(), "bench", CompatibilityProfile::RustV2);
    config.lock.lease_ms = terms.ttl.as_millis() as u64;
    Arc::new(Nadis { locks: DistributedLock::new(RedisClient::connect(config).await.unwrap()) })
}

impl Contender for Nadis {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.locks.lock(key, None).await.unwrap();
            body.await;
            guard.unlock().await.unwrap();
        })
    }
}
