//! A master that was replaced, does not know it, and goes on as before: what it says gives no lease
//! once the client knows the new one. Two holders cannot be prevented as long as clients know
//! different masters.

use lock_core::LockClient;
use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_testkit::{Action, Gate, Op, Proxy, RedisCluster, alone, client, eventually, ms, within};

use crate::partial;

/// Longer than any of this takes.
const LONG: std::time::Duration = ms(60_000);

/// Node 1 takes the slot of a lock on node 0, which no longer talks to the other nodes, and serves
/// the slot as before.
async fn take_from_node_0(cluster: &RedisCluster, key: &str) {
    let name = format!("lock:{key}");
    let slot = cluster.slot(&name);
    // A client that does not know of the change would take the map of node 0.
    let () = cluster.server(0).cli("ACL SETUSER default -cluster|slots");
    for other in 1..cluster.servers().len() {
        let () = cluster.server(0).cli(&format!("CLUSTER FORGET {}", cluster.id(other)));
    }
    let () = cluster.server(1).cli(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(0)));
    let () = cluster.server(1).cli(&format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(1)));
    let knows = || (1..3).all(|by| cluster.owner_by(by, &name) == Some(1));
    eventually("the others know", ms(20_000), knows).await;
    assert_eq!(cluster.owner(&name), Some(0), "node 0 learnt of it: no test");
}

/// Makes a client fetch the map, not from node 0: a lock that it takes has moved to node `to`.
async fn fetch_the_map(cluster: &RedisCluster, client: &LockClient, to: usize) {
    let key = cluster.key_on(1, "moved");
    let fetched = || (1..6).map(|node| cluster.server(node).calls("cluster|slots")).sum::<u64>();
    let before = fetched();
    cluster.migration(&format!("lock:{key}"), to).finish();
    for _ in 0..2 {
        client.mutex(key.clone()).lock().await.unwrap().release().await.unwrap();
        eventually("the map is fetched", ms(10_000), || fetched() > before).await;
    }
}

/// H2: the lock is handed on by the old master, to a waiter that knows the new one.
#[tokio::test]
async fn grant_by_a_replaced_master_is_not_entered() {
    let _alone = alone().await;
    let cluster = partial().await;
    let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(LONG).lock().await.unwrap();
    let mut waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(LONG).lock());
    cluster.queue_of(&key, 1).await;
    take_from_node_0(&cluster, &key).await;
    let other = client(&cluster.url_of(&[1])).await;
    let second = other.mutex(key.clone()).with_ttl(LONG).try_lock().await.unwrap();
    let second = second.expect("node 1 knows of no holder");

    let old = || cluster.server(0).get(&format!("lock:{key}"));
    let before = old();
    fetch_the_map(&cluster, &waiter, 2).await;
    guard.release().await.unwrap();
    eventually("the old master hands it on, or frees it", ms(5_000), || old() != before).await;
    let early = tokio::time::timeout(ms(1_500), &mut waiting).await;
    assert!(early.is_err(), "entered on the word of the old master");
    assert!(second.is_valid());
    second.release().await.unwrap();
    let (next, _) = within("the waiter's turn", ms(5_000), waiting).await;
    next.unwrap().unwrap().release().await.unwrap();
    for client in [&holder, &waiter, &other] {
        wait_idle(client).await;
    }
}

/// A client that reaches node 0 through the proxy.
fn through(proxy: &Proxy, cluster: &RedisCluster) -> LockClient {
    let (own, mapped) = (cluster.server(0).port(), proxy.port());
    let map = move |host: &str, port| (host.to_owned(), if port == own { mapped } else { port });
    let store = RedisStore::builder(cluster.url_of(&[1])).with_address_map(map);
    let store = store.with_request_timeout(ms(20_000)).connect_lazy().unwrap();
    LockClient::builder(store).build().unwrap()
}

