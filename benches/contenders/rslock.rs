//! `rslock`: Redlock, here on one server.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rslock::LockManager;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: super::RSLOCK,
    package: "rslock",
    about: "polls, with a random pause of up to 200 ms; no fence, no renewal outside of `using`.",
    plain: &["set"],
    waits: true,
    renews: false,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(ready(connect(terms))),
};

struct Rslock {
    manager: LockManager,
    ttl: Duration,
}

fn connect(terms: &Terms) -> Arc<dyn Contender> {
    Arc::new(Rslock { manager: LockManager::new(vec![terms.url.as_str()]), ttl: terms.ttl })
}

impl Contender for Rslock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.manager.acquire(key, self.ttl).await.unwrap();
            body.await;
            guard.release().await;
        })
    }
}
