//! Another server becomes the master.

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{LockClient, LostReason};
use lock_testkit::{Action, LogCapture, Op, Sentinels, alone, client, eventually, ms, within};
use lock_tests::recorded;
use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;

use crate::{is_on, told};

async fn connect(group: &Sentinels) -> LockClient {
    client(&group.url()).await
}

/// HA1, HA3, HA8 (redis-py#460, redisson#775, #4706): the master dies. The held lease is renewed on
/// the new master, the waiter is served there, fencing tokens grow, and nothing is left.
#[tokio::test]
async fn locks_are_served_again_after_the_master_is_killed() {
    let _alone = alone().await;
    let mut group = Sentinels::start(2).await;
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let log = LogCapture::start();
    let (holder, waiter) = (connect(&group).await, connect(&group).await);
    let guard = holder.mutex("held").with_ttl(ms(12_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("held").with_wait(ms(30_000)).lock());
    eventually("it has a place", ms(5_000), || group.server(0).queued("held") == 1).await;
    group.replicated(0).await;

    group.server_mut(0).kill();
    let (other, took) =
        within("a lock", ms(15_000), holder.mutex("k").with_wait(ms(15_000)).lock()).await;
    let other = other.unwrap();
    assert!(took < ms(8_000), "{took:?}");
    assert!(other.fencing_token() > guard.fencing_token());
    other.release().await.unwrap();

    assert!(guard.is_valid());
    guard.extend(ms(12_000)).await.unwrap();
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence && took < ms(2_000), "{took:?}");
    next.release().await.unwrap();
    for client in [&holder, &waiter] {
        wait_idle(client).await;
    }
    let new = group.switched_from(0).await;
    assert!(new.leftovers().is_empty(), "{:?}", new.leftovers());
    assert!(log.contains("event=\"store.moved\"", "cause=\"disconnect\""), "{}", log.text());
    let outages = recorded(&recorder).into_iter();
    let outages = outages.filter(|(name, _)| name.starts_with("lock_store_outage_seconds"));
    let longest = outages.flat_map(|(_, took)| took).fold(0.0, f64::max);
    assert!((0.3..15.0).contains(&longest), "{longest}: the time without a master");
}

/// HA2 (ioredis#305, node-redis-sentinel#13): an operator orders a failover, and the old master
/// goes on granting locks for seconds. The client leaves it within a second of the event.
#[tokio::test]
async fn client_leaves_the_old_master_within_a_second_of_the_event() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let (client, waiter) = (connect(&group).await, connect(&group).await);
    let guard = client.mutex("held").with_ttl(ms(15_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("held").with_wait(ms(60_000)).lock());
    let old = group.server(0);
    eventually("it has a place", ms(5_000), || old.queued("held") == 1).await;
    group.replicated(0).await;
    let log = LogCapture::start();

    group.fail_over().await;
    let event = told(&group, 0).await;
    let has_left = || !is_on(&client, old) && !is_on(&waiter, old);
    eventually("the clients have left", ms(5_000), has_left).await;
    let took = event.elapsed();
    assert!(took < ms(1_000), "{took:?}");
    let master = old.cli::<Vec<redis::Value>>("ROLE");
    assert_eq!(master[0], redis::Value::BulkString(b"master".into()), "no two masters: no test");
    assert!(log.contains("WARN", "the sentinels name another master"), "{}", log.text());
    let two_masters = || log.contains("WARN", "event=\"store.two_masters\"");
    eventually("the old master says what it is", ms(5_000), two_masters).await;

    old.reset_calls();
    let mut fence = guard.fencing_token();
    let start = Instant::now();
    while start.elapsed() < ms(1_000) {
        let other = client.mutex("k").lock().await.unwrap();
        assert!(other.fencing_token() > fence);
        fence = other.fencing_token();
        other.release().await.unwrap();
    }
    guard.extend(ms(20_000)).await.unwrap();
    let new = group.server(1);
    eventually("the waiter has a place there", ms(5_000), || new.queued("held") == 1).await;
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence && took < ms(1_000), "{took:?}");
    next.release().await.unwrap();
    assert_eq!(old.script_calls(), 0);
    let text = log.text();
    let moved = text.lines().find(|line| line.contains("event=\"store.moved\"")).unwrap();
    let (from, to) = (format!(":{}", old.port()), format!(":{}", new.port()));
    for part in [&from, &to, "epoch=", "cause=\"event\""] {
        assert!(moved.contains(part), "no {part}: {moved}");
    }
    for client in [&client, &waiter] {
        wait_idle(client).await;
    }
    assert!(new.leftovers().is_empty(), "{:?}", new.leftovers());
}