/// H2: the old master has granted a claim, and its reply comes when the client knows the new one.
#[tokio::test]
async fn reply_of_a_replaced_master_is_no_grant() {
    let _alone = alone().await;
    let cluster = partial().await;
    let (proxy, key, gate) = (Proxy::to(cluster.server(0)), cluster.key_on(0, "k"), Gate::new());
    let late = through(&proxy, &cluster);
    let rule = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).once();
    let trying = tokio::spawn(late.mutex(key.clone()).with_ttl(LONG).try_lock());
    let is_granted = || cluster.server(0).has(&format!("lock:{key}"));
    eventually("node 0 grants it", ms(10_000), is_granted).await;
    take_from_node_0(&cluster, &key).await;
    let other = client(&cluster.url_of(&[1])).await;
    let second = other.mutex(key.clone()).with_ttl(LONG).try_lock().await.unwrap();
    let second = second.expect("node 1 knows of no holder");
    fetch_the_map(&cluster, &late, 2).await;
    assert!(!trying.is_finished(), "the reply was not held: no test");
    gate.open();
    let (taken, _) = within("an answer", ms(10_000), trying).await;
    assert!(taken.unwrap().unwrap().is_none(), "granted by the old master");
    assert_eq!(rule.hits(), 1);
    assert!(second.is_valid());
    second.release().await.unwrap();
}

/// The same for a renewal: the lock is another's at the new master, so the lease is over.
#[tokio::test]
async fn renewal_by_a_replaced_master_does_not_count() {
    let _alone = alone().await;
    let cluster = partial().await;
    let (proxy, key, gate) = (Proxy::to(cluster.server(0)), cluster.key_on(0, "k"), Gate::new());
    let late = through(&proxy, &cluster);
    let guard = late.mutex(key.clone()).with_ttl(LONG).lock().await.unwrap();
    let rule = proxy.rule(Op::Renew, Action::HoldReply(gate.clone())).once();
    let extending = async {
        take_from_node_0(&cluster, &key).await;
        let other = client(&cluster.url_of(&[1])).await;
        let second = other.mutex(key.clone()).with_ttl(LONG).try_lock().await.unwrap();
        let second = second.expect("node 1 knows of no holder");
        fetch_the_map(&cluster, &late, 2).await;
        gate.open();
        second
    };
    let (extended, second) = tokio::join!(guard.extend(ms(90_000)), extending);
    assert_eq!(rule.hits(), 1);
    assert!(extended.unwrap_err().is_lost());
    assert!(second.is_valid());
    second.release().await.unwrap();
}

/// H8: the map is fetched many times, from one node after another. That of node 0 is older than
/// what the client knows.
#[tokio::test]
async fn map_of_a_node_that_was_left_behind_is_not_taken() {
    let _alone = alone().await;
    let cluster = partial().await;
    let (key, client) = (cluster.key_on(0, "k"), client(&cluster.url()).await);
    for node in 0..3 {
        let opened = client.mutex(cluster.key_on(node, "open")).lock().await.unwrap();
        opened.release().await.unwrap();
    }
    take_from_node_0(&cluster, &key).await;
    let other = lock_testkit::client(&cluster.url_of(&[1])).await;
    let second = other.mutex(key.clone()).with_ttl(LONG).try_lock().await.unwrap();
    let second = second.expect("node 1 knows of no holder");
    fetch_the_map(&cluster, &client, 2).await;
    let () = cluster.server(0).cli("ACL SETUSER default +cluster|slots");
    let asked = cluster.server(0).calls("cluster|slots");
    for round in 1..=12 {
        fetch_the_map(&cluster, &client, 2 - round % 2).await;
        let taken = client.mutex(key.clone()).try_lock().await.unwrap();
        assert!(taken.is_none(), "{round}: granted by the old master");
    }
    assert!(cluster.server(0).calls("cluster|slots") > asked, "node 0 was not asked: no test");
    assert!(second.is_valid());
    second.release().await.unwrap();
}
