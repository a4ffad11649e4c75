//! The conformance suite on the memory store.

use lock_core::store::MemoryStore;

#[allow(clippy::unused_async)] // the suite's signature
async fn store() -> (MemoryStore, ()) {
    (MemoryStore::new(), ())
}

lock_core::conformance_tests!(
    #[tokio::test(start_paused = true)]
    store
);
