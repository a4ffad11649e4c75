//! What a client does when nodes send it elsewhere, or cannot be reached where they say they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::store::RedisStore;
use lock_core::{ErrorKind, LockClient};
use lock_testkit::{Proxy, RedisCluster, alone, client, eventually, ms, within};

use crate::{partial, shared};

/// H8, HA10 (redisson#1577: 150,000 calls in 5 s): two nodes redirect to each other. A claim gives
/// up, a wait goes on without haste, and both end with an error that says what is wrong.
#[tokio::test]
async fn redirections_in_a_circle_are_followed_a_few_times_and_then_paused() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let key = cluster.key_on(0, "k");
    let slot = cluster.slot(&format!("lock:{key}"));
    let client = client(&cluster.url()).await;
    client.mutex(cluster.key_on(1, "other")).lock().await.unwrap().release().await.unwrap();
    for (node, other) in [(0, 1), (1, 0)] {
        let command = format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(other));
        let () = cluster.server(node).cli(&command);
    }
    let moved = || (0..2).map(|node| cluster.server(node).errors("MOVED")).sum::<u64>();
    let before = moved();
    let error = client.mutex(key.clone()).try_lock().await.unwrap_err();
    let tried = moved() - before;
    assert!((2..=6).contains(&tried), "{tried} redirections");
    assert!(error.to_string().contains("redirect to each other"), "{error}");

    let before = moved();
    let locking = client.mutex(key.clone()).with_wait(ms(3_000)).lock();
    let (error, _) = within("the end of the wait", ms(5_000), locking).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    let tried = moved() - before;
    println!("{tried} redirections in 3 s");
    assert!((6..=60).contains(&tried), "{tried} redirections in 3 s");
}

/// H8: no node has the slot. The claim says so at the end of its wait, and locks in other slots are
/// served. When a node takes the slot, so are those.
#[tokio::test]
async fn lock_in_a_slot_without_a_node_is_served_when_a_node_takes_it() {
    let _alone = alone().await;
    let cluster = partial().await;
    let key = cluster.key_on(0, "k");
    let slot = cluster.slot(&format!("lock:{key}"));
    for server in cluster.servers() {
        drop(server.connect().run::<()>(&format!("CLUSTER DELSLOTS {slot}")));
    }
    let client = client(&cluster.url()).await;
    let error = client.mutex(key.clone()).with_wait(ms(700)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("serves slot {slot}")), "{error}");
    let health = client.health().await.unwrap();
    assert!(health.problems.iter().any(|it| it.contains("1 of the slots")), "{health:?}");
    client.mutex(cluster.key_on(1, "other")).lock().await.unwrap().release().await.unwrap();

    let waiting = tokio::spawn(client.mutex(key.clone()).with_wait(ms(20_000)).lock());
    eventually("it tries", ms(5_000), || cluster.server(1).calls("cluster|slots") > 3).await;
    let () = cluster.server(0).cli(&format!("CLUSTER ADDSLOTS {slot}"));
    let (guard, took) = within("the lock", ms(10_000), waiting).await;
    assert!(took < ms(3_000), "{took:?}");
    guard.unwrap().unwrap().release().await.unwrap();
}

/// HA17 (redis-py#3310, redisson#4859): the addresses by which the nodes call themselves cannot be
/// reached, as in containers. With a map of addresses they can; and when the addresses that the map
/// leads to are all gone, the nodes of the URL are asked again.
#[tokio::test]
async fn nodes_are_dialled_where_the_address_map_says_and_seeds_are_asked_again() {
    let cluster = shared().await;
    let proxies: Vec<_> = cluster.servers().iter().map(Proxy::to).collect();
    let ports: Vec<_> = cluster
        .servers()
        .iter()
        .zip(&proxies)
        .map(|(server, proxy)| (server.port(), proxy.port()))
        .collect();
    let is_direct = Arc::new(AtomicBool::new(false));
    let direct = Arc::clone(&is_direct);
    let store = RedisStore::builder(cluster.url()).with_address_map(move |host, port| {
        let mapped = ports.iter().find(|(own, _)| *own == port).map(|(_, proxy)| *proxy);
        let mapped = mapped.filter(|_| !direct.load(Ordering::Relaxed));
        (host.to_owned(), mapped.unwrap_or(port))
    });
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    let keys = [0, 1, 2].map(|node| cluster.key_on(node, "mapped"));
    for key in &keys {
        client.mutex(key.clone()).lock().await.unwrap().release().await.unwrap();
    }
    for proxy in &proxies[..3] {
        assert!(proxy.connections() > 0);
    }

    is_direct.store(true, Ordering::Relaxed);
    for proxy in &proxies {
        proxy.turn_away(true);
        proxy.close_all();
    }
    for key in &keys {
        let locking = client.mutex(key.clone()).with_wait(ms(10_000)).lock();
        let (guard, took) = within("a lock", ms(10_000), locking).await;
        assert!(took < ms(4_000), "{took:?}");
        guard.unwrap().release().await.unwrap();
    }
}

/// A seed that is not there is no obstacle.
#[tokio::test]
async fn first_seed_that_answers_is_enough() {
    let cluster = shared().await;
    let live = cluster.url_of(&[4]);
    let url = live.replace("://", "://127.0.0.1:1,");
    let (client, took) = within("a connection", ms(5_000), client(&url)).await;
    assert!(took < ms(2_000), "{took:?}");
    client.mutex("k-by-one-seed").lock().await.unwrap().release().await.unwrap();
}
