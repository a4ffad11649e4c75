//! Messages that are lost or come late, one kind at a time.

use std::time::Duration;

use lock_core::ErrorKind;
use lock_testkit::{Experiment, ms};
use tokio::time::{Instant, sleep, timeout};

use crate::net::Way;
use crate::setting::{EXACT, REQUEST, SOON, Setting, TTL, experiment, simulated};

/// How late a waiter may be whose message was lost: the head of a queue asks once a second.
const ASKED_AGAIN: Duration = ms(1_100);

/// The answer to a claim is lost. A caller that goes on waiting gets the lock by the same token; if
/// it gives up, the lock is released.
#[test]
fn grant_with_a_lost_answer_is_taken_or_released() {
    let about = Experiment::new(
        8,
        "a grant whose answer was lost is found again or given back",
        "the answers to claims are held up, then the streams break or are released",
        &["granted after all", "given up, and released"],
    );
    experiment(about, 200, async |mut setting| {
        let case = setting.case.clone();
        let (client, machine) = setting.client().await;
        let wait = setting.rng.one_of(&[ms(50), ms(300), ms(5_000)]);
        machine.hold(Way::Down);
        let asked = tokio::spawn(client.mutex("k").with_wait(wait).lock());
        let before = setting.fake.counts().acquires;
        sleep(setting.rng.ms(10..=1_500)).await;
        assert!(setting.fake.counts().acquires > before, "{case}: the claim was not sent");
        if setting.rng.chance(50) {
            machine.reset(true);
        }
        machine.release(Way::Down);
        let healed = Instant::now();
        let granted = match asked.await.unwrap() {
            Ok(guard) => {
                assert!(guard.is_valid());
                assert!(!setting.fake.leftovers().is_empty());
                guard.release().await.unwrap();
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unknown, "{case}");
                false
            }
        };
        setting.nothing_remains(&client).await;
        assert!(granted || healed.elapsed() < SOON);
        [(if granted { "granted after all" } else { "given up, and released" }, 1)]
    });
}

/// A claim that is delivered after it was given up does nothing.
#[test]
fn late_claim_is_void() {
    let about = Experiment::new(
        10,
        "a claim that arrives after it was given up takes nothing",
        "claims are held up in the network",
        &["void claims", "claims in time"],
    );
    experiment(about, 200, async |mut setting| {
        let case = setting.case.clone();
        let (client, machine) = setting.client().await;
        let (other, _) = setting.client().await;
        machine.hold(Way::Up);
        let start = Instant::now();
        let asked = tokio::spawn(client.mutex("k").try_lock());
        let held_up = setting.rng.ms(1..=900);
        sleep(held_up).await;
        machine.release(Way::Up);
        sleep(ms(5)).await;
        // That of the clock at the server is at most what a packet takes.
        let late = held_up > REQUEST + ms(10);
        if late {
            let remains = setting.fake.leftovers();
            assert!(remains.is_empty(), "{case}: {remains:?} after {held_up:?}");
            let free = other.mutex("k").try_lock().await.unwrap();
            free.expect("it is free").release().await.unwrap();
        }
        let in_time = match asked.await.unwrap() {
            Ok(guard) => guard.expect("no other client held it").is_valid(),
            Err(error) => {
                assert!(error.is_store_failure(), "{case}: {error:?}");
                false
            }
        };
        assert!(in_time || held_up + ms(10) > REQUEST, "{case}: refused after {held_up:?}");
        assert!(!(in_time && late), "{case}: granted after {held_up:?}");
        setting.nothing_remains(&client).await;
        assert!(start.elapsed() < held_up + SOON);
        [("void claims", setting.fake.counts().voids), ("claims in time", usize::from(in_time))]
    });
}

