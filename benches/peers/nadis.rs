//! The lock of `nadis`, the only other crate that notifies its waiters instead of polling.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nadis::client::RedisClient;
use nadis::config::{CompatibilityProfile, RedisConfig};
use nadis::lock::DistributedLock;

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "nadis",
    package: "nadis",
    about: "a release wakes all waiters by pub/sub; each waiter opens its own connection; \
        no fencing token; renewed by a task per lock.",
    plain: &["publish", "pttl"],
    waits: true,
    renews: true,
    third_party: true,
    least_ttl: Duration::from_secs(3),
    connect: |config| Box::pin(connect(config)),
};

struct Nadis {
    locks: DistributedLock,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    let mut client = RedisConfig::new(config.url.as_str(), "bench", CompatibilityProfile::RustV2);
    client.lock.lease_ms = config.ttl.as_millis() as u64;
    Arc::new(Nadis { locks: DistributedLock::new(RedisClient::connect(client).await.unwrap()) })
}

impl Peer for Nadis {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.locks.lock(key, None).await.unwrap();
            body.await;
            guard.unlock().await.unwrap();
        })
    }
}
