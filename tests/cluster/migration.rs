//! A slot moves to another node, key by key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, Released};
use lock_testkit::history::{Turns, check, hand_offs};
use lock_testkit::{RedisCluster, Rng, alone, client, eventually, ms, scale, within};
use tokio::task::JoinSet;

/// H5, HA13 (redisson#3077): the slot of a held lock moves. The lease is kept between all its keys,
/// and the waiter is served where the lock is then, by a message.
#[tokio::test]
async fn lease_and_waiter_follow_their_slot() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(30_000)).lock());
    cluster.queue_of(&key, 1).await;
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    for moved in migration.keys() {
        guard.extend(ms(12_000)).await.unwrap();
        migration.step(&moved);
    }
    guard.extend(ms(12_000)).await.unwrap();
    migration.finish();
    guard.extend(ms(12_000)).await.unwrap();
    let heard = || !cluster.server(1).cli::<Vec<String>>("PUBSUB SHARDCHANNELS").is_empty();
    eventually("the waiter listens there", ms(5_000), heard).await;
    eventually("the waiter has its place", ms(5_000), || cluster.queued(&key) == 1).await;
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence && took < ms(500), "{took:?}");
    next.release().await.unwrap();
    wait_idle(&holder).await;
    wait_idle(&waiter).await;
    assert!(cluster.leftovers().is_empty(), "{:?}", cluster.leftovers());
}