/// Renewals and releases that arrive late, behind what came after them, change nothing.
#[test]
fn late_renewal_and_late_release_do_nothing() {
    let about = Experiment::new(
        11,
        "late renewals and releases change nothing",
        "renewals and releases are held up on a stream that was given up, others pass them",
        &["late renewals", "late releases"],
    );
    experiment(about, 500, async |mut setting| {
        let case = setting.case.clone();
        let (client, machine) = setting.client().await;
        let guard = client.mutex("k").lock().await.unwrap();
        machine.hold_open_streams(Way::Up);
        // Two that are not answered, and the stream is given up.
        for _ in 0..2 {
            let extended = guard.extend(ms(20_000)).await;
            assert!(extended.unwrap_err().is_unknown());
        }
        if setting.rng.chance(50) {
            // The release is held up as well, on the next stream.
            client.mutex("other").lock().await.unwrap().release().await.unwrap();
            machine.hold_open_streams(Way::Up);
        }
        let released = timeout(ms(3_500), guard.release()).await.unwrap();
        drop(released);
        let next = client.mutex("k").with_wait(SOON).lock().await.unwrap();
        let left = next.remaining();
        let before = setting.fake.counts();
        machine.release(Way::Up);
        sleep(ms(20)).await;
        let after = setting.fake.counts();
        assert!(after.commands > before.commands, "{case}: they arrived");
        assert!(next.remaining() + ms(40) >= left, "{case}");
        assert!(next.is_valid(), "{case}");
        assert!(next.extend(TTL).await.is_ok(), "{case}: the lease is still valid");
        next.release().await.unwrap();
        setting.nothing_remains(&client).await;
        let late = (after.renewals - before.renewals, after.releases - before.releases);
        [("late renewals", late.0), ("late releases", late.1)]
    });
}

/// No message of a grant arrives. The lock is taken by the waiter all the same.
#[test]
fn waiter_finds_its_grant_without_messages() {
    let about = Experiment::new(
        13,
        "a free lock is taken by a live waiter",
        "every published message is lost, or those just after the subscription",
        &["lost messages", "late grants"],
    );
    experiment(about, 200, async |mut setting| {
        let case = setting.case.clone();
        let (holder, _) = setting.client().await;
        let (waiter, _) = setting.client().await;
        let guard = holder.mutex("k").lock().await.unwrap();
        let asked = tokio::spawn(waiter.mutex("k").wait_forever().lock());
        setting.fake.lose_messages(setting.rng.one_of(&[ms(60_000), ms(40)]));
        sleep(setting.rng.ms(1..=2_500)).await;
        guard.release().await.unwrap();
        let free = Instant::now();
        let got = timeout(ms(20_000), asked).await.unwrap().unwrap().unwrap();
        let took = free.elapsed();
        assert!(took <= ASKED_AGAIN, "{case}: {took:?}");
        got.release().await.unwrap();
        setting.nothing_remains(&waiter).await;
        let unheard = setting.fake.counts().unheard;
        [("lost messages", unheard), ("late grants", usize::from(took > ms(20)))]
    });
}

/// Found by a seed: the wait ended while its client could not connect, and the waiter went round in
/// circles.
#[test]
fn wait_ends_in_time_without_a_connection() {
    // Less than a connection may take. The first is over so soon after an answer that this would
    // count, but for the loss.
    for wait in [ms(200), ms(800)] {
        simulated(1, EXACT, async |setting| cut_off_for_good(setting, wait).await);
    }
}

async fn cut_off_for_good(setting: Setting, wait: Duration) {
    let (holder, _) = setting.client().await;
    let (waiter, machine) = setting.client().await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let start = Instant::now();
    let asked = tokio::spawn(waiter.mutex("k").with_wait(wait).lock());
    sleep(ms(100)).await;
    machine.reset(false);
    machine.hold(Way::Up);
    // Learns first that the stream is broken, so that the waiter begins with the next one.
    let other = tokio::spawn(waiter.mutex("other").try_lock());
    let error = timeout(ms(3_000), asked).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "it had a place");
    assert!(start.elapsed() < wait + ms(100), "{:?}", start.elapsed());
    machine.release(Way::Up);
    drop(other.await.unwrap());
    guard.release().await.unwrap();
    setting.nothing_remains(&waiter).await;
}