/// The old master serves a waiter, which the new one does not know: there, its lock is taken for
/// the rest of its ttl, and the waiter has its place. Its client is done with that, and the place
/// got the lock for the hand-off TTL of 3 s before the next waiter did.
#[tokio::test]
async fn waiter_does_not_wait_for_a_place_that_the_old_master_has_served() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let (holder, waiter) = (connect(&group).await, connect(&group).await);
    let lost = holder.mutex("k").with_ttl(ms(12_000)).without_renewal().lock().await.unwrap();
    // Such a long ttl keeps the place for longer than the lock.
    let wait = || tokio::spawn(waiter.mutex("k").with_ttl(ms(30_000)).with_wait(ms(40_000)).lock());
    let waiting = wait();
    eventually("it has a place", ms(5_000), || group.server(0).queued("k") == 1).await;
    group.replicated(0).await;
    let (old, new) = (group.server(0), group.server(1));
    new.cut_off_from(old).await;
    lost.release().await.unwrap();
    let (served, _) = within("a turn at the old master", ms(5_000), waiting).await;
    served.unwrap().unwrap().release().await.unwrap();
    group.fail_over().await;
    eventually("the client has left", ms(15_000), || !is_on(&waiter, old)).await;

    let left = new.pttl("lock:k");
    assert!(left > 500, "the release was not lost: no test ({left} ms)");
    let begun = Instant::now();
    let waiting = wait();
    eventually("it is behind the served one", ms(5_000), || new.queued("k") == 2).await;
    let (served, _) = within("a turn at the new master", ms(30_000), waiting).await;
    let late = begun.elapsed().saturating_sub(ms(left.unsigned_abs()));
    assert!(late < ms(2_500), "{late:?} after the lock was over");
    served.unwrap().unwrap().release().await.unwrap();
    for client in [&holder, &waiter] {
        wait_idle(client).await;
    }
    assert!(new.leftovers().is_empty(), "{:?}", new.leftovers());
}

/// A lock is taken by force, and its holder learns at once, also behind a failover: the channel is
/// subscribed anew on the new master.
#[tokio::test]
async fn holder_learns_of_a_forced_release_at_once_before_and_after_a_failover() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let (holder, operator) = (connect(&group).await, connect(&group).await);
    // From its first renewal on a client listens.
    let other = holder.mutex("other").with_ttl(ms(15_000)).lock().await.unwrap();
    for index in [0, 1] {
        let master = group.server(index);
        let listeners = || master.cli::<(String, u64)>("PUBSUB NUMSUB lock:{0}:forced").1;
        eventually("it listens", ms(20_000), || listeners() == 1).await;
        let locking = holder.mutex("k").with_ttl(ms(60_000)).with_wait(ms(20_000)).lock();
        let guard = locking.await.unwrap();
        let begun = Instant::now();
        let former = operator.force_release("k").await.unwrap().unwrap();
        assert_eq!(former.client, Some(holder.id()));
        let (lost, _) = within("the loss", ms(10_000), guard.lost()).await;
        assert_eq!(lost, LostReason::ForceReleased);
        assert!(begun.elapsed() < ms(10_000), "a third of the ttl is 20 s");
        drop(guard);
        if index == 0 {
            group.replicated(0).await;
            group.fail_over().await;
            group.switched_from(0).await;
            let has_left = || [&holder, &operator].iter().all(|client| !is_on(client, master));
            eventually("the clients have left", ms(10_000), has_left).await;
        }
    }
    assert!(other.is_valid(), "it was renewed on both");
    other.release().await.unwrap();
    wait_idle(&holder).await;
    assert!(group.server(1).leftovers().is_empty(), "{:?}", group.server(1).leftovers());
}

