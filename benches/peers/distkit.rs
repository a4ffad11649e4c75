//! The lock of `distkit`.

use std::sync::Arc;
use std::time::Duration;

use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex};
use futures_util::future::BoxFuture;
use redis::aio::ConnectionManager;

use super::peer::{Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: "distkit",
    package: "distkit",
    about: "polls every 50 ms; no fencing token; renewed by a task per lock. Uses a new mutex for \
        each section, because the token belongs to the mutex.",
    plain: &["set"],
    waits: true,
    renews: true,
    third_party: true,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config)),
};

struct Distkit {
    connection: ConnectionManager,
    ttl: Duration,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    let client = redis::Client::open(config.url.as_str()).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    Arc::new(Distkit { connection, ttl: config.ttl })
}

impl Peer for Distkit {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let name = DistkitRedisKey::new_or_panic(key.replace(':', "-"));
            let options = LockOptions::builder(name, self.connection.clone()).ttl(self.ttl);
            let guard = Mutex::new(options.build()).lock().await.unwrap();
            body.await;
            guard.release().await.unwrap();
        })
    }
}
