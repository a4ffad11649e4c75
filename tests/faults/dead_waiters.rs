//! A queue of dead waiters, and of members that are no claims.

use std::fmt::Write as _;
use std::time::Instant;

use lock_core::{Error, LockClient, MutexGuard};
use lock_testkit::{RedisServer, client, eventually, ms, within};
use tokio::task::JoinHandle;

use crate::lost_wakeup::AT_ONCE;

/// The time, in ms, at which the tickets of dead waiters expire: in none of these tests.
const FAR: &str = "99999999999999";
/// Many processes that were killed together.
const DEAD: usize = 500;

/// Puts members into both sets of the queue of `k`, before those that come later.
fn put(server: &RedisServer, members: impl Iterator<Item = String>) {
    let (mut queue, mut alive) = ("ZADD lock:{0}:q:k".to_owned(), "ZADD lock:{0}:a:k".to_owned());
    for (ticket, member) in members.enumerate() {
        write!(queue, " {} {member}", ticket + 1).unwrap();
        write!(alive, " {FAR} {member}").unwrap();
    }
    let _: i64 = server.cli(&queue);
    let _: i64 = server.cli(&alive);
}

fn token(number: usize) -> String {
    format!("{number:08x}-ee8a-4ca4-894e-db77e160355e")
}

/// Waiters of as many processes, none of which is there.
fn dead() -> impl Iterator<Item = String> {
    (0..DEAD).map(|number| format!("{}:3000:=lock:{{0}}:i:{number}", token(number)))
}

type Waiter = JoinHandle<Result<MutexGuard, Error>>;

/// The release of `guard` gives the lock to `waiter` at once, and nothing is left in the end.
async fn assert_handed_on(server: &RedisServer, guard: MutexGuard, waiter: Waiter) {
    let start = Instant::now();
    guard.release().await.unwrap();
    let (guard, _) = within("the lock", ms(5_000), waiter).await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

async fn waiter_behind(server: &RedisServer, client: &LockClient, before: usize) -> Waiter {
    let waiter = tokio::spawn(client.mutex("k").with_wait(ms(60_000)).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == before + 1).await;
    waiter
}

/// A release passes over any number of dead waiters.
#[tokio::test]
async fn a_release_finds_the_live_waiter_behind_many_dead_ones() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    put(&server, dead());
    let waiter = waiter_behind(&server, &other, DEAD).await;
    assert_handed_on(&server, guard, waiter).await;
}

/// A holder dies: the waiter does not claim less often because many dead ones are before it.
// learningequality/kolibri#7463
#[tokio::test]
async fn an_expired_lock_is_found_within_a_second_behind_many_dead_waiters() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let () = server.cli(&format!("SET lock:k {} PX 2500", token(DEAD)));
    put(&server, dead());
    let waiter = waiter_behind(&server, &client, DEAD).await;
    eventually("the lock expires", ms(5_000), || !server.has("lock:k")).await;
    let start = Instant::now();
    let (guard, _) = within("the lock", ms(10_000), waiter).await;
    // A claim a second, and what a busy machine adds. It was up to 2.8 s.
    assert!(start.elapsed() < ms(2_000), "{:?}", start.elapsed());
    drop(guard);
}

/// Members that this library did not write get no lock, and delay no waiter.
// symfony/symfony#65721
#[tokio::test]
async fn rubbish_in_a_queue_gets_no_lock() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    put(&server, (0..300).map(|number| format!("ghost-{number}:60000:~nowhere")));
    // In one of the two sets only.
    let _: i64 = server.cli(&format!("ZADD lock:{{0}}:q:k 1 {}:60000:~nowhere", token(1)));
    let waiter = tokio::spawn(other.mutex("k").with_wait(ms(60_000)).lock());
    eventually("the rubbish is gone", ms(5_000), || server.queued("k") == 1).await;
    for set in ["q", "a"] {
        assert!(server.pttl(&format!("lock:{{0}}:{set}:k")) > 0, "the set {set} never expires");
    }
    put(&server, ["ghost:60000:~nowhere".to_owned()].into_iter());
    assert_handed_on(&server, guard, waiter).await;
}

/// A member of the right form gets the lock for no longer than a claim lasts.
#[tokio::test]
async fn a_member_gets_the_lock_for_the_time_of_a_claim_at_most() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").lock().await.unwrap();
    put(&server, [format!("{}:60000:~", token(1))].into_iter());
    guard.release().await.unwrap();
    assert_eq!(server.get("lock:k"), Some(token(1)));
    assert!((1..=3_000).contains(&server.pttl("lock:k")), "{}", server.pttl("lock:k"));
}

/// Turns so short that no claim finds its token at the head of the queue: both sets of the queue
/// are kept all the same, so no waiter is forgotten.
#[tokio::test]
async fn both_sets_of_a_queue_are_kept_while_turns_are_short() {
    let server = RedisServer::start();
    let (one, two, three) =
        (client(&server.url()).await, client(&server.url()).await, client(&server.url()).await);
    let guard = one.mutex("k").lock().await.unwrap();
    let second = waiter_behind(&server, &two, 0).await;
    let _: i64 = server.cli("PEXPIRE lock:{0}:a:k 60000");
    let third = waiter_behind(&server, &three, 1).await;
    for set in ["q", "a"] {
        let left = server.pttl(&format!("lock:{{0}}:{set}:k"));
        assert!(left > 100_000, "the set {set} is kept for {left} ms more");
    }
    guard.release().await.unwrap();
    for waiter in [second, third] {
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < AT_ONCE, "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

/// A member that would get the lock for no time is no claim, and does not disturb one.
#[tokio::test]
async fn a_member_without_a_time_is_no_claim() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    put(&server, [format!("{}:0:~x", token(1))].into_iter());
    let waiter = tokio::spawn(other.mutex("k").with_wait(ms(60_000)).lock());
    eventually("the rubbish is gone", ms(5_000), || {
        server.queued("k") == 1 && !server.queue("k")[0].contains(":0:")
    })
    .await;
    guard.release().await.unwrap();
    within("the lock", ms(5_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
}
