//! `lock-core` through its public API, with its defaults.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::store::{RedisStore, Store};
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
    connect: |config| Box::pin(connect(config)),
};

/// Only for servers with a replica, so not among those that every scenario measures.
pub(super) static FENCED_WITH_ACKS: Kind = Kind {
    name: peer::FENCED_WITH_ACKS,
    connect: |config| Box::pin(connect_with_acks(config)),
    ..FENCED
};

struct LockCore {
    client: LockClient,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    client_on(lock_core::store::connect(&config.url).await.unwrap(), config)
}

async fn connect_with_acks(config: &Config) -> Arc<dyn Peer> {
    let store = RedisStore::builder(config.url.as_str()).with_replica_acks(1);
    client_on(Arc::new(store.connect().await.unwrap()), config)
}

fn client_on(store: Arc<dyn Store>, config: &Config) -> Arc<dyn Peer> {
    let options = LockOptions::new().with_ttl(config.ttl).wait_forever();
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
