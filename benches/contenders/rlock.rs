//! `rlock`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rlock::AcquireOptions;
use rlock::async_lock::RLock;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "rlock",
    package: "rlock",
    about: "polls every 100 ms; no fence; renewed by a task per lock.",
    plain: &["set"],
    waits: true,
    renews: true,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms)),
};

struct Rlock {
    manager: RLock,
    options: AcquireOptions,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    Arc::new(Rlock {
        manager: RLock::new(terms.url.as_str()).await.unwrap(),
        options: AcquireOptions::builder().ttl(terms.ttl).build().unwrap(),
    })
}

impl Contender for Rlock {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let acquire = self.manager.acquire_mutex_with_options(key, self.options.clone());
            let mut guard = acquire.await.unwrap();
            body.await;
            guard.release().await.unwrap();
        })
    }
}
