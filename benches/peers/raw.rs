//! The limit: the two commands that any lock on one Redis needs, on a bare connection. It cannot
//! wait for a held lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::Script;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::peer::{self, Body, Config, Kind, Peer};

pub(super) static KIND: Kind = Kind {
    name: peer::RAW,
    package: "redis",
    about: "`SET NX PX` and a compare-and-delete script on a bare `MultiplexedConnection`: the \
        limit. It cannot wait, so it has no contended rows.",
    plain: &["set"],
    waits: false,
    renews: false,
    third_party: false,
    least_ttl: Duration::ZERO,
    connect: |config| Box::pin(connect(config)),
};

struct Raw {
    connection: MultiplexedConnection,
    release: Script,
    ttl_ms: u64,
}

async fn connect(config: &Config) -> Arc<dyn Peer> {
    let client = redis::Client::open(config.url.as_str()).unwrap();
    Arc::new(Raw {
        connection: client.get_multiplexed_async_connection().await.unwrap(),
        release: Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        ),
        ttl_ms: config.ttl.as_millis() as u64,
    })
}

impl Peer for Raw {
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let token = Uuid::new_v4().to_string();
            let mut set = redis::cmd("SET");
            set.arg(key).arg(&token).arg("NX").arg("PX").arg(self.ttl_ms);
            let acquired: Option<String> = set.query_async(&mut connection).await.unwrap();
            assert!(acquired.is_some(), "the key is already held");
            body.await;
            let mut release = self.release.key(key);
            let deleted: u64 = release.arg(&token).invoke_async(&mut connection).await.unwrap();
            assert_eq!(deleted, 1, "the key was lost");
        })
    }
}