/// HA2 (flyerhzm/redis-sentinel#14, spring-data-redis#2566): no event arrives, and the old master
/// lives on. The client finds out by asking.
#[tokio::test]
async fn client_leaves_the_old_master_although_no_event_arrives() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let lost: Vec<_> =
        (0..3).map(|it| group.proxy(it).rule(Op::Message, Action::Vanish).always()).collect();
    let client = connect(&group).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    let old = group.server(0);
    let log = LogCapture::start();
    group.fail_over().await;
    let event = told(&group, 0).await;
    eventually("the client has left", ms(10_000), || !is_on(&client, old)).await;
    let took = event.elapsed();
    assert!(took < ms(6_000), "{took:?}");
    assert!(lost.iter().map(lock_testkit::Rule::hits).sum::<usize>() > 0, "no event was lost");
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(log.contains("event=\"store.moved\"", "cause=\"poll\""), "{}", log.text());
}

/// HA1: the master is stopped with a claim in its socket, is replaced, and goes on. The claim does
/// not wait for an answer: it is repeated on the new master, and what the old one makes of it gives
/// no lease.
#[tokio::test]
async fn claim_at_a_stopped_master_is_granted_by_the_new_one() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let store = RedisStore::builder(group.url()).with_request_timeout(ms(20_000));
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    group.replicated(0).await;
    let old = group.server(0);
    old.pause();
    let locking = tokio::spawn(client.mutex("k").with_wait(ms(60_000)).lock());
    let (guard, took) = within("a lock", ms(20_000), locking).await;
    let guard = guard.unwrap().unwrap();
    assert!(took < ms(8_000), "{took:?}");
    let new = group.switched_from(0).await;
    assert_eq!(new.port(), group.server(1).port());
    assert!(new.has("lock:k"));
    old.resume();
    eventually("the old master is demoted", ms(30_000), || {
        old.cli::<String>("INFO replication").contains("role:slave")
    })
    .await;
    assert!(!is_on(&client, old));
    guard.extend(ms(20_000)).await.unwrap();
    guard.release().await.unwrap();
    wait_idle(&client).await;
    assert!(new.leftovers().is_empty(), "{:?}", new.leftovers());
}

/// HA9 (redis/redis#1297): the master restarts without its data before the sentinels notice. The
/// client says so once, the holder learns that it lost its lease, and fencing tokens grow.
#[tokio::test]
async fn master_that_restarts_without_its_data_is_one_warning_and_a_loss() {
    let _alone = alone().await;
    let mut group = Sentinels::start(1).await;
    for sentinel in 0..3 {
        let () = group.ask(sentinel, "SENTINEL SET shop down-after-milliseconds 60000").unwrap();
    }
    let client = connect(&group).await;
    let guard = client.mutex("held").with_ttl(ms(3_000)).lock().await.unwrap();
    let log = LogCapture::start();
    group.server_mut(0).kill();
    group.server_mut(0).boot();
    let (next, _) = within("a lock", ms(10_000), client.mutex("k").lock()).await;
    let next = next.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
    let (reason, _) = within("the loss", ms(5_000), guard.lost()).await;
    assert_eq!(reason, LostReason::Gone);
    group.server(0).kill_connections();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(log.contains("WARN", "event=\"store.forgot\""), "{}", log.text());
    let told = log.text().matches("restarted without its data").count();
    assert_eq!(told, 1, "{}", log.text());
    assert_eq!(group.left(0), 0, "a failover: no test");
}
