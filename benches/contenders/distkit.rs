//! The lock of `distkit`.

use std::sync::Arc;
use std::time::Duration;

use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex};
use futures_util::future::BoxFuture;
use redis::aio::ConnectionManager;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: "distkit",
    package: "distkit",
    about: "polls every 50 ms; no fence; renewed by a task per lock. A mutex per section, since its token belongs to the mutex.",
    plain: &["set"],
    waits: true,
    renews: true,
    peer: true,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms)),
};

struct Distkit {
    connection: ConnectionManager,
    ttl: Duration,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    let client = redis::Client::open(terms.url.as_str()).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    Arc::new(Distkit { connection, ttl: terms.ttl })
}

impl Contender for Distkit {
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
