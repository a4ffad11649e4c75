//! A part of the cluster cannot be reached: the rest goes on.

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient};
use lock_testkit::{Proxy, RedisCluster, RedisServer, alone, client, eventually, ms, within};

use crate::{partial, shared};

/// A node and its replica are gone, whichever it is: `connect` succeeds, locks on the others are
/// served, and those on this one are an error that names it.
#[tokio::test]
async fn connect_needs_no_particular_node() {
    let _alone = alone().await;
    for away in 0..3 {
        let mut cluster = partial().await;
        for server in [away + 3, away] {
            cluster.server_mut(server).kill();
        }
        let connecting = RedisStore::connect(cluster.url());
        let (store, took) = within("a connection", ms(20_000), connecting).await;
        assert!(took < ms(5_000), "{away}: {took:?}");
        let client = LockClient::builder(store.unwrap()).build().unwrap();
        let there = (away + 1) % 3;
        let guard = client.mutex(cluster.key_on(there, "k")).lock().await.unwrap();
        let error = client.mutex(cluster.key_on(away, "k")).try_lock().await.unwrap_err();
        let address = format!("127.0.0.1:{}", cluster.server(away).port());
        assert!(error.is_unavailable() && error.to_string().contains(&address), "{away}: {error}");
        assert!(client.missing_permissions().await.unwrap().is_empty());
        guard.release().await.unwrap();
    }
}

/// A list that lacks the locks of a node would look like one without. The error says which node it
/// is, and the other nodes are asked as well.
#[tokio::test]
async fn list_without_a_node_is_an_error_that_names_it() {
    let _alone = alone().await;
    let mut cluster = partial().await;
    let client = client(&cluster.url()).await;
    let guard = client.mutex(cluster.key_on(0, "k")).lock().await.unwrap();
    assert_eq!(client.list(10).await.unwrap().entries.len(), 1);
    cluster.server(5).pause();
    cluster.server_mut(2).kill();
    let (error, took) = within("an answer", ms(10_000), client.list(10)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let lacking = format!("would lack the locks on redis://127.0.0.1:{}", cluster.server(2).port());
    assert!(error.to_string().contains(&lacking), "{error}");
    assert!(took < ms(5_000), "{took:?}");
    // One that is full without the node is as good as any that is cut.
    assert_eq!(client.list(1).await.unwrap().entries.len(), 1);
    guard.release().await.unwrap();
    cluster.server(5).resume();
}

/// An address of the URL leads to a server that is no node any more, while the nodes cannot be
/// reached for a moment: that is no reason to give up a wait.
#[tokio::test]
async fn seed_that_is_no_node_ends_no_wait() {
    let cluster = shared().await;
    let (other, proxy) = (RedisServer::start(), Proxy::to(cluster.server(1)));
    proxy.turn_away(true);
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", other.port(), proxy.port());
    let client = LockClient::builder(RedisStore::builder(url).connect_lazy().unwrap());
    let client = client.build().unwrap();
    let error = client.mutex("part-away").try_lock().await.unwrap_err();
    assert!(error.is_unavailable() && error.is_retryable(), "{error:?}");
    let waiting = tokio::spawn(client.mutex("part-away").wait_forever().lock());
    let asked = || other.calls("time") > 1 && proxy.connections() > 1;
    eventually("both are asked again", ms(10_000), asked).await;
    assert!(!waiting.is_finished());
    proxy.turn_away(false);
    let (guard, _) = within("the lock", ms(10_000), waiting).await;
    guard.unwrap().unwrap().release().await.unwrap();
}

/// More locks of a node than releases are sent at a time are released while the node is away.
/// Those on other nodes are released all the same.
#[tokio::test]
async fn releases_at_a_node_that_is_away_delay_no_others() {
    const LOCKS: usize = 1_300;
    let _alone = alone().await;
    let cluster = partial().await;
    let client = client(&cluster.url()).await;
    let ttl = ms(120_000);
    let there = cluster.key_on(1, "k");
    let held = client.mutex(there.clone()).with_ttl(ttl).lock().await.unwrap();
    let prefix = cluster.key_on(0, "x");
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        // The braces put all into one slot.
        let key = format!("{number}:{{lock:{prefix}}}");
        guards.push(client.mutex(key).with_ttl(ttl).lock().await.unwrap());
    }
    for server in [3, 0] {
        cluster.server(server).pause();
    }
    drop(guards);
    // Some have failed, and are to be sent again.
    let other = client.mutex(prefix).try_lock().await.unwrap_err();
    assert!(other.is_store_failure(), "{other}");
    let freed = Instant::now();
    drop(held);
    let is_free = || !cluster.server(1).has(&format!("lock:{there}"));
    eventually("the lock on the other node is released", ms(20_000), is_free).await;
    println!("released after {:?}", freed.elapsed());
    for server in [3, 0] {
        cluster.server(server).resume();
    }
    within("the others are released", ms(60_000), wait_idle(&client)).await;
}

/// A node without slots takes its first one, and the move takes long. It is dialled once, not after
/// each look at the map, in which it is not.
#[tokio::test]
async fn node_that_takes_its_first_slot_is_dialled_once() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    cluster.empty(5).await;
    let store = RedisStore::builder(cluster.url()).with_request_timeout(ms(10_000));
    let holder = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    let key = cluster.key_on(0, "k");
    // In the same slot.
    let sibling = format!("sibling:{{lock:{key}}}");
    let guard = holder.mutex(key.clone()).with_ttl(ms(60_000)).lock().await.unwrap();
    let migration = cluster.migration(&format!("lock:{key}"), 5);
    migration.step(&format!("lock:{key}"));
    let mut cli = cluster.server(5).connect();
    let mut opened = || {
        let stats: String = cli.run("INFO stats").unwrap();
        let line = stats.lines().find_map(|it| it.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<usize>().unwrap()
    };
    guard.extend(ms(60_000)).await.unwrap();
    let before = opened();
    for ttl in [61_000, 62_000, 63_000] {
        // Its keys are on two nodes, so the map is fetched.
        let error = holder.mutex(sibling.clone()).try_lock().await.unwrap_err();
        assert!(error.to_string().contains("on its way"), "{error}");
        guard.extend(ms(ttl)).await.unwrap();
    }
    assert_eq!(opened() - before, 0, "dialled again");
    migration.finish();
    guard.release().await.unwrap();
}
