//! Many clients want one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::testing::wait_idle;
use lock_testkit::history::{self, Turns};
use lock_testkit::{Quorum, Rng, eventually, ms, within};

use crate::{BOUND, client};

/// Less than the second after which a waiter looks by itself.
const AT_ONCE: Duration = ms(500);

/// HA22 (node-redlock#168, sesamecare/redlock#6): clients that claim at the same time split the
/// votes, again and again. All are served, one at a time, and tokens grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_claim_at_once_are_served_one_at_a_time() {
    const CLIENTS: usize = 6;
    const TURNS: usize = 15;
    let quorum = Quorum::of_age(5, "lock");
    let clients = join_all((0..CLIENTS).map(|_| client(&quorum))).await;
    let turns = Turns::default();
    let tasks = clients.iter().enumerate().map(|(owner, client)| {
        let (mutex, turns) = (client.mutex("hot").with_wait(BOUND * 3), turns.clone());
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let guard = mutex.lock().await.unwrap();
                turns.hold(owner, guard, ms(1)).await.unwrap();
            }
        })
    });
    let (done, took) = within("all turns", BOUND * 4, join_all(tasks)).await;
    for task in done {
        task.unwrap();
    }
    history::check("hot", turns.all());
    assert_eq!(turns.len(), CLIENTS * TURNS);
    assert!(took < BOUND * 2, "{took:?}");
    for client in &clients {
        wait_idle(client).await;
    }
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// H19: futures that are dropped at random moments leave nothing, and stop no other client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_claims_leave_nothing() {
    let quorum = Quorum::of_age(3, "lock");
    let clients = join_all((0..4).map(|_| client(&quorum))).await;
    let (inside, granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = clients.iter().zip(0..).map(|(client, seed)| {
        let mutex = client.mutex("hot");
        let (inside, granted) = (Arc::clone(&inside), Arc::clone(&granted));
        tokio::spawn(async move {
            let mut rng = Rng::new(seed);
            for _ in 0..60 {
                let patience = Duration::from_micros(rng.within(0..=8_000));
                if let Ok(Ok(guard)) = tokio::time::timeout(patience, mutex.lock()).await {
                    assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two holders");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::AcqRel);
                    granted.fetch_add(1, Ordering::AcqRel);
                    drop(guard);
                }
            }
        })
    });
    for task in within("all turns", BOUND * 3, join_all(tasks)).await.0 {
        task.unwrap();
    }
    assert!(granted.load(Ordering::Acquire) > 0);
    for client in &clients {
        within("the releases", BOUND, wait_idle(client)).await;
    }
    let guard = clients[0].mutex("hot").lock().await.unwrap();
    guard.release().await.unwrap();
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// A turn at the conductor is a hint: if that member lost the lock, its queue grants turns that the
/// votes of the others refuse.
#[tokio::test]
async fn waiter_does_not_enter_on_the_word_of_one_member() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, waiter) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").without_renewal().lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").lock());
    eventually("it waits", BOUND, || quorum.servers().any(|server| server.queued("k") == 1)).await;
    for server in quorum.servers() {
        if server.queued("k") == 1 {
            let () = server.cli("DEL lock:k");
        }
    }
    // The waiter looks at its head interval, a second, and is refused by the others.
    tokio::time::sleep(ms(1_500)).await;
    assert!(guard.is_valid() && !waiting.is_finished());
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let next = within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap();
    assert!(next.fencing_token() > fence);
    next.release().await.unwrap();
}

/// What a failed claim got of one member is given back before a client is drained: a program that
/// ends then left it there for its ttl, where the release was not even written.
#[test]
fn drained_client_has_given_back_what_its_failed_claims_got() {
    let quorum = Quorum::of_age(3, "lock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let keys: Vec<_> = (0..10).map(|number| format!("k{number}")).collect();
    runtime.block_on(async {
        for key in &keys {
            for server in quorum.servers().take(2) {
                let () = server.cli(&format!("SET lock:{key} foreign PX 60000"));
            }
            let client = client(&quorum).await;
            assert!(client.mutex(key.clone()).try_lock().await.unwrap().is_none());
            assert!(client.drain(BOUND).await.is_clean());
        }
    });
    drop(runtime);
    // What is on its way arrives.
    std::thread::sleep(ms(200));
    let left = quorum.server(2).leftovers();
    assert!(left.is_empty(), "{left:?}");
}

/// The conductor keeps the lock for a foreign client, and it is free on the other members. Waiters
/// in the conductor's queue once waited until it expired there, or for ever if it never did.
#[tokio::test]
async fn waiter_is_served_although_its_conductor_keeps_the_lock_for_another() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, waiter) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").with_wait(BOUND * 3).lock());
    let conductor = || quorum.servers().find(|server| server.queued("k") == 1);
    let conductor = lock_testkit::eventually_some("it waits", BOUND, conductor).await;
    let () = conductor.cli("SET lock:k foreign");
    guard.release().await.unwrap();
    let (next, _) = within("the waiter's turn", BOUND * 3, waiting).await;
    next.unwrap().unwrap().release().await.unwrap();
    wait_idle(&waiter).await;
    eventually("its place is left", BOUND, || conductor.queued("k") == 0).await;
}

/// The member in whose queue clients wait dies: they go on to the next, where they learn of the
/// release at once.
#[tokio::test]
async fn waiters_are_served_although_their_conductor_dies() {
    let mut took = Vec::new();
    // A machine that stalls may hold up a hand-off.
    while took.iter().all(|took| *took >= AT_ONCE) {
        assert!(took.len() < 3, "{took:?}");
        took.push(hand_off_after_the_death_of_the_conductor().await);
    }
}

async fn hand_off_after_the_death_of_the_conductor() -> Duration {
    let mut quorum = Quorum::of_age(3, "lock");
    let (holder, waiter) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").lock());
    let conductor = || quorum.servers().position(|server| server.queued("k") == 1);
    let conductor = lock_testkit::eventually_some("it waits", BOUND, conductor).await;
    quorum.server_mut(conductor).kill();
    eventually("it waits elsewhere", BOUND, || {
        let others = (0..3).filter(|member| *member != conductor);
        others.map(|member| quorum.server(member).queued("k")).sum::<usize>() == 1
    })
    .await;
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", BOUND, waiting).await;
    next.unwrap().unwrap().release().await.unwrap();
    took
}

/// A hand-off costs two round trips: no waiter polls for it.
#[tokio::test]
async fn released_lock_goes_to_the_waiter_at_once() {
    let quorum = Quorum::of_age(3, "lock");
    let (one, two) = (client(&quorum).await, client(&quorum).await);
    let mut hand_offs = Vec::new();
    for _ in 0..5 {
        let guard = one.mutex("k").lock().await.unwrap();
        let waiting = tokio::spawn(two.mutex("k").lock());
        eventually("it waits", BOUND, || quorum.servers().any(|server| server.queued("k") == 1))
            .await;
        guard.release().await.unwrap();
        let (next, took) = within("the waiter's turn", BOUND, waiting).await;
        hand_offs.push(took);
        next.unwrap().unwrap().release().await.unwrap();
    }
    // A machine that stalls may hold up a few of them.
    hand_offs.sort_unstable();
    assert!(hand_offs[2] < AT_ONCE, "{hand_offs:?}");
}
