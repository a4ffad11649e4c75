//! Waiting: how soon a free lock is taken, what a wait costs the server, and waits that must end at
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockOptions};
use lock_testkit::{Action, Op, Proxy, RedisServer, client, client_with, eventually, ms, within};

/// Commands of waiters per second, key and process, if the holder does not use this library.
const RATE: u64 = 20;

/// Each key has one claim per process, however many tasks wait. That is at most twenty commands a
/// second against a foreign holder. When the lock is free, a few commands serve all tasks, since
/// they pass it on locally.
#[tokio::test]
async fn fifty_waiters_of_one_process_cost_no_more_than_one() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.load_scripts();
    let () = server.cli("SET lock:k foreign NX PX 60000");
    server.reset_calls();
    let start = Instant::now();
    let wait = |wait| tokio::spawn(client.mutex("k").with_wait(wait).lock());
    let losers: Vec<_> = (0..50).map(|_| wait(ms(3_000))).collect();
    for loser in losers {
        let error = loser.await.unwrap().unwrap_err();
        assert!(error.is_busy(), "{error:?}");
    }
    let (calls, took) = (server.script_calls(), start.elapsed());
    assert!(calls >= 4, "{calls}: it was polled");
    assert!(calls <= RATE * (took.as_secs() + 1), "{calls} calls in {took:?}");

    let served = Arc::new(AtomicUsize::new(0));
    let winners: Vec<_> = (0..50)
        .map(|_| {
            let (mutex, served) = (client.mutex("k").with_wait(ms(60_000)), Arc::clone(&served));
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                served.fetch_add(1, Ordering::Relaxed);
                guard.release().await.unwrap();
            })
        })
        .collect();
    eventually("they wait", ms(5_000), || server.queued("k") == 1).await;
    server.reset_calls();
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    for winner in winners {
        winner.await.unwrap();
    }
    assert_eq!(served.load(Ordering::Relaxed), 50);
    let calls = server.script_calls();
    // One claim and one release, and as many again for each five milliseconds that a busy machine
    // takes.
    assert!((2..=30).contains(&calls), "{calls} calls for 50 turns");
    assert!(ClientStats::of(&client).is_idle());
}

/// Waiters that come and go, each with a short wait, only enter the queue and leave it.
#[tokio::test]
async fn impatient_waiters_one_after_another_do_not_poll_faster() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.load_scripts();
    let () = server.cli("SET lock:k foreign NX PX 60000");
    server.reset_calls();
    let start = Instant::now();
    let mut waiters = Vec::new();
    while start.elapsed() < ms(3_000) {
        waiters.push(tokio::spawn(client.mutex("k").with_wait(ms(100)).lock()));
        tokio::time::sleep(ms(5)).await;
    }
    let (count, mut stalled) = (waiters.len(), 0);
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(error.is_busy() || error.is_unknown(), "{error:?}");
        stalled += usize::from(error.is_unknown());
    }
    assert!(count > 100, "{count}");
    // On a machine that stalls, the wait may end before the reply to its claim.
    assert!(stalled < count / 4, "{stalled} of {count}");
    wait_idle(&client).await;
    let calls = server.script_calls();
    let polls = RATE * (start.elapsed().as_secs() + 1);
    assert!(calls <= 2 * count as u64 + polls, "{calls} calls for {count} waiters");
    assert!(server.queue("k").is_empty());
}

/// Waiters behind tasks of their own process that give up get "busy", since the store is fine.
#[tokio::test]
async fn a_waiter_that_gives_up_behind_its_own_process_gets_busy() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut tasks = Vec::new();
    for number in 0..200_u64 {
        let mutex = client.mutex("k").with_wait(ms(50 + number * 3));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await?;
            tokio::time::sleep(ms(3)).await;
            guard.release().await
        }));
    }
    let (mut served, mut busy) = (0, 0);
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => served += 1,
            Err(error) if error.is_busy() => busy += 1,
            Err(error) => panic!("neither served nor busy, but {error:?}"),
        }
    }
    assert!(served > 10 && busy > 10, "{served} served, {busy} busy");
}

