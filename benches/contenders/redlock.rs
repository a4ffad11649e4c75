//! `redlock`, here on one server.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redlock::{Lock, RedLock};

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "redlock",
    package: "redlock",
    about: "polls, with a random pause of up to 200 ms; blocks its thread, so it runs on the blocking pool; dials a connection per command; no fence, no renewal.",
    plain: &["set"],
    waits: true,
    renews: false,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(ready(connect(terms))),
};

struct Redlock {
    manager: Arc<RedLock>,
    ttl: Duration,
}

fn connect(terms: &Terms) -> Arc<dyn Contender> {
    let manager = Arc::new(RedLock::new(vec![terms.url.as_str()]));
    Arc::new(Redlock { manager, ttl: terms.ttl })
}

/// What remains of a lock once it left the thread that took it.
struct Held {
    resource: Vec<u8>,
    val: Vec<u8>,
    validity_time: usize,
}

impl Contender for Redlock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (manager, resource) = (Arc::clone(&self.manager), key.as_bytes().to_vec());
            let ttl_ms = self.ttl.as_millis() as usize;
            let take = move || loop {
                if let Some(lock) = manager.lock(&resource, ttl_ms).unwrap() {
                    let Lock { resource, val, validity_time, lock_manager: _ } = lock;
                    return Held { resource, val, validity_time };
                }
            };
            let held = tokio::task::spawn_blocking(take).await.unwrap();
            body.await;
            let manager = Arc::clone(&self.manager);
            let give_back = move || {
                let Held { resource, val, validity_time } = held;
                manager.unlock(&Lock { resource, val, validity_time, lock_manager: &manager });
            };
            tokio::task::spawn_blocking(give_back).await.unwrap();
        })
    }
}
