//! `redlock`, here with one server.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redlock::{Lock, RedLock};

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "redlock",
    package: "redlock",
    about: "polls at random intervals of up to 200 ms; blocks its thread, so it runs on tokio's \
        blocking pool; opens a connection per command; no fencing token, no renewal.",
    plain: &["set"],
    waits: true,
    renews: false,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(ready(connect(config))),
};

struct Redlock {
    manager: Arc<RedLock>,
    ttl: Duration,
}

fn connect(config: &Config) -> Arc<dyn Peer> {
    let manager = Arc::new(RedLock::new(vec![config.url.as_str()]));
    Arc::new(Redlock { manager, ttl: config.ttl })
}

/// The parts of a lock that can leave the thread that acquired it.
struct Held {
    resource: Vec<u8>,
    val: Vec<u8>,
    validity_time: usize,
}

impl Peer for Redlock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (manager, resource) = (Arc::clone(&self.manager), key.as_bytes().to_vec());
            let ttl_ms = self.ttl.as_millis() as usize;
            let acquire = move || loop {
                if let Some(lock) = manager.lock(&resource, ttl_ms).unwrap() {
                    let Lock { resource, val, validity_time, lock_manager: _ } = lock;
                    return Held { resource, val, validity_time };
                }
            };
            let held = tokio::task::spawn_blocking(acquire).await.unwrap();
            body.await;
            let manager = Arc::clone(&self.manager);
            let release = move || {
                let Held { resource, val, validity_time } = held;
                manager.unlock(&Lock { resource, val, validity_time, lock_manager: &manager });
            };
            tokio::task::spawn_blocking(release).await.unwrap();
        })
    }
}
