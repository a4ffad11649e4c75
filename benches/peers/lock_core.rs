//! `lock-core` through its public API: with fencing tokens, the default, and without them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};

use super::peer::{self, Body, Config, Kind, Peer};

pub(super) static FENCED: Kind = Kind {
    name: peer::FENCED,
    package: "lock-core",
    about: "this crate with its defaults: renewed, a fencing token per grant; waiters queue.",
    plain: &[],
    waits: true,
    renews: true,
    third_party: false,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config, LockOptions::new())),
};

pub(super) static UNFENCED: Kind = Kind {
    name: peer::UNFENCED,
    about: "this crate without fencing tokens, like all other crates here; waiters queue.",
    connect: |config| Box::pin(connect(config, LockOptions::new().without_fencing())),
    ..FENCED
};

struct LockCore {
    client: LockClient,
}

async fn connect(config: &Config, options: LockOptions) -> Arc<dyn Peer> {
    let store = RedisStore::connect(config.url.as_str()).await.unwrap();
    let options = options.with_ttl(config.ttl).wait_forever();
    let client = LockClient::builder(store).with_defaults(options).build().unwrap();
    Arc::new(LockCore { client })
}

impl Peer for LockCore {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let guard = self.client.mutex(key.to_owned()).lock().await.unwrap();
            body.await;
            guard.release().await.unwrap();
        })
    }
}
