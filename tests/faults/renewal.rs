//! Leases that are renewed, in doubt or lost, and leases that must end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockOptions, LostReason, Released};
use lock_testkit::{
    Action, Experiment, Gate, Op, Proxy, RedisServer, client, client_with, eventually, ms, scale,
    within,
};

/// U3: a renewal outlives the release. redisson#7272, spring-integration#10446.
#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_revives_nothing() {
    for min_hold in [None, Some(ms(20_000))] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let defaults = LockOptions::new().with_ttl(ms(60_000));
        let defaults = min_hold.map_or(defaults, |least| defaults.with_min_hold(least));
        let client = client_with(&proxy.url(), defaults).await;
        let guard = client.mutex("k").lock().await.unwrap();
        let gate = Gate::new();
        let stray = proxy.rule(Op::Renew, Action::Stray(gate.clone())).once();
        let lease = guard.lease();
        let extension = tokio::spawn(lease.extend(ms(120_000)));
        eventually("the renewal is on its way", ms(5_000), || stray.hits() == 1).await;
        proxy.close_all();
        // The connection broke, so the renewal is repeated. Let the repetition arrive.
        extension.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
        wait_idle(&client).await;
        let left = server.pttl("lock:k");
        assert_eq!(left == -2, min_hold.is_none());
        let before = server.script_calls();
        gate.open();
        eventually("the late renewal arrives", ms(5_000), || server.script_calls() > before).await;
        assert!(server.pttl("lock:k") <= left.max(-2), "nothing was created or lengthened");
    }
}

/// U3: many short leases end when their first renewal is due.
#[tokio::test]
async fn releases_that_race_with_renewals_leave_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(150))).await;
    let mut tasks = Vec::new();
    for key in 0..40_u64 {
        let mutex = client.mutex(format!("k{key}"));
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                let guard = mutex.lock().await.unwrap();
                tokio::time::sleep(ms(20 + (key + round) % 50)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(proxy.seen(Op::Renew) > 100, "renewals did happen");
    assert!(server.cli::<Vec<String>>("KEYS lock:k*").is_empty());
    assert!(ClientStats::of(&client).is_idle());
    let seen = proxy.seen(Op::Renew);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(proxy.seen(Op::Renew), seen, "no renewal outlives its lock");
}

/// U4: a failed renewal is no loss. A dead store is one, by the deadline. linagora/cozy-stack#4911,
/// distkit.
#[tokio::test]
async fn one_failed_renewal_loses_nothing_and_a_dead_store_does_by_the_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let guard = client.mutex("k").with_ttl(ms(3_000)).lock().await.unwrap();
    let entered = Instant::now();
    let late = proxy.rule(Op::Renew, Action::DelayRequest(ms(800))).once();
    eventually("the renewal is late", ms(5_000), || late.hits() == 1).await;
    let bound = ms(10_000);
    eventually("a later one works", bound, || entered.elapsed() > ms(3_100) && guard.is_valid())
        .await;

    server.pause();
    let (left, since) = (guard.remaining(), Instant::now());
    let (reason, _) = within("the loss", left + ms(2_000), guard.lost()).await;
    let took = since.elapsed();
    assert!(!guard.is_valid());
    server.resume();
    assert_eq!(reason, LostReason::Expired);
    assert!(took + ms(5) >= left, "neither earlier ({took:?} of {left:?}) ..");
    assert!(took < left + ms(1_000), "nor later");
}

/// P16: no renewal succeeds for longer than the TTL, the key expires, then the store is back.
/// redis-semaphore#175.
#[tokio::test]
async fn a_lock_that_expired_during_an_outage_is_not_created_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let guard = client.mutex("k").with_ttl(ms(1_000)).lock().await.unwrap();
    proxy.cut();
    let (reason, _) = within("the loss", ms(5_000), guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    eventually("the key expires", ms(5_000), || !server.has("lock:k")).await;
    proxy.heal();
    // The client reaches the store again.
    let next = client.mutex("other").with_wait(ms(20_000)).lock().await.unwrap();
    assert!(next.is_valid());
    assert!(!server.has("lock:k"));
    assert!(!guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::Expired);
    assert!(!server.has("lock:k"));
}

