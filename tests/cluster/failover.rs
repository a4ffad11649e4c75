//! A replica takes the place of its master.

use std::time::Instant;

use lock_core::LockClient;
use lock_core::store::{RedisStore, Store as _, Survives};
use lock_core::testing::wait_idle;
use lock_testkit::{FailOver, RedisCluster, alone, client, eventually, ms, within};

/// Longer than a cluster needs to replace a master on a loaded machine.
const REPLACED: std::time::Duration = ms(12_000);

async fn clients(cluster: &RedisCluster) -> (LockClient, LockClient) {
    (client(&cluster.url()).await, client(&cluster.url()).await)
}

async fn assert_nothing_is_left(cluster: &RedisCluster, clients: [&LockClient; 2]) {
    for client in clients {
        wait_idle(client).await;
    }
    let end = Instant::now() + ms(5_000);
    while !cluster.leftovers().is_empty() {
        assert!(Instant::now() < end, "left: {:?}", cluster.leftovers());
        tokio::time::sleep(ms(20)).await;
    }
}

/// H3, H4, HA2 (ioredis#305): a replica takes over while a lock is held and a task waits for it,
/// with the help of the master or without. The lease is kept, the waiter is served on the new
/// master, and fencing tokens grow.
async fn lease_and_waiter_survive(how: FailOver) {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (holder, waiter) = clients(&cluster).await;
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(ms(20_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(30_000)).lock());
    cluster.queue_of(&key, 1).await;
    cluster.replicated(0).await;
    cluster.fail_over(0, how).await;
    let begun = Instant::now();
    let other = holder.mutex(cluster.key_on(0, "other")).with_wait(ms(5_000)).lock().await.unwrap();
    assert!(begun.elapsed() < ms(2_000), "{:?}", begun.elapsed());
    other.release().await.unwrap();
    guard.extend(ms(20_000)).await.unwrap();
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence && took < ms(2_000), "{took:?}");
    next.release().await.unwrap();
    assert_nothing_is_left(&cluster, [&holder, &waiter]).await;
}

#[tokio::test]
async fn lease_and_waiter_survive_a_graceful_failover() {
    lease_and_waiter_survive(FailOver::Graceful).await;
}

#[tokio::test]
async fn lease_and_waiter_survive_a_forced_failover() {
    lease_and_waiter_survive(FailOver::Force).await;
}

/// The old master serves two waiters, which the new one does not know: there, its lock is taken for
/// the rest of its ttl, and both have their places. Their clients are done with these, and each
/// place got the lock for the hand-off TTL of 3 s before the next waiter did.
#[tokio::test]
async fn waiters_do_not_wait_for_places_that_the_old_master_has_served() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    // What a loaded machine answers late counts.
    let patient = async || {
        let store = RedisStore::builder(cluster.url()).with_request_timeout(ms(10_000));
        LockClient::builder(store.connect().await.unwrap()).build().unwrap()
    };
    let (holder, one, two) = (patient().await, patient().await, patient().await);
    let key = cluster.key_on(0, "k");
    let lost = holder.mutex(key.clone()).with_ttl(ms(10_000)).without_renewal();
    let lost = lost.lock().await.unwrap();
    // Such a long ttl keeps their places for longer than the lock.
    let take_turn = |client: &LockClient| {
        let mutex = client.mutex(key.clone()).with_ttl(ms(30_000)).with_wait(ms(40_000));
        tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
    };
    let turns = [take_turn(&one), take_turn(&two)];
    cluster.queue_of(&key, 2).await;
    cluster.replicated(0).await;
    let replica = cluster.server(cluster.replica_of(0));
    replica.cut_off_from(cluster.server(0)).await;
    lost.release().await.unwrap();
    for turn in turns {
        within("a turn at the old master", ms(5_000), turn).await.0.unwrap();
    }
    cluster.fail_over(0, FailOver::Force).await;

    let left = replica.pttl(&format!("lock:{key}"));
    assert!(left > 500, "the release was not lost: no test ({left} ms)");
    let begun = Instant::now();
    let turns = [take_turn(&one), take_turn(&two)];
    cluster.queue_of(&key, 4).await;
    for turn in turns {
        within("a turn at the new master", ms(30_000), turn).await.0.unwrap();
    }
    let late = begun.elapsed().saturating_sub(ms(left.unsigned_abs()));
    assert!(late < ms(2_500), "{late:?} after the lock was over");
    assert_nothing_is_left(&cluster, [&one, &two]).await;
    wait_idle(&holder).await;
}

