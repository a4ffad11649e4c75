//! What a recorder is given, on a paused clock and one thread.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::collections::HashMap;
use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions, LostReason};
use metrics::set_default_local_recorder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

const TTL: Duration = Duration::from_secs(3);

/// What was recorded so far: counts, levels, and numbers of samples, by name and labels.
struct Seen {
    snapshotter: Snapshotter,
    values: HashMap<String, f64>,
}

impl Seen {
    fn of(recorder: &DebuggingRecorder) -> Self {
        Self { snapshotter: recorder.snapshotter(), values: HashMap::new() }
    }

    /// Adds what was recorded since the last look, which is all that a snapshot has.
    fn look(&mut self) -> &HashMap<String, f64> {
        for (key, _, described, value) in self.snapshotter.snapshot().into_vec() {
            let (name, labels) = key.key().clone().into_parts();
            assert!(described.is_some(), "{name:?} is not described");
            let labels: Vec<_> =
                labels.iter().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(change) => change.into_inner(),
                DebugValue::Histogram(samples) => samples.len() as f64,
            };
            let name = format!("{}{{{}}}", name.as_str(), labels.join(","));
            *self.values.entry(name).or_default() += value;
        }
        &self.values
    }
}

#[tokio::test(start_paused = true)]
async fn every_step_of_a_lock_is_counted_under_its_label() {
    let recorder = DebuggingRecorder::new();
    let mut seen = Seen::of(&recorder);
    let _installed = set_default_local_recorder(&recorder);
    let client = LockClient::builder(MemoryStore::new())
        .with_defaults(LockOptions::new().with_ttl(TTL))
        .build()
        .unwrap();
    let mutex = client.mutex("report");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn(mutex.clone().wait_forever().lock());
    tokio::task::yield_now().await;
    let now = seen.look();
    assert_eq!(now["lock_waiting{key=report}"], 1.0);
    assert_eq!(now["lock_held{key=report}"], 1.0);
    drop(guard);
    let guard = waiter.await.unwrap().unwrap();
    tokio::time::sleep(TTL).await;
    guard.release().await.unwrap();
    let lost = client.mutex("import").with_max_hold(TTL).lock().await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    drop(lost);
    wait_idle(&client).await;
    let seen = seen.look();
    for (name, expected) in [
        ("lock_acquisitions_total{key=report,outcome=acquired}", 2.0),
        ("lock_acquisitions_total{key=report,outcome=busy}", 1.0),
        ("lock_acquisitions_total{key=import,outcome=acquired}", 1.0),
        ("lock_wait_seconds{key=report}", 3.0),
        ("lock_waiting{key=report}", 0.0),
        ("lock_held{key=report}", 0.0),
        ("lock_held{key=import}", 0.0),
        ("lock_hold_seconds{key=report}", 2.0),
        ("lock_hand_offs_total{key=report,by=memory}", 1.0),
        ("lock_losses_total{key=import,reason=max_hold}", 1.0),
        ("lock_releases_pending{}", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} of {seen:?}");
    }
    assert!(seen["lock_renewals_total{key=report,outcome=confirmed}"] >= 2.0, "{seen:?}");
    let renewals = seen.iter().filter(|(name, _)| name.starts_with("lock_renewals_total"));
    let renewals: f64 = renewals.map(|(_, count)| count).sum();
    assert_eq!(seen["lock_renewal_lateness_seconds{}"], renewals);
}

/// A client that disconnects drops the future of its request, and with it the wait.
#[tokio::test(start_paused = true)]
async fn waits_that_are_cancelled_or_refused_at_once_are_counted() {
    let recorder = DebuggingRecorder::new();
    let mut seen = Seen::of(&recorder);
    let _installed = set_default_local_recorder(&recorder);
    let client = LockClient::builder(MemoryStore::new()).build().unwrap();
    let mutex = client.mutex("report").wait_forever();
    let guard = mutex.lock().await.unwrap();
    tokio::time::timeout(TTL, mutex.lock()).await.unwrap_err();
    drop(guard);
    let again = mutex.run(async |_| mutex.lock().await.map(drop)).await.unwrap();
    assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    wait_idle(&client).await;
    let seen = seen.look();
    for (name, expected) in [
        ("lock_acquisitions_total{key=report,outcome=acquired}", 2.0),
        ("lock_acquisitions_total{key=report,outcome=cancelled}", 1.0),
        ("lock_acquisitions_total{key=report,outcome=would_deadlock}", 1.0),
        ("lock_wait_seconds{key=report}", 4.0),
        ("lock_waiting{key=report}", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} of {seen:?}");
    }
}

/// The guard may be the first to notice: the renewer had no time while the runtime was blocked.
#[tokio::test]
async fn a_loss_that_the_guard_notices_itself_is_counted_and_kept_once() {
    const SHORT: Duration = Duration::from_millis(100);
    let recorder = DebuggingRecorder::new();
    let mut seen = Seen::of(&recorder);
    let _installed = set_default_local_recorder(&recorder);
    let options = LockOptions::new().with_ttl(SHORT);
    let client = LockClient::builder(MemoryStore::new()).with_defaults(options).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    // What a body does that must not.
    std::thread::sleep(2 * SHORT);
    drop(guard);
    wait_idle(&client).await;
    let losses = client.activity().losses;
    assert!(matches!(&losses[..], [one] if one.reason == LostReason::Expired), "{losses:?}");
    assert_eq!(seen.look()["lock_losses_total{key=k,reason=expired}"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_store_are_not_counted_as_busy() {
    let recorder = DebuggingRecorder::new();
    let mut seen = Seen::of(&recorder);
    let _installed = set_default_local_recorder(&recorder);
    let store = GatedStore::new(MemoryStore::new());
    let client = LockClient::builder(store.clone()).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    store.set(|gates| (gates.acquire, gates.release) = (Gate::Refused, Gate::Refused));
    guard.release().await.unwrap_err();
    client.mutex("other").without_wait().lock().await.unwrap_err();
    let now = seen.look();
    assert_eq!(now["lock_acquisitions_total{key=other,outcome=unavailable}"], 1.0);
    assert_eq!(now["lock_acquisitions_total{key=other,outcome=acquired}"], 0.0);
    assert_eq!(now["lock_releases_pending{}"], 1.0);
    assert!(now["lock_release_retries_total{}"] >= 1.0);
    store.set(|gates| gates.release = Gate::Open);
    wait_idle(&client).await;
    assert_eq!(seen.look()["lock_releases_pending{}"], 0.0);
}
