//! A master with replicas under three sentinels: what a client does when another server becomes the
//! master, and when the sentinels are away or wrong. Each test cites the public reports.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod failover;
mod refusals;
mod replica_acks;
mod sentinels_away;

use std::time::Instant;

use lock_core::{LockClient, LockConfig};
use lock_testkit::{RedisServer, Sentinels, alone, eventually, ms};

/// Whether `client` has a connection to `server`.
fn is_on(client: &LockClient, server: &RedisServer) -> bool {
    server.cli::<String>("CLIENT LIST").contains(&client.id().to_string())
}

/// When the first sentinel told that another server than `old` is the master.
async fn told(group: &Sentinels, old: usize) -> Instant {
    eventually("a sentinel names another master", ms(30_000), || group.left(old) > 0).await;
    Instant::now()
}

#[tokio::test]
async fn configuration_leads_to_the_master() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let config = format!(r#"{{ "url": "{}", "namespace": "shop" }}"#, group.url());
    let config: LockConfig = serde_json::from_str(&config).unwrap();
    let client = config.connect().await.unwrap().build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(group.server(0).has("shop:k"));
    guard.release().await.unwrap();
}