/// P17: Redis is killed while a lock is held. redis-semaphore#199.
#[tokio::test]
async fn a_killed_server_is_a_loss_by_the_deadline() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let mutex = client.mutex("k").with_ttl(ms(1_500));
    let guard = mutex.lock().await.unwrap();
    server.kill();
    let left = guard.remaining();
    let (reason, took) = within("the loss", left + ms(1_000), guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(took + ms(5) >= left);
    assert!(!guard.is_valid());
    let (outcome, _) = within("an answer", ms(5_000), guard.release()).await;
    assert!(outcome.unwrap_err().is_store_failure());

    server.boot();
    let (guard, _) = within("the lock", ms(10_000), mutex.with_wait(ms(10_000)).lock()).await;
    guard.unwrap().release().await.unwrap();
    wait_idle(&client).await;
}

/// P18: renewals of short leases are few. redlock-universal.
#[tokio::test]
async fn renewals_are_at_most_twice_as_many_as_needed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.load_scripts();
    for ttl in [1_000, 300, 100] {
        server.reset_calls();
        let start = Instant::now();
        let guard = client.mutex("k").with_ttl(ms(ttl)).lock().await.unwrap();
        tokio::time::sleep(ms(2_000)).await;
        let calls = server.script_calls() - 1;
        let most = 2.0 * start.elapsed().as_secs_f64() / (ms(ttl).as_secs_f64() / 3.0);
        assert!(calls as f64 <= most, "{calls} renewals of {ttl} ms, at most {most}");
        // A loaded machine may lose a lease of 100 ms. The longer ones must not be lost.
        if ttl >= 300 {
            assert!(guard.is_valid(), "{ttl} ms");
            assert!(calls >= 2_000 / ttl);
        }
        drop(guard);
        wait_idle(&client).await;
    }
}

/// P20: one renewal meets a closed connection, a reset or an error, and the next one works.
/// redlock-universal, linagora/cozy-stack#4911.
#[tokio::test]
async fn a_renewal_that_fails_once_moves_no_deadline_and_loses_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    for action in [
        Action::CloseBefore,
        Action::CloseAfter,
        Action::ResetBefore,
        Action::ResetAfter,
        Action::Refuse("LOADING Redis is loading the dataset in memory"),
        Action::Refuse("BUSY Redis is busy running a script"),
        Action::Duplicate,
    ] {
        let guard = client.mutex("k").with_ttl(ms(1_500)).lock().await.unwrap();
        let entered = Instant::now();
        let fault = proxy.rule(Op::Renew, action.clone()).once();
        let mut before = guard.remaining();
        while fault.hits() == 0 {
            assert!(guard.remaining() <= before, "nothing but a renewal moves it");
            before = guard.remaining();
            tokio::time::sleep(ms(5)).await;
            assert!(entered.elapsed() < ms(5_000), "{action:?}");
        }
        let outlived = || entered.elapsed() > ms(1_600);
        eventually("the first lease would be over", ms(5_000), outlived).await;
        assert!(guard.is_valid(), "{action:?}");
        assert!(server.pttl("lock:k") > 0);
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
}

