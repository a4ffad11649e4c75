//! `lock-core`, through its public API: with a fencing token, as it is by default, and without one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};

use super::{Body, Contender, Kind, Terms};

pub(super) static FENCED: Kind = Kind {
    name: super::FENCED,
    package: "lock-core",
    about: "ours, with its defaults: renewed, and a fencing token on every grant. Waits in line.",
    plain: &[],
    waits: true,
    renews: true,
    peer: false,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms, LockOptions::new())),
};

pub(super) static UNFENCED: Kind = Kind {
    name: super::UNFENCED,
    about: "ours, without fencing tokens, as all the others are. Waits in line. Its commands under contention are an upper bound: SETs of scripts are counted with its own.",
    plain: &["set"],
    connect: |terms| Box::pin(connect(terms, LockOptions::new().without_fencing())),
    ..FENCED
};

struct Ours {
    client: LockClient,
}

async fn connect(terms: &Terms, options: LockOptions) -> Arc<dyn Contender> {
    let store = RedisStore::connect(terms.url.as_str()).await.unwrap();
    let options = options.with_ttl(terms.ttl).wait_forever();
    Arc::new(Ours { client: LockClient::builder(store).with_defaults(options).build().unwrap() })
}

impl Contender for Ours {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.client.mutex(key).lock().await.unwrap();
            body.await;
            guard.release().await.unwrap();
        })
    }
}
