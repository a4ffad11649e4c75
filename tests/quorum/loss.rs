//! Members are lost, stopped, slow, or cut off.

use lock_core::testing::wait_idle;
use lock_testkit::{Action, Gate, Op, Quorum, eventually, ms, within};

use crate::{BOUND, TIMEOUT, TTL, client, patient_client};

/// H14, HA24 (redlock-rb#134, pottery#406): one server's error failed the claim, or a lost majority
/// was not told. Locks are served while any minority is dead; without a majority the error says so
/// at once, and nothing is left afterwards.
#[tokio::test]
async fn locks_are_served_until_a_majority_is_dead() {
    let mut quorum = Quorum::of_age(5, "lock");
    let client = patient_client(&quorum).await;
    let held = client.mutex("held").lock().await.unwrap();
    let mut fence = held.fencing_token();
    for dead in 0..2 {
        quorum.server_mut(dead).kill();
        for _ in 0..5 {
            let (guard, took) = within("a lock", BOUND, client.mutex("k").lock()).await;
            let guard = guard.unwrap();
            assert!(took < TIMEOUT / 2, "{took:?} with {} dead", dead + 1);
            assert!(guard.fencing_token() > fence);
            fence = guard.fencing_token();
            guard.release().await.unwrap();
        }
    }
    tokio::time::sleep(TTL).await;
    assert!(held.is_valid(), "renewed by three of five");

    quorum.server_mut(2).kill();
    let (error, took) = within("an error", BOUND, client.mutex("k").try_lock()).await;
    let error = error.unwrap_err();
    assert!(took < TIMEOUT * 3, "{took:?}");
    assert!(error.is_store_failure() && error.is_retryable(), "{error:?}");
    assert_eq!(
        error.to_string().split(';').next(),
        Some("no majority: 2 of 5 lock servers answered")
    );
    let (lost, took) = within("a loss", BOUND, held.lost()).await;
    assert!(took < TTL, "{lost:?} after {took:?}");
    for member in 0..3 {
        quorum.server_mut(member).boot();
    }
    for member in 0..3 {
        quorum.vouch(member, "lock");
    }
    drop(held);
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(guard.fencing_token() > fence);
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// H14, L12: members that are stopped accept connections and never answer. They delay a claim by
/// one timeout at most, and later ones not at all.
#[tokio::test]
async fn stopped_members_do_not_delay_locks() {
    let quorum = Quorum::of_age(5, "lock");
    let client = patient_client(&quorum).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    quorum.server(0).pause();
    quorum.server(1).pause();
    for _ in 0..10 {
        let (guard, took) = within("a lock", BOUND, client.mutex("k").lock()).await;
        assert!(took < TIMEOUT / 2, "{took:?}");
        let (released, took) = within("a release", BOUND, guard.unwrap().release()).await;
        released.unwrap();
        assert!(took < TIMEOUT / 2, "{took:?}");
    }
    quorum.server(2).pause();
    let (error, took) = within("an error", BOUND, client.mutex("k").try_lock()).await;
    let error = error.unwrap_err();
    assert!(error.is_store_failure() && took < TIMEOUT * 3, "{error:?} after {took:?}");
    for member in 0..3 {
        quorum.server(member).resume();
    }
    let guard = client.mutex("k").lock().await.unwrap();
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// Members that were silent are not waited for, unless too few others are there: when all are back,
/// the first reply ended the first claim, which got one vote.
#[tokio::test]
async fn first_claim_after_an_outage_waits_for_a_majority() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    for member in 0..3 {
        quorum.server(member).pause();
    }
    for _ in 0..3 {
        assert!(client.mutex("k").try_lock().await.unwrap_err().is_store_failure());
    }
    for member in 0..3 {
        quorum.server(member).resume();
    }
    // They have answered releases, and no votes.
    within("the releases", BOUND, wait_idle(&client)).await;
    let guard = client.mutex("k").try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A member dies that has locks, and perhaps the queue of the waiter, so that it confirms no
/// release. A majority does, but drains waited for the dead one for two minutes, or until their
/// limit.
#[tokio::test]
async fn drain_does_not_wait_for_a_dead_member() {
    for dead in 0..3 {
        let mut quorum = Quorum::of_age(3, "lock");
        let (holder, waiter) = (patient_client(&quorum).await, patient_client(&quorum).await);
        let guard = holder.mutex("k").lock().await.unwrap();
        let others = [holder.mutex("a").lock().await, holder.mutex("b").lock().await];
        for key in ["lock:k", "lock:a", "lock:b"] {
            eventually("all have it", BOUND, || quorum.having(key) == 3).await;
        }
        let waiting = tokio::spawn(waiter.mutex("k").with_wait(BOUND * 3).lock());
        eventually("it waits", BOUND, || quorum.servers().any(|it| it.queued("k") == 1)).await;
        quorum.server_mut(dead).kill();

        drop((guard, others));
        let (drained, took) = within("a drain", BOUND * 2, holder.drain(BOUND)).await;
        assert!(drained.is_clean() && took < ms(3_000), "{drained:?} after {took:?}");
        let next = within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap();
        drop(next);
        let (drained, took) = within("a drain", BOUND * 2, waiter.drain(BOUND)).await;
        assert!(drained.is_clean() && took < ms(3_000), "{drained:?} after {took:?}");
        for server in quorum.servers().filter(|server| server.runs()) {
            assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
        }
    }
}

/// A claim got one vote, the second member was another owner's, and the third died with the ballot
/// on its way: it might have had the lock, so nothing was decided, and drains waited.
#[tokio::test]
async fn drain_does_not_wait_for_a_member_that_died_with_a_claim_on_its_way() {
    let mut quorum = Quorum::of_age(3, "lock");
    let client = patient_client(&quorum).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    wait_idle(&client).await;
    let () = quorum.server(1).cli("SET lock:k foreign PX 60000");
    let gate = Gate::new();
    let held = quorum.proxy(2).rule(Op::Vote, Action::HoldRequest(gate.clone())).always();
    let claim = tokio::spawn(client.mutex("k").try_lock());
    eventually("its ballot is on its way", BOUND, || held.hits() == 1).await;
    quorum.server_mut(2).kill();
    let (claimed, _) = within("an error", BOUND, claim).await;
    let error = claimed.unwrap().unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");

    let (drained, took) = within("a drain", BOUND * 2, client.drain(BOUND)).await;
    gate.open();
    assert!(drained.is_clean() && took < ms(4_000), "{drained:?} after {took:?}");
    assert!(!quorum.server(0).has("lock:k"), "the one vote was given back");
    assert_eq!(quorum.server(1).get("lock:k").as_deref(), Some("foreign"));
}

/// HA21 (redsync#140): the slowest server set the pace although a majority had voted.
#[tokio::test]
async fn slow_member_is_not_waited_for() {
    let quorum = Quorum::of_age(3, "lock");
    let client = patient_client(&quorum).await;
    let slow = quorum.proxy(2).rule(Op::Vote, Action::DelayReply(TIMEOUT / 2)).always();
    let (guard, took) = within("a lock", BOUND, client.mutex("k").lock()).await;
    let guard = guard.unwrap();
    assert!(took < TIMEOUT / 2, "{took:?}");
    eventually("it has the lock as well", BOUND, || quorum.having("lock:k") == 3).await;
    guard.release().await.unwrap();
    assert!(slow.hits() > 0);
    slow.end();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// H14: what a member receives is executed, and its replies are lost.
#[tokio::test]
async fn member_whose_replies_are_lost_keeps_no_lock() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let lost = quorum.proxy(0).rule(Op::Vote, Action::LoseReply).always();
    for _ in 0..5 {
        let guard = client.mutex("k").lock().await.unwrap();
        guard.release().await.unwrap();
    }
    eventually("a reply was lost", BOUND, || lost.hits() > 0).await;
    lost.end();
    quorum.proxy(0).reset();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// `busy-when-silent`, HA26 (redsync#105, #32): the lock is taken on one member, and the others
/// are dead. That is no "busy", and the error has what each member said.
#[tokio::test]
async fn taken_on_a_minority_and_silence_are_not_busy() {
    let mut quorum = Quorum::of_age(3, "lock");
    let client = patient_client(&quorum).await;
    let () = quorum.server(0).cli("SET lock:k foreign PX 60000");
    quorum.server_mut(1).kill();
    quorum.server_mut(2).kill();
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("another owner has the lock for "), "{source}");
    assert!(source.contains(&format!("127.0.0.1:{}", quorum.proxy(1).port())), "{source}");
}

/// `renewal-all-or-nothing`: a lease is renewed by whatever majority answers.
#[tokio::test]
async fn lease_outlives_each_member_in_turn_being_cut_off() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let guard = client.mutex("k").lock().await.unwrap();
    for member in 0..3 {
        quorum.proxy(member).cut();
        tokio::time::sleep(TTL).await;
        assert!(guard.is_valid(), "with {member} cut off");
        quorum.proxy(member).heal();
        quorum.proxy(member).close_all();
        eventually("it has the lock again", BOUND, || quorum.having("lock:k") == 3).await;
    }
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}
