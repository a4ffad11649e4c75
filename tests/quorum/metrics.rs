//! Members, rounds, turns and repairs, as the recorder and the log show them.

use lock_core::testing::wait_idle;
use lock_testkit::{LogCapture, Quorum, eventually, within};
use lock_tests::recorded;
use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;

use crate::{BOUND, client};

/// The metrics of a member begin at its URL without the slash.
fn of(name: &str, quorum: &Quorum, member: usize) -> String {
    format!("{name} {}", quorum.urls()[member].trim_end_matches('/'))
}

/// A member dies and comes back without its data, under a lease that it takes part in again.
#[tokio::test]
async fn member_that_forgot_is_named_until_it_votes_again_and_repairs_the_lease() {
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let log = LogCapture::start();
    let mut quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let guard = client.mutex("held").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:held") == 3).await;
    // The reply of the last one may be under way.
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    wait_idle(&client).await;
    assert!(!log.contains("", "quorum.member"), "{}", log.text());

    quorum.server_mut(2).kill();
    let use_it = async || client.mutex("k").lock().await.unwrap().release().await.unwrap();
    while !log.contains("WARN", "a member of the quorum does not vote") {
        within("a lock", BOUND, use_it()).await;
    }
    assert!(log.contains("WARN", "event=\"quorum.member\""), "{}", log.text());
    let seen = recorded(&recorder);
    for (member, level) in [(0, 1.0), (1, 1.0), (2, 0.0)] {
        assert_eq!(seen[&of("lock_quorum_member_up", &quorum, member)], [level], "{seen:?}");
        let clock = seen[&of("lock_quorum_member_clock_seconds", &quorum, member)][0];
        assert!(clock.abs() < 1.0, "{clock}");
        assert_eq!(seen[&of("lock_quorum_repairs_total", &quorum, member)], [0.0]);
    }
    assert!(seen["lock_quorum_rounds_total granted"][0] >= 3.0, "{seen:?}");
    assert_eq!(seen["lock_quorum_rounds_total taken"], [0.0], "{seen:?}");
    let votes = &seen["lock_quorum_votes"];
    assert!(votes.iter().all(|votes| (2.0..=3.0).contains(votes)), "{votes:?}");

    quorum.restart_empty(2);
    eventually("it takes the lock again", BOUND, || quorum.server(2).has("lock:held")).await;
    let told = || log.contains("INFO", "a member of the quorum votes again");
    eventually("the log says so", BOUND, told).await;
    assert!(log.contains("WARN", "standing=quarantine"), "{}", log.text());
    assert!(log.contains("DEBUG", "event=\"quorum.repair\""), "{}", log.text());
    let seen = recorded(&recorder);
    assert_eq!(seen[&of("lock_quorum_member_up", &quorum, 2)], [1.0], "{seen:?}");
    assert_eq!(seen[&of("lock_quorum_repairs_total", &quorum, 2)], [1.0], "{seen:?}");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn turns_of_waiters_and_refused_rounds_are_counted() {
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let quorum = Quorum::of_age(3, "lock");
    let (holder, waiter) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    assert!(waiter.mutex("k").try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(waiter.mutex("k").lock());
    let queued = || quorum.servers().any(|server| server.queued("k") == 1);
    eventually("it has a place", BOUND, queued).await;
    guard.release().await.unwrap();
    let (guard, _) = within("its turn", BOUND, waiting).await;
    guard.unwrap().unwrap().release().await.unwrap();
    wait_idle(&holder).await;
    wait_idle(&waiter).await;
    let seen = recorded(&recorder);
    assert!(seen["lock_quorum_turns_total granted"][0] >= 1.0, "{seen:?}");
    assert!(seen["lock_quorum_rounds_total taken"][0] >= 1.0, "{seen:?}");
    assert!(seen["lock_quorum_rounds_total granted"][0] >= 2.0, "{seen:?}");
    assert_eq!(seen["lock_hand_offs_total k store"], [1.0], "{seen:?}");
}
