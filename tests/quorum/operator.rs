//! What operators see of a quorum, and do to its locks.

use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LostReason};
use lock_testkit::{Action, Op, Quorum, eventually, ms, within};

use crate::{BOUND, TTL, client};

/// The holder is the one that a majority names, and the lease's own number is known.
#[tokio::test]
async fn holder_and_waiters_are_shown() {
    let mut quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let free = other.inspect("k").await.unwrap();
    assert!(free.owner.is_none());
    let guard = holder.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(other.mutex("k").lock());
    eventually("it waits", BOUND, || quorum.servers().any(|server| server.queued("k") == 1)).await;
    quorum.server_mut(0).kill();
    let info = holder.inspect("k").await.unwrap();
    let owner = info.owner.unwrap();
    assert_eq!(owner.client, Some(holder.id()));
    assert_eq!(owner.fencing_token, Some(guard.fencing_token()));
    assert!(owner.remaining.unwrap() <= TTL);
    assert!(info.latest_fencing_token >= guard.fencing_token());
    let list = other.list(10).await.unwrap();
    assert_eq!(list.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["k"]);
    let health = other.health().await.unwrap();
    let names = ["quorum of 3: redis ", "quorum of 3: valkey "];
    assert!(names.iter().any(|name| health.server.starts_with(name)), "{health:?}");
    assert!(health.problems.iter().any(|it| it.contains("does not answer")), "{health:?}");
    guard.release().await.unwrap();
    drop(within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap());

    quorum.server_mut(1).kill();
    let error = other.inspect("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().starts_with("no majority: 1 of 3"), "{error}");
}

/// A lock that was taken from its holder stays taken for the rest of the ttl, so that the holder's
/// next renewal, which repairs, does not take it again.
#[tokio::test]
async fn lock_that_was_taken_by_force_is_not_repaired() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    assert!(other.force_release("k").await.unwrap().is_some());
    let (lost, took) = within("the loss", BOUND, guard.lost()).await;
    assert!(matches!(lost, LostReason::TakenByOther) && took < TTL, "{lost:?} after {took:?}");
    assert!(other.inspect("k").await.unwrap().owner.unwrap().is_released);
    let (next, took) = within("the next lock", BOUND, other.mutex("k").lock()).await;
    assert!(took < TTL + ms(500), "{took:?}");
    next.unwrap().release().await.unwrap();
    drop(guard);
    wait_idle(&holder).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// A member, too, is given every key that its scripts touch.
#[tokio::test]
async fn votes_touch_only_the_keys_that_they_are_given() {
    let quorum = Quorum::of_age(3, "lock");
    let (one, two) = (client(&quorum).await, client(&quorum).await);
    let server = quorum.servers().next().unwrap();
    let monitor = server.monitor();
    let guard = one.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(two.mutex("k").lock());
    eventually("it waits", BOUND, || quorum.servers().any(|server| server.queued("k") == 1)).await;
    // It is renewed, and repaired here.
    let renewed = server.script_calls();
    eventually("a renewal", BOUND, || server.script_calls() > renewed).await;
    let () = server.cli("DEL lock:k");
    eventually("it has the lock again", BOUND, || server.has("lock:k")).await;
    guard.release().await.unwrap();
    drop(within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap());
    let guard = one.mutex("k").lock().await.unwrap();
    two.force_release("k").await.unwrap().unwrap();
    drop(guard);
    wait_idle(&one).await;
    let calls = monitor.finish(server);
    assert!(calls.iter().map(|call| call.touched.len()).sum::<usize>() > 20, "{calls:?}");
    for call in calls {
        let undeclared = call.touched.iter().find(|&key| !call.declared.contains(key));
        assert_eq!(undeclared, None, "{call:?}");
    }
}

/// An operator reaches one of the two members that have the lock, and the third has lost it: what
/// is left to the owner may be a majority again after its renewal. That is no success.
#[tokio::test]
async fn release_by_force_on_too_few_members_is_not_told_as_one() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, operator) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").without_renewal().lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    let owner = operator.inspect("k").await.unwrap().owner.unwrap();
    let () = quorum.server(2).cli("DEL lock:k");
    let lost = quorum.proxy(1).rule(Op::Other, Action::LoseRequest).once();
    let error = operator.force_release_from("k", &owner).await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    assert!(error.to_string().contains("on 1 of 3 lock servers"), "{error}");
    assert_eq!(lost.hits(), 1);
    quorum.proxy(1).close_all();
    guard.extend(TTL).await.unwrap();
    // With all members there, it succeeds.
    let forced = async { while operator.force_release("k").await.unwrap().is_none() {} };
    within("a connection to each", BOUND, forced).await;
    guard.extend(TTL).await.unwrap_err();
    assert!(!guard.is_valid());
}