/// H1, HA16 (redis-rs#1452, node-redis#2806): the master is killed, so no node says `MOVED`. Locks
/// are served again when the replica has taken over, and locks on other nodes as soon as the
/// cluster lets them.
#[tokio::test]
async fn locks_are_served_again_after_the_master_is_killed() {
    let _alone = alone().await;
    let mut cluster = RedisCluster::start().await;
    let (holder, waiter) = clients(&cluster).await;
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(ms(20_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(40_000)).lock());
    cluster.queue_of(&key, 1).await;
    cluster.replicated(0).await;
    let replica = cluster.replica_of(0);

    cluster.server_mut(0).kill();
    let other = holder.mutex(cluster.key_on(0, "other")).with_wait(REPLACED);
    let (other, took) = within("a lock", REPLACED, other.lock()).await;
    let other = other.unwrap();
    assert!(took >= RedisCluster::NODE_TIMEOUT, "{took:?}: no failover, no test");
    assert!(took < RedisCluster::NODE_TIMEOUT + ms(6_000), "{took:?}");
    assert_eq!(cluster.owner(&format!("lock:{key}")), Some(replica));
    assert!(other.fencing_token() > guard.fencing_token());
    other.release().await.unwrap();
    assert!(guard.is_valid());
    guard.extend(ms(20_000)).await.unwrap();
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence && took < ms(2_500), "{took:?}");
    next.release().await.unwrap();
    assert_nothing_is_left(&cluster, [&holder, &waiter]).await;
}

/// H2, HA16: the master is stopped with a claim in its socket, is replaced, and goes on. The claim
/// is repeated on the new master, and what the old one makes of it gives no lease.
#[tokio::test]
async fn claim_at_a_stopped_master_is_granted_by_the_new_one() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (client, other) = clients(&cluster).await;
    let key = cluster.key_on(0, "k");
    client.mutex(key.clone()).lock().await.unwrap().release().await.unwrap();
    cluster.replicated(0).await;
    let replica = cluster.replica_of(0);

    cluster.server(0).pause();
    let locking = tokio::spawn(client.mutex(key.clone()).with_wait(ms(60_000)).lock());
    let (guard, took) = within("a lock", REPLACED, locking).await;
    let guard = guard.unwrap().unwrap();
    assert!(took < RedisCluster::NODE_TIMEOUT + ms(6_000), "{took:?}");
    assert!(cluster.server(replica).has(&format!("lock:{key}")));
    cluster.server(0).resume();
    eventually("the old master is demoted", ms(30_000), || {
        cluster.server(0).cli::<String>("INFO replication").contains("role:slave")
    })
    .await;
    assert!(other.mutex(key.clone()).try_lock().await.unwrap().is_none());
    guard.extend(ms(20_000)).await.unwrap();
    guard.release().await.unwrap();
    assert_nothing_is_left(&cluster, [&client, &other]).await;
}

/// With acknowledgement, renewals count while the keys of the slot are on two nodes, and none of
/// them makes a key where the slot goes, which would end the move: `BUSYKEY`.
#[tokio::test]
async fn renewals_are_confirmed_while_their_slot_moves() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let store = RedisStore::builder(cluster.url()).with_replica_acks(1);
    let store = store.with_request_timeout(ms(2_000)).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let key = cluster.key_on(0, "k");
    let guard = client.mutex(key.clone()).with_ttl(ms(60_000)).with_wait(ms(20_000));
    let guard = guard.lock().await.unwrap();
    // On a loaded machine a replica may be late.
    let extend = async |ttl| {
        let end = Instant::now() + ms(10_000);
        while let Err(error) = guard.extend(ttl).await {
            assert!(error.to_string().contains("of 1 replicas confirmed"), "{error}");
            assert!(Instant::now() < end, "{error}");
        }
    };
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    let keys = migration.keys();
    assert!(keys.len() > 1, "{keys:?}");
    for (moved, seconds) in keys.iter().zip(61..) {
        extend(ms(seconds * 1_000)).await;
        migration.step(moved);
        extend(ms(seconds * 1_000 + 500)).await;
    }
    migration.finish();
    extend(ms(90_000)).await;
    guard.release().await.unwrap();
    assert_nothing_is_left(&cluster, [&client, &client]).await;
}

/// HA5 (redisson#3994): with acknowledgement, a grant that the replica does not have is none. Locks
/// on other nodes are not concerned.
#[tokio::test]
async fn grant_that_no_replica_confirms_is_unavailable() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let store = RedisStore::builder(cluster.url()).with_replica_acks(1).connect().await.unwrap();
    assert_eq!(store.capabilities().survives, Survives::FailoverAcknowledged);
    let client = LockClient::builder(store).build().unwrap();
    let (key, other) = (cluster.key_on(0, "k"), cluster.key_on(1, "other"));
    client.mutex(key.clone()).lock().await.unwrap().release().await.unwrap();
    let replica = cluster.replica_of(0);
    cluster.server(replica).pause();
    let error = client.mutex(key.clone()).try_lock().await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas confirmed"), "{error}");
    client.mutex(other).lock().await.unwrap().release().await.unwrap();
    cluster.server(replica).resume();
    let (guard, _) = within("a lock", ms(10_000), client.mutex(key).lock()).await;
    guard.unwrap().release().await.unwrap();
    wait_idle(&client).await;
}