/// R2: tasks of one process alternate at full speed, then one of them holds the lock for three
/// leases. redisson#6844, PR 7070.
#[tokio::test]
async fn a_lock_held_after_a_storm_of_tries_is_renewed() {
    let server = RedisServer::start();
    let alternating = client_with(&server.url(), LockOptions::new().with_ttl(ms(600))).await;
    let other = client(&server.url()).await;
    let (start, taken) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let storm = |_| {
        let (mutex, taken) = (alternating.mutex("k"), Arc::clone(&taken));
        tokio::spawn(async move {
            // A busy machine takes longer for enough turns.
            let is_over = || {
                let has_enough = taken.load(Ordering::Relaxed) > 20;
                start.elapsed() > if has_enough { ms(500) } else { Experiment::limit(ms(500)) }
            };
            while !is_over() {
                // "Busy" is the only other answer of a healthy store.
                if let Some(guard) = mutex.try_lock().await.unwrap() {
                    taken.fetch_add(1, Ordering::Relaxed);
                    guard.release().await.unwrap();
                } else {
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..4).map(storm).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken > 20, "{taken}");

    let guard = alternating.mutex("k").lock().await.unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(1_800) {
        assert!(other.mutex("k").try_lock().await.unwrap().is_none());
        assert!(guard.is_valid());
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(ClientStats::of(&alternating).is_idle());
}

/// R8: the holder's packets vanish, without a reset. hashicorp/consul#18271, redisson#3187.
#[tokio::test]
async fn a_holder_in_a_black_hole_loses_its_lease_at_the_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let mutex = client.mutex("k").with_ttl(ms(1_500));
    let polls = AtomicUsize::new(0);
    let start = Instant::now();
    let body = mutex.run(async |lease| {
        proxy.cut();
        loop {
            assert!(lease.is_valid(), "no poll starts after the deadline");
            polls.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(ms(10)).await;
        }
    });
    let (outcome, _): (Result<(), _>, Duration) = within("the loss", ms(5_000), body).await;
    assert!(outcome.unwrap_err().is_lost());
    assert!(polls.into_inner() > 10);
    assert!(start.elapsed() >= ms(1_470));
}

/// centrifugal/centrifugo PR 1192: only the open connection is a black hole, and a new one would
/// work. redis-rs keeps such a connection for as long as the kernel does. Renewals alone notice it:
/// the client has subscribed what it listens to.
#[tokio::test]
async fn a_silent_connection_is_replaced_before_the_lease_is_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let first = client.mutex("first").with_ttl(ms(1_500)).lock().await.unwrap();
    let listens = || server.cli::<(String, u64)>("PUBSUB NUMSUB lock:{0}:forced").1 == 1;
    eventually("it listens", ms(10_000), listens).await;
    first.release().await.unwrap();
    let guard = client.mutex("k").with_ttl(ms(6_000)).lock().await.unwrap();
    let entered = Instant::now();
    assert_eq!(proxy.black_hole(), 1);
    eventually("the lease outlives its first ttl", ms(12_000), || {
        assert!(guard.is_valid());
        entered.elapsed() > ms(6_500)
    })
    .await;
    assert_eq!(proxy.connections(), 2);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
}

/// R15: a process holds many locks in each of two stores, and one store is silent for two leases.
/// Its locks are lost by their deadline, and no renewal in the other store is late. redisson#2515,
/// #6962.
#[tokio::test]
async fn a_silent_store_delays_no_renewal_of_another() {
    let locks = scale(100);
    let (healthy, silent) = (RedisServer::start(), RedisServer::start());
    let defaults = LockOptions::new().with_ttl(ms(2_000));
    let mut held = Vec::new();
    for server in [&healthy, &silent] {
        server.load_scripts();
        let client = client_with(&server.url(), defaults).await;
        let lock = |number| client.mutex(format!("k{number}")).lock();
        let guards = try_join_all((0..locks).map(lock)).await.unwrap();
        held.push((client, guards));
    }
    let [(kept_by, kept), (lost_by, lost)] = held.try_into().unwrap();
    silent.pause();
    let before = healthy.script_calls();
    let begun = Instant::now();
    while begun.elapsed() < ms(4_000) {
        assert!(kept.iter().all(|guard| guard.is_valid()), "after {:?}", begun.elapsed());
        tokio::time::sleep(ms(10)).await;
    }
    assert!(healthy.script_calls() >= before + 4, "they were renewed");
    assert!(!lost.iter().any(|guard| guard.is_valid()));
    for guard in &lost {
        let (reason, _) = within("the loss", ms(1_000), guard.lost()).await;
        assert_eq!(reason, LostReason::Expired);
    }
    silent.resume();
    for guard in kept {
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    drop(lost);
    for client in [kept_by, lost_by] {
        wait_idle(&client).await;
        assert!(ClientStats::of(&client).is_idle());
    }
}

/// FLUSHALL, a foreign DEL or a foreign SET removes a held lock. The next renewal notices, and the
/// loss is final.
#[tokio::test]
async fn a_removed_lock_is_lost_at_the_next_renewal() {
    let mut experiment = Experiment::new(
        23,
        "the loss is reported at the next renewal and final",
        "FLUSHALL, foreign DEL, foreign SET",
        &["losses"],
    );
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(3_000))).await;
    let mut last = None;
    for (command, reason) in [
        ("FLUSHALL", LostReason::Gone),
        ("DEL lock:k", LostReason::Gone),
        ("SET lock:k other PX 60000", LostReason::TakenByOther),
    ] {
        let guard = client.mutex("k").with_wait(ms(10_000)).lock().await.unwrap();
        assert!(last < Some(guard.fencing_token()), "also when the counter is lost");
        last = Some(guard.fencing_token());
        drop(server.cli::<redis::Value>(command));
        let (lost, _) = within("the loss", ms(2_500), guard.lost()).await;
        assert_eq!(lost, reason);
        experiment.saw("losses", 1);
        assert!(guard.extend(ms(10_000)).await.unwrap_err().is_lost());
        assert!(!guard.is_valid());
        let _: i64 = server.cli("DEL lock:k");
        experiment.ran(1);
    }
    experiment.finish();
}