/// H5, HA11 (redisson#612): a contended lock moves to and fro between two nodes, with pauses
/// between its keys. No two leases overlap, fencing tokens grow, and no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_lock_moves_to_and_fro_without_an_overlap() {
    const CLIENTS: usize = 4;
    const MOVES: usize = 15;
    const TURNS: usize = 100;
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (key, turns) = (cluster.key_on(0, "hot"), Turns::default());
    let (begun, span) = (Instant::now(), ms(8_000) * u32::try_from(scale(1)).unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for owner in 0..CLIENTS {
        let (client, key, turns) = (client(&cluster.url()).await, key.clone(), turns.clone());
        let is_over = Arc::clone(&is_over);
        tasks.push(tokio::spawn(async move {
            let mut served = 0;
            while !is_over.load(Ordering::Relaxed) {
                let guard = client.mutex(key.clone()).with_wait(ms(30_000)).lock().await.unwrap();
                turns.hold(owner, guard, ms(1)).await.unwrap();
                served += 1;
            }
            wait_idle(&client).await;
            served
        }));
    }
    let (mut rng, mut moves) = (Rng::new(7), 0_usize);
    // A loaded machine takes longer for as much.
    let lacks = |moves| moves < MOVES || turns.len() <= TURNS;
    while begun.elapsed() < span || begun.elapsed() < span * 10 && lacks(moves) {
        let to = if moves % 2 == 0 { 1 } else { 0 };
        let migration = cluster.migration(&format!("lock:{key}"), to);
        for moved in migration.keys() {
            tokio::time::sleep(ms(rng.within(0..=60))).await;
            migration.step(&moved);
        }
        tokio::time::sleep(ms(rng.within(0..=30))).await;
        migration.finish();
        moves += 1;
        tokio::time::sleep(ms(rng.within(0..=100))).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut served = Vec::new();
    for task in tasks {
        served.push(within("its last turn", ms(30_000), task).await.0.unwrap());
    }
    let turns = turns.all();
    let (count, handed) = (turns.len(), hand_offs(&turns));
    check(&key, turns);
    assert!(moves >= MOVES && count > TURNS, "{moves} moves, {count} turns");
    assert!(served.iter().all(|served| *served > 0), "{served:?}");
    let refused: u64 = (0..2).map(|node| cluster.server(node).errors("TRYAGAIN")).sum();
    println!("{moves} moves, {count} turns, {handed} hand-overs, {refused} TRYAGAIN, {served:?}");
    assert!(refused > 0, "no call met a slot on its way: no test");
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// H5: a slot is on its way. What has left is served by the new node, which is asked in the same
/// write as each command, and the slot is still that of the old node: what has not left needs no
/// redirection. So the new node never has to send a command back.
#[tokio::test]
async fn node_that_a_slot_goes_to_is_asked_with_each_command() {
    const MOVED: u32 = 8;
    const ROUNDS: u32 = 5;
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (client, key) = (client(&cluster.url()).await, cluster.key_on(0, "k"));
    let ttl = ms(60_000);
    // The braces put all into one slot.
    let locks = (0..=MOVED).map(|number| format!("{number}:{{lock:{key}}}"));
    let locking: JoinSet<_> = locks.map(|it| client.mutex(it).with_ttl(ttl).lock()).collect();
    let mut guards: Vec<_> = locking.join_all().await.into_iter().map(Result::unwrap).collect();
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    let stays = guards.pop().unwrap();
    guards.iter().for_each(|guard| migration.step(&format!("lock:{}", guard.key().as_str())));
    let calls = |node: usize, code| cluster.server(node).errors(code);
    let before = (calls(0, "ASK"), calls(0, "MOVED") + calls(1, "MOVED"));
    let mut outcomes = Vec::new();
    for round in 1..=ROUNDS {
        let ttl = ttl + ms(1_000) * round;
        let extending: JoinSet<_> = guards.iter().map(|guard| guard.extend(ttl)).collect();
        outcomes.extend(extending.join_all().await);
        outcomes.push(stays.extend(ttl).await);
    }
    let asked = calls(0, "ASK") - before.0;
    assert!(asked >= u64::from(MOVED * ROUNDS), "{asked} ASK: no test");
    let back = calls(0, "MOVED") + calls(1, "MOVED") - before.1;
    assert_eq!(back, 0, "commands went to a node that was not asked to serve them");
    outcomes.into_iter().for_each(|extended| extended.unwrap());
    migration.finish();
    guards.push(stays);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
}

/// H6: a slot stays on its way. Renewals keep the lease, claims fail and say why, and the holder's
/// release does not hang: it frees the lock without its queue. Then all is served.
#[tokio::test]
async fn stuck_move_costs_no_lease_and_hangs_no_release() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(ms(2_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(30_000)).lock());
    cluster.queue_of(&key, 1).await;
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    migration.step(&format!("lock:{key}"));
    let begun = Instant::now();
    while begun.elapsed() < ms(4_000) {
        assert!(guard.is_valid(), "lost after {:?}", begun.elapsed());
        tokio::time::sleep(ms(50)).await;
    }
    let late = holder.mutex(key.clone()).with_wait(ms(700)).lock().await;
    // The holder is of this process, so this task learns no more.
    assert!(late.unwrap_err().is_busy());
    let other = client(&cluster.url()).await;
    let refused = other.mutex(key.clone()).with_wait(ms(700)).lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("on its way to another node"), "{refused}");

    let (released, took) = within("the release", ms(2_000), guard.release()).await;
    assert_eq!(released.unwrap(), Released::InTime);
    assert!(took < ms(400), "{took:?}");
    let slot = cluster.slot(&format!("lock:{key}"));
    let freed = cluster.server(1).cli::<Vec<String>>(&format!("CLUSTER GETKEYSINSLOT {slot} 9"));
    assert!(freed.is_empty(), "{freed:?}");
    migration.finish();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(took < ms(2_000), "{took:?}");
    next.release().await.unwrap();
    for client in [&holder, &waiter, &other] {
        wait_idle(client).await;
    }
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// H6: all keys of a lock have moved, and the slot is not given away. The old node sends a claim
/// on, and the new one refuses it, because a record that the claim names is at neither. The error
/// says that the slot is on its way, few calls are sent, and a release does not hang. Then all is
/// served.
#[tokio::test]
async fn move_that_stops_before_its_end_is_named_and_costs_few_calls() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (holder, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(ms(2_000)).lock().await.unwrap();
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    for moved in migration.keys() {
        migration.step(&moved);
    }
    let calls = |code| (0..2).map(|node| cluster.server(node).errors(code)).sum::<u64>();
    let before = (calls("ASK"), calls("TRYAGAIN"));
    let claiming = other.mutex(key.clone()).with_wait(ms(3_000)).lock();
    let (refused, took) = within("the end of the wait", ms(5_000), claiming).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("on its way to another node"), "{refused}");
    let (asked, split) = (calls("ASK") - before.0, calls("TRYAGAIN") - before.1);
    println!("{asked} ASK, {split} TRYAGAIN in {took:?}");
    assert!(split > 0, "no call met the slot on its way: no test");
    assert!(split <= 60, "{split} TRYAGAIN in {took:?}");

    assert!(guard.is_valid());
    let (released, took) = within("the release", ms(2_000), guard.release()).await;
    assert_eq!(released.unwrap(), Released::InTime);
    assert!(took < ms(400), "{took:?}");
    migration.finish();
    let (next, took) = within("a lock", ms(5_000), other.mutex(key.clone()).lock()).await;
    assert!(took < ms(2_000), "{took:?}");
    next.unwrap().release().await.unwrap();
    for client in [&holder, &other] {
        wait_idle(client).await;
    }
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// A claim is refused for as long as its slot is on its way. The lease that it gets at last is as
/// long as any: it counts from the claim that was granted, not from the first one.
#[tokio::test]
async fn lease_of_a_claim_that_was_refused_in_between_is_not_shorter() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let client = client(&cluster.url()).await;
    let key = cluster.key_on(0, "k");
    let migration = cluster.migration(&format!("lock:{key}"), 1);
    let refused = || (0..2).any(|node| cluster.server(node).errors("TRYAGAIN") > 0);
    let locking = tokio::spawn(client.mutex(key.clone()).with_ttl(ms(3_000)).lock());
    eventually("a refused claim", ms(5_000), refused).await;
    // Less than what a claim is repeated for.
    tokio::time::sleep(ms(700)).await;
    assert!(!locking.is_finished());
    migration.finish();
    let guard = within("the lock", ms(5_000), locking).await.0.unwrap().unwrap();
    let left = guard.lease().remaining();
    assert!(left > ms(2_500), "{left:?}");
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// H7, HA14 (rueidis#690, valkey#1066): a server ends a sharded subscription by itself each time
/// the slot leaves. That message must not be taken for the reply to a command: every command in
/// flight gets its own reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_subscription_shifts_no_reply() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).with_ttl(ms(60_000)).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(60_000)).lock());
    cluster.queue_of(&key, 1).await;
    let end = Instant::now() + ms(8_000);
    // Canaries of the waiting client on both nodes: each reply tells whose it is.
    let mut canaries = Vec::new();
    for task in 0..4 {
        let (waiter, canary) =
            (waiter.clone(), cluster.key_on(task % 2, &format!("canary{task}-")));
        canaries.push(tokio::spawn(async move {
            let (mut replies, mut last) = (0_u64, None);
            while Instant::now() < end {
                let guard = waiter.mutex(canary.clone()).lock().await.unwrap();
                assert!(last < Some(guard.fencing_token()));
                last = Some(guard.fencing_token());
                guard.extend(ms(11_000)).await.unwrap();
                assert_eq!(guard.release().await.unwrap(), Released::InTime);
                replies += 3;
            }
            replies
        }));
    }
    let mut moves = 0;
    while Instant::now() < end {
        let to = 1 - moves % 2;
        cluster.migration(&format!("lock:{key}"), to).finish();
        moves += 1;
        let heard = || !cluster.server(to).cli::<Vec<String>>("PUBSUB SHARDCHANNELS").is_empty();
        eventually("the waiter listens there", ms(5_000), heard).await;
    }
    let mut replies = 0;
    for canary in canaries {
        replies += within("the canaries", ms(10_000), canary).await.0.unwrap();
    }
    println!("{moves} moves, {replies} replies");
    assert!(moves > 20 && replies > 1_000, "{moves} moves, {replies} replies");
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    assert!(took < ms(1_500), "{took:?}");
    next.unwrap().unwrap().release().await.unwrap();
    for client in [&holder, &waiter] {
        wait_idle(client).await;
    }
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}
