//! Renewals that cross releases, many times, on a paused clock.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore, Vitals};
use lock_core::{LockClient, LockOptions, Released};

/// The shortest there is, renewed for the first time after a third of it.
const TTL: Duration = Duration::from_millis(100);

// redisson#7272, spring-integration#10446 (U3).
#[tokio::test(start_paused = true)]
async fn ten_thousand_releases_that_cross_slow_renewals_leave_nothing() {
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
    assert!(Vitals::of(&client).is_idle());
}

/// Whoever has a `Lease` in hand sees that it is over, and keeps nothing alive.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_is_renewed_while_somebody_watches_it() {
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
