//! The conformance suite on the memory store, and what its clients learn of each other.
#![allow(clippy::unwrap_used)]

use lock_core::store::MemoryStore;
use lock_core::{LockClient, LostReason};
use tokio::time::{Duration, Instant};

#[allow(clippy::unused_async)] // the suite's signature
async fn store() -> (MemoryStore, ()) {
    (MemoryStore::new(), ())
}

lock_core::conformance_tests!(
    #[tokio::test(start_paused = true)]
    store
);

/// Long before its next renewal. A lease that was not taken goes on.
#[tokio::test(start_paused = true)]
async fn holder_learns_at_once_that_another_client_took_its_lock_by_force() {
    let store = MemoryStore::new();
    let [holder, operator] =
        [store.clone(), store].map(|store| LockClient::builder(store).build().unwrap());
    let guard = holder.mutex("k").lock().await.unwrap();
    let other = holder.mutex("other").lock().await.unwrap();
    let taken = Instant::now();
    operator.force_release("k").await.unwrap().unwrap();
    assert_eq!(guard.lost().await, LostReason::ForceReleased);
    assert!(taken.elapsed() < Duration::from_secs(1), "{:?}", taken.elapsed());
    assert!(other.is_valid());
}
