//! Renewals that cross releases or wait for others, on a paused clock.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, MemoryStore, Release,
    ReleaseReply, Renewal, Renewed, Store,
};
use lock_core::testing::{ClientStats, Gate, GatedStore};
use lock_core::{Error, LockClient, LockOptions, LostReason, Released};

/// The shortest ttl that is allowed. The first renewal is due after a third of it.
const TTL: Duration = Duration::from_millis(100);

/// A renewal that is under way at the release creates the lock again (redisson#7272,
/// spring-integration#10446, U3).
#[tokio::test(start_paused = true)]
async fn releases_that_cross_renewals_leave_no_lock() {
    let store = GatedStore::new(MemoryStore::new());
    let slow = Duration::from_millis(20);
    store.set(|gates| gates.renew = Gate::Slow(slow));
    let options = LockOptions::new().with_ttl(TTL);
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let mutex = client.mutex("k");
    let mut crossed = 0;
    for round in 0..10_000 {
        let guard = mutex.lock().await.unwrap();
        // From before the first renewal is sent until after it has been confirmed.
        tokio::time::sleep(Duration::from_millis(25 + round % 40)).await;
        let under_way = guard.remaining() < TTL * 2 / 3;
        assert_eq!(guard.release().await.unwrap(), Released::InTime, "round {round}");
        assert!(store.get_ref().is_empty(), "round {round}");
        if under_way {
            crossed += 1;
            tokio::time::sleep(slow * 2).await;
            assert!(store.get_ref().is_empty(), "round {round}: revived by a late renewal");
        }
    }
    assert!(crossed > 1_000, "{crossed} renewals were under way");
    assert!(ClientStats::of(&client).is_idle());
}

/// A `Lease` handle keeps a released lease alive: it is renewed while the handle exists.
#[tokio::test(start_paused = true)]
async fn released_lease_is_not_renewed_while_watched() {
    let store = GatedStore::new(MemoryStore::new());
    let options = LockOptions::new().with_ttl(TTL);
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    let watched = guard.lease();
    tokio::time::sleep(TTL * 2).await;
    let renewals = store.renewals();
    assert!(renewals > 1 && watched.is_valid(), "{renewals}");
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(store.renewals(), renewals);
    assert!(!watched.is_valid());
    assert!(store.get_ref().is_empty());
}

/// A store whose calls return when it has given up the names that begin with "stuck", as late as
/// their renewals allow: like a store with a long request timeout.
#[derive(Clone, Debug)]
struct Patient {
    inner: MemoryStore,
    /// The keys of each call.
    calls: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Store for Patient {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.inner.try_acquire(claim)
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.inner.acquire(claim, waiting)
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        let keys = renewals.iter().map(|renewal| renewal.name.key().to_owned()).collect();
        self.calls.lock().unwrap().push(keys);
        Box::pin(async move {
            let mut answers = self.inner.renew(renewals).await;
            for (renewal, answer) in renewals.iter().zip(&mut answers) {
                if renewal.name.key().starts_with("stuck") {
                    tokio::time::sleep(renewal.until.remaining()).await;
                    let silence = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    *answer = Err(Error::unknown("no reply", silence));
                }
            }
            answers
        })
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        self.inner.release(release)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

impl fmt::Display for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("patient")
    }
}

/// Leases that are due together are renewed by one call, which returns when the last of them has a
/// reply. A lease is lost because it waits for the renewal of another lease that hangs.
#[tokio::test(start_paused = true)]
async fn hanging_renewal_does_not_lose_other_leases_of_its_call() {
    let secs = Duration::from_secs;
    for (stuck, quick) in [(60, 9), (60, 20), (600, 7), (86_400, 3_600)] {
        let (stuck, quick) = (secs(stuck), secs(quick));
        let store = Patient { inner: MemoryStore::new(), calls: Arc::default() };
        let client = LockClient::builder(store.clone()).build().unwrap();
        let hangs = client.mutex("stuck").with_ttl(stuck).lock().await.unwrap();
        // Both are due at about the same time, a third of what remains of each.
        let due = |ttl: Duration| ttl * 33 / 100;
        tokio::time::sleep(due(stuck).saturating_sub(due(quick))).await;
        let options = LockOptions::new().with_ttl(quick);
        let guards = [
            client.mutex("quick").with_options(options).lock().await.unwrap(),
            client.mutex("other").with_options(options).lock().await.unwrap(),
        ];
        assert_eq!(hangs.lost().await, LostReason::Expired);
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {quick:?} beside {stuck:?}");
        let calls = store.calls.lock().unwrap().clone();
        let together = calls.iter().filter(|keys| keys.len() > 1 && keys.contains(&"stuck".into()));
        assert!(together.count() > 0, "{quick:?} beside {stuck:?}: they did not go together");
        for guard in guards {
            assert_eq!(guard.release().await.unwrap(), Released::InTime);
        }
        drop(hangs);
    }
}

/// Each lease is renewed by a call of its own.
#[tokio::test(start_paused = true)]
async fn thousand_leases_are_renewed_by_few_calls() {
    let store = Patient { inner: MemoryStore::new(), calls: Arc::default() };
    let client = LockClient::builder(store.clone()).build().unwrap();
    let mut guards = Vec::new();
    for key in 0..1_000 {
        guards.push(client.mutex(format!("k{key}")).lock().await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let calls = store.calls.lock().unwrap().clone();
    let renewed: usize = calls.iter().map(Vec::len).sum();
    assert!(renewed >= 10_000 && calls.len() * 100 < renewed, "{} calls, {renewed}", calls.len());
}
