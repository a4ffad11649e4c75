//! The queue: the order of service, the cost of a hand-off, and the claims that must not overtake.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::testing::wait_idle;
use lock_core::{Error, LockClient, LockOptions, MutexGuard};
use lock_testkit::history::{self, Turns};
use lock_testkit::{
    Action, Gate, Op, Proxy, RedisServer, client, client_with, eventually, ms, within,
};
use tokio::task::JoinHandle;

use crate::lost_wakeup::AT_ONCE;

type Waiter = JoinHandle<Result<MutexGuard, Error>>;

/// The value of a lock of this library.
const A_TOKEN: &str = "6fa459ea-ee8a-4ca4-894e-db77e160355e";

/// Waits for `k`. Returns when the claim is queued behind `before` others.
async fn queue_up(server: &RedisServer, client: &LockClient, before: usize) -> Waiter {
    let waiter = tokio::spawn(client.mutex("k").with_wait(ms(60_000)).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == before + 1).await;
    waiter
}

async fn clients<const N: usize>(server: &RedisServer) -> [LockClient; N] {
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(client(&server.url()).await);
    }
    all.try_into().unwrap_or_else(|_| unreachable!())
}

/// Each release grants the lock to the longest waiter at once, and no other client sends anything
/// for it.
#[tokio::test]
async fn clients_are_served_in_the_order_of_their_claims() {
    let server = RedisServer::start();
    server.load_scripts();
    let [holder, others @ ..] = clients::<6>(&server).await;
    let mut guard = holder.mutex("k").lock().await.unwrap();
    let mut waiters = Vec::new();
    for (before, other) in others.iter().enumerate() {
        waiters.push(queue_up(&server, other, before).await);
    }
    server.reset_calls();
    let (start, count) = (Instant::now(), waiters.len() as u64);
    for waiter in waiters {
        let before = guard.fencing_token();
        guard.release().await.unwrap();
        let (next, took) = within("the lock", ms(5_000), waiter).await;
        guard = next.unwrap().unwrap();
        assert!(took < AT_ONCE, "{took:?}");
        assert!(guard.fencing_token() > before);
    }
    // The rest are re-sent claims, about one per second and waiter.
    let (calls, seconds) = (server.script_calls(), start.elapsed().as_secs() + 1);
    assert!((count..=count + count * seconds).contains(&calls), "{calls} for {count} hand-offs");
    guard.release().await.unwrap();
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// A critical section costs a release and a claim, however many clients wait. With `n` waiters,
/// polling cost `n` claims and more.
#[tokio::test]
async fn a_turn_costs_two_commands_however_many_clients_wait() {
    const ROUNDS: usize = 40;
    let server = RedisServer::start();
    server.load_scripts();
    let turns = Turns::default();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for (owner, client) in clients::<4>(&server).await.into_iter().enumerate() {
        let turns = turns.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.mutex("k").with_wait(ms(60_000)).lock().await.unwrap();
                turns.hold(owner, guard, ms(2)).await.unwrap();
            }
        }));
    }
    // From here on all clients know each other.
    eventually("they take turns", ms(20_000), || turns.len() >= 4 * 4).await;
    server.reset_calls();
    let before = turns.len();
    for task in tasks {
        task.await.unwrap();
    }
    let sections = (turns.len() - before) as u64;
    assert!(sections > 100, "{sections}");
    // Few claims are re-sent, since each wait takes a few milliseconds.
    let (calls, seconds) = (server.script_calls(), start.elapsed().as_secs() + 1);
    assert!(calls <= 2 * sections + 4 * seconds, "{calls} commands for {sections} sections");

    let order = history::check("k", turns.all());
    // While all four take part, each waits for at most the three others, except in the first round.
    for window in order[8..order.len() - 16].windows(7) {
        for owner in 0..4 {
            assert!(window.contains(&owner), "{owner} was passed over: {order:?}");
        }
    }
}

