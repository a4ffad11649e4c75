//! Waiters that are dropped before, while and after they are granted the lock: P21, R1.
//! redisson#7272.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::{
    Action, Gate, Op, Proxy, RedisServer, client_with, eventually, is_due, ms, scale, within,
};

use crate::lost_wakeup::AT_ONCE;

/// Long enough that nothing expires within a test.
const TTL: Duration = ms(60_000);

async fn clients<const N: usize>(url: &str) -> [LockClient; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(client_with(url, LockOptions::new().with_ttl(TTL).with_wait(TTL)).await);
    }
    all.try_into().unwrap_or_else(|_| unreachable!())
}

/// Checks that no client left anything on the server or in memory.
async fn nothing_remains(server: &RedisServer, clients: &[LockClient]) {
    for client in clients {
        wait_idle(client).await;
        eventually("it is idle", ms(5_000), || ClientStats::of(client).is_idle()).await;
    }
    eventually("nothing remains", ms(5_000), || server.leftovers().is_empty()).await;
    assert!(server.inboxes().len() <= clients.len(), "{:?}", server.inboxes());
}

/// Drives `future`, and drops it instead of polling it once more than `count` times.
async fn polled<F: Future>(future: F, count: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = count;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A waiter is dropped at each of its awaits, whether woken or not, while the lock is held and
/// after it was granted. The next waiter in the queue is served at once.
#[tokio::test]
async fn a_waiter_dropped_at_any_await_does_not_delay_the_next_one() {
    let server = RedisServer::start();
    let clients = clients::<3>(&server.url()).await;
    let mutexes: Vec<_> = clients.iter().map(|client| client.mutex("k")).collect();
    let (mut dropped, mut granted, mut round) = (0, 0, 0);
    while is_due(round, 24, dropped >= 20 && granted > 0) {
        let count = round % 24;
        for released_first in [false, true] {
            let guard = mutexes[0].lock().await.unwrap();
            let victim = tokio::spawn(polled(mutexes[1].lock(), count % 12 + 1));
            // This puts the next waiter behind it.
            let placed = || server.queued("k") == 1 || victim.is_finished();
            eventually("it is queued or gone", ms(5_000), placed).await;
            // The victim may be gone, and its place about to go.
            let before = server.queue("k");
            let next = tokio::spawn(mutexes[2].lock());
            let behind = || server.queue("k").iter().any(|place| !before.contains(place));
            eventually("the next one is queued", ms(5_000), behind).await;
            if !released_first {
                victim.abort();
                if count >= 12 {
                    // Both happen in the same instant.
                    tokio::task::yield_now().await;
                }
            }
            guard.release().await.unwrap();
            if released_first {
                for _ in 0..count {
                    tokio::task::yield_now().await;
                }
                victim.abort();
            }
            match victim.await {
                Ok(Some(guard)) => {
                    granted += 1;
                    drop(guard.unwrap());
                }
                Ok(None) | Err(_) => dropped += 1,
            }
            let (guard, took) = within("the lock", ms(10_000), next).await;
            assert!(took < AT_ONCE, "{took:?} after {count} polls");
            guard.unwrap().unwrap().release().await.unwrap();
        }
        round += 1;
    }
    assert!(dropped >= 20 && granted > 0, "{dropped} dropped, {granted} granted");
    nothing_remains(&server, &clients).await;
}

/// The waiter is dropped while its grant is on its way. The client releases the lock as soon as the
/// grant arrives.
#[tokio::test]
async fn a_grant_for_a_dropped_waiter_is_released_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let [holder, third] = clients::<2>(&server.url()).await;
    let [gone] = clients::<1>(&proxy.url()).await;
    for round in 0..3 {
        let guard = holder.mutex("k").lock().await.unwrap();
        let waiter = tokio::spawn(gone.mutex("k").lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        let next = tokio::spawn(third.mutex("k").lock());
        eventually("the next one is queued", ms(5_000), || server.queued("k") == 2).await;
        let (message, leave) = (Gate::new(), Gate::new());
        let told = proxy.rule(Op::Message, Action::HoldReply(message.clone())).once();
        let left = proxy.rule(Op::Release, Action::HoldRequest(leave.clone())).once();
        guard.release().await.unwrap();
        eventually("it is granted", ms(5_000), || told.hits() == 1).await;
        waiter.abort();
        drop(waiter.await);
        if round > 0 {
            eventually("it leaves", ms(5_000), || left.hits() == 1).await;
        }
        assert_eq!(server.queued("k"), 1, "the next one still waits");
        // The order of the two must not matter.
        if round == 1 {
            message.open();
        }
        leave.open();
        let (guard, took) = within("the lock", ms(10_000), next).await;
        assert!(took < AT_ONCE, "round {round}: {took:?}");
        message.open();
        guard.unwrap().unwrap().release().await.unwrap();
        left.end();
        wait_idle(&gone).await;
    }
    nothing_remains(&server, &[holder, gone, third]).await;
}

/// A failover brings back a queue entry that its waiter had given up. The lock is granted to it,
/// since its client still listens. The client does not know the token, and releases the lock at
/// once.
#[tokio::test]
async fn a_grant_to_a_ticket_restored_by_a_failover_is_released_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let [holder, third] = clients::<2>(&server.url()).await;
    let [gone] = clients::<1>(&proxy.url()).await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let waiter = tokio::spawn(gone.mutex("k").lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let member = server.queue("k").remove(0);
    waiter.abort();
    drop(waiter.await);
    wait_idle(&gone).await;
    assert_eq!(server.queued("k"), 0);

    let next = tokio::spawn(third.mutex("k").lock());
    eventually("the next one is queued", ms(5_000), || server.queued("k") == 1).await;
    let _: i64 = server.cli(&format!("ZADD lock:{{0}}:q:k 1 {member}"));
    let _: i64 = server.cli(&format!("ZADD lock:{{0}}:a:k 9007199254740991 {member}"));
    assert_eq!(server.queue("k")[0], member);
    guard.release().await.unwrap();
    let (guard, took) = within("the lock", ms(10_000), next).await;
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(proxy.seen(Op::Message), 1, "the dead waiter was notified");
    guard.unwrap().unwrap().release().await.unwrap();
    nothing_remains(&server, &[holder, gone, third]).await;
}

/// Thousands of waiters of three clients are dropped at random around their grants. The remaining
/// waiters are served without a gap.
#[tokio::test]
async fn thousands_of_waiters_dropped_at_random_leave_no_gap() {
    const TASKS: usize = 2;
    let rounds = scale(700);
    let server = RedisServer::start();
    let clients = clients::<3>(&server.url()).await;
    let start = Instant::now();
    for _ in 0..50 {
        clients[0].mutex("k").lock().await.unwrap().release().await.unwrap();
    }
    let round_trip = start.elapsed() / 100;
    let enough = rounds / 2;
    let grants = Arc::new(Mutex::new(vec![Instant::now()]));
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..clients.len() * TASKS {
        let (mutex, grants) = (clients[number / TASKS].mutex("k"), Arc::clone(&grants));
        let dropped = Arc::clone(&dropped);
        tasks.push(tokio::spawn(async move {
            let has_enough = || {
                dropped.load(Ordering::Relaxed) > enough && grants.lock().unwrap().len() > enough
            };
            let mut round = 0;
            while is_due(round, rounds, has_enough()) {
                // Golden-ratio steps cover the range evenly.
                let part = ((number * rounds + round) as f64 * 0.618_033_988_75).fract();
                let patience = round_trip.mul_f64(part * part * 8.0);
                tokio::select! {
                    biased;
                    () = spin(patience) => {
                        dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    guard = mutex.lock() => {
                        let guard = guard.unwrap();
                        grants.lock().unwrap().push(Instant::now());
                        if round % 3 == 0 {
                            guard.release().await.unwrap();
                        }
                    }
                }
                round += 1;
            }
        }));
    }
    for task in tasks {
        within("its rounds", ms(120_000), task).await.0.unwrap();
    }
    let end = Instant::now();
    let grants = grants.lock().unwrap().clone();
    let dropped = dropped.load(Ordering::Relaxed);
    println!("{dropped} dropped, {} granted in {:?}", grants.len(), end - start);
    assert!(dropped > enough && grants.len() > enough, "{dropped}, {}", grants.len());
    let gaps = grants.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.max().unwrap();
    // A grant without an owner would keep the lock for three seconds.
    assert!(longest < ms(1_500), "{longest:?} without a grant");
    for client in &clients {
        let (guard, took) = within("the lock", ms(10_000), client.mutex("k").lock()).await;
        assert!(took < AT_ONCE, "{took:?}");
        guard.unwrap().release().await.unwrap();
    }
    nothing_remains(&server, &clients).await;
}

/// Waits with far more precision than a timer.
async fn spin(span: Duration) {
    let start = Instant::now();
    while start.elapsed() < span {
        tokio::task::yield_now().await;
    }
}
