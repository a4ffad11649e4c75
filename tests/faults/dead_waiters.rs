//! A queue of dead waiters, and of members that are no claims.

use std::fmt::Write as _;
use std::time::Instant;

use lock_core::LockClient;
use lock_testkit::{RedisServer, client, eventually, ms, within};

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

async fn waiter_behind(
    server: &RedisServer,
    client: &LockClient,
    before: usize,
) -> tokio::task::JoinHandle<Result<lock_core::MutexGuard, lock_core::Error>> {
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
    let start = Instant::now();
    guard.release().await.unwrap();
    let (guard, _) = within("the lock", ms(5_000), waiter).await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
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
    // A claim a second, and what a busy machine adds.
    assert!(start.elapsed() < ms(1_500), "{:?}", start.elapsed());
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
    let start = Instant::now();
    guard.release().await.unwrap();
    let (guard, _) = within("the lock", ms(5_000), waiter).await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
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