/// R25: without a wait it is one round trip, and nothing is subscribed. redisson#2801, #543, #5002.
#[tokio::test]
async fn a_try_is_one_command() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.load_scripts();
    let () = server.cli("SET lock:k foreign NX PX 60000");
    server.reset_calls();
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    assert_eq!(server.script_calls(), 1);
    assert_eq!(server.calls("subscribe") + server.calls("psubscribe"), 0);
    assert_eq!((server.queued("k"), server.inboxes().len()), (0, 0));
    let guard = client.mutex("free").try_lock().await.unwrap().expect("free");
    assert_eq!(server.script_calls(), 2);
    guard.release().await.unwrap();
    assert_eq!(server.script_calls(), 3);
}

/// R20: a task that claims a lock it already holds gets an error instead of waiting for itself.
/// redisson#4796.
#[tokio::test]
async fn a_task_that_claims_the_lock_it_holds_gets_an_error_at_once() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mutex = client.mutex("k").wait_forever();
    let body = mutex.run(async |_| {
        let error = mutex.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
        assert!(mutex.try_lock().await.unwrap().is_none());
        // A nested body shares the lease, even if two of them run side by side.
        let (one, two) = tokio::join!(mutex.run(async |_| 1), mutex.run(async |_| 2));
        one.unwrap() + two.unwrap()
    });
    let (sum, _) = within("an answer", ms(5_000), body).await;
    assert_eq!(sum.unwrap(), 3);

    let guard = mutex.lock().await.unwrap();
    let bound = guard.run_until_lost(async { mutex.lock().await.unwrap_err().kind() });
    let (kind, _) = within("an answer", ms(5_000), bound).await;
    assert_eq!(kind.unwrap(), ErrorKind::WouldDeadlock);
}

/// O5: a task that keeps a guard waits for itself by a second one. The library cannot know, since a
/// guard may be in any task's hands; the error says that the holder may be this very task.
#[tokio::test]
async fn a_second_guard_of_a_task_waits_and_the_error_says_that_the_holder_may_be_itself() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mutex = client.mutex("k").with_wait(ms(300));
    let guard = mutex.lock().await.unwrap();
    let start = Instant::now();
    let error = mutex.lock().await.unwrap_err();
    assert!(error.is_busy() && start.elapsed() >= ms(300), "{error:?} at {:?}", start.elapsed());
    assert!(error.to_string().contains("this very task"), "{error}");
    guard.release().await.unwrap();

    // The holder is another client, in this process or another one.
    let () = server.cli("SET lock:k foreign NX PX 60000");
    let error = mutex.lock().await.unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("another process"), "{error}");
    assert!(!error.to_string().contains("this very task"), "{error}");
}

/// A holder that never releases: the waiter gets the lock at its expiry, not at the next poll after
/// it.
#[tokio::test]
async fn an_expiring_lock_is_taken_when_it_expires() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_wait(ms(20_000))).await;
    let start = Instant::now();
    let () = server.cli("SET lock:k foreign NX PX 700");
    let guard = client.mutex("k").lock().await.unwrap();
    let took = start.elapsed();
    assert!(took >= ms(695) && took < ms(2_000), "{took:?}");
    guard.release().await.unwrap();
}

/// A waiter gets the lock although its claims meet errors and closed connections.
#[tokio::test]
async fn a_waiter_is_served_although_its_claims_fail() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let () = server.cli("SET lock:k foreign NX PX 60000");
    let faults = [
        Action::CloseBefore,
        Action::CloseAfter,
        Action::Refuse("LOADING Redis is loading the dataset in memory"),
        Action::Refuse("CLUSTERDOWN The cluster is down"),
        Action::Refuse("MASTERDOWN Link with MASTER is down"),
        Action::Refuse("TRYAGAIN later"),
        Action::Refuse("OOM command not allowed when used memory > 'maxmemory'"),
        Action::Refuse("NOSCRIPT No matching script"),
        Action::LoseReply,
    ];
    let faults: Vec<_> =
        faults.into_iter().map(|action| proxy.rule(Op::Acquire, action).after(1).once()).collect();
    let waiter = tokio::spawn(client.mutex("k").with_wait(ms(60_000)).lock());
    let met = || faults.iter().all(|fault| fault.hits() == 1);
    eventually("it met them all", ms(30_000), met).await;
    assert!(!waiter.is_finished());
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    let (guard, _) = within("the lock", ms(10_000), waiter).await;
    guard.unwrap().unwrap().release().await.unwrap();
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
}