/// A holder of this library announces its release, so waiters do not poll continually.
#[tokio::test]
async fn waiters_do_not_poll_a_holder_that_announces_its_release() {
    let server = RedisServer::start();
    server.load_scripts();
    let [holder, others @ ..] = clients::<4>(&server).await;
    let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    let mut waiters = Vec::new();
    for (before, other) in others.iter().enumerate() {
        waiters.push(queue_up(&server, other, before).await);
    }
    server.reset_calls();
    tokio::time::sleep(ms(3_000)).await;
    let calls = server.script_calls();
    assert!((2..=3 * 3 + 3).contains(&calls), "{calls} commands of 3 waiters in 3 s");
    guard.release().await.unwrap();
    for waiter in waiters {
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < AT_ONCE, "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

/// R25: `try_lock` is one command and enters no queue. It gets nothing while a task waits, however
/// often it is repeated.
#[tokio::test]
async fn a_storm_of_tries_overtakes_no_waiter() {
    let server = RedisServer::start();
    server.load_scripts();
    let [holder, trier, others @ ..] = clients::<6>(&server).await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let mut waiters = Vec::new();
    for (before, other) in others.iter().enumerate() {
        waiters.push(queue_up(&server, other, before).await);
    }
    server.reset_calls();
    for _ in 0..10 {
        assert!(trier.mutex("k").try_lock().await.unwrap().is_none());
    }
    assert_eq!(server.queued("k"), 4);
    assert_eq!(server.inboxes().len(), 4);
    let calls = server.script_calls();
    assert!((10..=10 + 4 * 2).contains(&calls), "{calls} commands for 10 tries");

    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    let trying = tokio::spawn(async move {
        loop {
            match trier.mutex("k").try_lock().await.unwrap() {
                Some(guard) => return guard.fencing_token(),
                None => _ = counted.fetch_add(1, Ordering::Relaxed),
            }
        }
    });
    guard.release().await.unwrap();
    let mut last = None;
    for waiter in waiters {
        let (guard, _) = within("the lock", ms(5_000), waiter).await;
        let guard = guard.unwrap().unwrap();
        // Long enough for some attempts, even on a busy machine.
        tokio::time::sleep(ms(20)).await;
        let before = refused.load(Ordering::Relaxed);
        let tried = || refused.load(Ordering::Relaxed) > before + 5 || trying.is_finished();
        eventually("it is tried", ms(5_000), tried).await;
        assert!(!trying.is_finished(), "a try took the lock from a waiter");
        last = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
    let (outcome, _) = within("the try", ms(5_000), trying).await;
    let refused = refused.load(Ordering::Relaxed);
    assert!(refused > 20, "{refused} tries in between");
    assert!(Some(outcome.unwrap()) > last);
}

/// A lock that expires goes to the head of the queue, whichever client finds it free. Here a
/// `try_lock` finds it, while the head itself cannot send its claim.
#[tokio::test]
async fn an_expired_lock_goes_to_the_head_and_not_to_a_try() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let [trier, third] = clients::<2>(&server).await;
    let [first, second] = [client(&proxy.url()).await, client(&proxy.url()).await];
    let () = server.cli(&format!("SET lock:k {A_TOKEN} NX PX 1500"));
    let first = queue_up(&server, &first, 0).await;
    let second = queue_up(&server, &second, 1).await;
    let third = queue_up(&server, &third, 2).await;
    let (gate, head) = (Gate::new(), server.queue("k")[0].clone());
    let stuck = proxy.rule(Op::Acquire, Action::HoldRequest(gate.clone())).always();
    let mut fence = None;
    let mut refused = 0;
    let start = Instant::now();
    while !first.is_finished() {
        fence = trier.mutex("k").try_lock().await.unwrap().map(|guard| guard.fencing_token());
        refused += 1;
        assert_eq!(fence, None, "the try took it");
        tokio::time::sleep(ms(2)).await;
        assert!(start.elapsed() < ms(4_000), "the head was not served");
    }
    assert_eq!(fence, None);
    assert!(stuck.hits() >= 1 && refused > 20, "the head sent its own claim: {stuck:?}");
    let token = server.get("lock:k").unwrap();
    assert!(head.starts_with(&token), "{head} is the head, {token} holds");
    stuck.end();
    gate.open();
    let mut fences = Vec::new();
    for waiter in [first, second, third] {
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        let guard = guard.unwrap().unwrap();
        assert!(took < ms(1_000), "{took:?}");
        fences.push(guard.fencing_token());
        guard.release().await.unwrap();
    }
    assert!(fences.is_sorted(), "{fences:?}");
}

/// The holder knows no hand-off. Its `DEL` is noticed by the next poll, at most a second later.
#[tokio::test]
async fn a_foreign_release_is_noticed_within_a_second() {
    let server = RedisServer::start();
    server.load_scripts();
    let [one, two] = clients::<2>(&server).await;
    for (expiry, held) in [("", 50), (" PX 60000", 400), ("", 3_000)] {
        let () = server.cli(&format!("SET lock:k foreign NX{expiry}"));
        let first = queue_up(&server, &one, 0).await;
        let second = queue_up(&server, &two, 1).await;
        server.reset_calls();
        tokio::time::sleep(ms(held)).await;
        let calls = server.script_calls();
        // Only the head polls, with a growing delay: after about 100, 200, 400, 800 and 1,000 ms.
        // The other waiter re-sends its claim.
        assert!(calls <= 2 + held / 100 / 2, "{calls} commands in {held} ms");
        assert!(!first.is_finished() && !second.is_finished());
        assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
        let (guard, took) = within("the lock", ms(5_000), first).await;
        assert!(took < ms(1_100) + SLACK, "{took:?} after {held} ms");
        guard.unwrap().unwrap().release().await.unwrap();
        let (guard, took) = within("the lock", ms(5_000), second).await;
        assert!(took < AT_ONCE, "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// Extra time for a busy machine.
const SLACK: Duration = ms(250);

/// A foreign holder lets its lock expire. The head knows the time of the expiry.
#[tokio::test]
async fn a_foreign_lock_is_taken_when_it_expires() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut late = Vec::new();
    for span in [300, 700, 1_900, 2_600] {
        let () = server.cli(&format!("SET lock:k foreign NX PX {span}"));
        let start = Instant::now();
        let guard = client.mutex("k").with_wait(ms(20_000)).lock().await.unwrap();
        let took = start.elapsed();
        assert!(took >= ms(span - 5), "{took:?} of {span} ms");
        late.push(took.saturating_sub(ms(span)));
        guard.release().await.unwrap();
    }
    late.sort_unstable();
    assert!(late[1] < ms(50), "a machine that is not busy: {late:?}");
    assert!(late[3] < ms(50) + SLACK, "{late:?}");
}

/// `min_hold`: the key stays after its release. It is granted to the waiters in order when it
/// expires.
#[tokio::test]
async fn a_lock_kept_by_min_hold_is_granted_in_order() {
    let server = RedisServer::start();
    let [holder, trier, one, two] = clients::<4>(&server).await;
    let mutex = holder.mutex("k").with_min_hold(ms(900));
    let (start, guard) = (Instant::now(), mutex.lock().await.unwrap());
    let first = queue_up(&server, &one, 0).await;
    let second = queue_up(&server, &two, 1).await;
    guard.release().await.unwrap();
    let mut early = 0;
    while !first.is_finished() {
        assert!(trier.mutex("k").try_lock().await.unwrap().is_none(), "out of turn");
        early += 1;
        tokio::time::sleep(ms(2)).await;
        assert!(start.elapsed() < ms(5_000));
    }
    let took = start.elapsed();
    assert!(early > 20 && took >= ms(890) && took < ms(1_100) + SLACK, "{took:?}");
    first.await.unwrap().unwrap().release().await.unwrap();
    let (guard, took) = within("the lock", ms(5_000), second).await;
    assert!(took < AT_ONCE, "{took:?}");
    guard.unwrap().unwrap().release().await.unwrap();
}

/// A waiter that gives up leaves the queue. The waiters before and behind it keep their order.
#[tokio::test]
async fn a_waiter_that_gives_up_leaves_the_queue() {
    let server = RedisServer::start();
    let [holder, one, two, three] = clients::<4>(&server).await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let first = queue_up(&server, &one, 0).await;
    let impatient = tokio::spawn(two.mutex("k").with_wait(ms(300)).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 2).await;
    let third = queue_up(&server, &three, 2).await;
    assert!(impatient.await.unwrap().unwrap_err().is_busy());
    eventually("it has left", ms(5_000), || server.queued("k") == 2).await;
    // The head gives up without sending anything.
    first.abort();
    eventually("it has left, too", ms(5_000), || server.queued("k") == 1).await;
    guard.release().await.unwrap();
    let (guard, took) = within("the lock", ms(5_000), third).await;
    assert!(took < AT_ONCE, "{took:?}");
    guard.unwrap().unwrap().release().await.unwrap();
    for client in [&holder, &one, &two, &three] {
        wait_idle(client).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// A wait that is much longer than a ticket lasts without being refreshed.
#[tokio::test]
async fn a_long_wait_keeps_its_place() {
    let server = RedisServer::start();
    let defaults = LockOptions::new().with_ttl(ms(600));
    let holder = client_with(&server.url(), defaults).await;
    let [one, two] =
        [client_with(&server.url(), defaults).await, client_with(&server.url(), defaults).await];
    let guard = holder.mutex("k").lock().await.unwrap();
    let first = queue_up(&server, &one, 0).await;
    let place = server.queue("k");
    // With this TTL a ticket lasts 1.6 s.
    tokio::time::sleep(ms(4_000)).await;
    let second = queue_up(&server, &two, 1).await;
    assert_eq!(server.queue("k")[..1], place[..]);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    let (guard, took) = within("the lock", ms(5_000), first).await;
    assert!(took < AT_ONCE && !second.is_finished(), "{took:?}");
    guard.unwrap().unwrap().release().await.unwrap();
    let (guard, _) = within("the lock", ms(5_000), second).await;
    guard.unwrap().unwrap().release().await.unwrap();
}
