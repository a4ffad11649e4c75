//! The limit: the two commands that any lock on one Redis needs, on a bare connection. It cannot wait.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::Script;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::{Body, Contender, Kind, Terms};

pub(super) static KIND: Kind = Kind {
    name: super::RAW,
    package: "redis",
    about: "`SET NX PX` and a compare-and-delete script on a bare `MultiplexedConnection`: the limit. Does not wait, so it has no contended rows.",
    plain: &["set"],
    waits: false,
    renews: false,
    peer: false,
    least_ttl: Duration::ZERO,
    connect: |terms| Box::pin(connect(terms)),
};

struct Raw {
    connection: MultiplexedConnection,
    release: Script,
    ttl_ms: u64,
}

async fn connect(terms: &Terms) -> Arc<dyn Contender> {
    let client = redis::Client::open(terms.url.as_str()).unwrap();
    Arc::new(Raw {
        connection: client.get_multiplexed_async_connection().await.unwrap(),
        release: Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
        ),
        ttl_ms: terms.ttl.as_millis() as u64,
    })
}

impl Contender for Raw {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let token = Uuid::new_v4().to_string();
            let mut set = redis::cmd("SET");
            set.arg(key).arg(&token).arg("NX").arg("PX").arg(self.ttl_ms);
            let taken: Option<String> = set.query_async(&mut connection).await.unwrap();
            assert!(taken.is_some(), "the key is taken");
            body.await;
            let mut release = self.release.key(key);
            let freed: u64 = release.arg(&token).invoke_async(&mut connection).await.unwrap();
            assert_eq!(freed, 1, "the key was lost");
        })
    }
}
