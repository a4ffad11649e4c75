//! Clients that share a memory store, as processes share a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_core::store::MemoryStore;
use lock_core::{LockClient, MutexGuard};

/// A client of `store`.
pub(crate) fn client(store: &MemoryStore) -> LockClient {
    LockClient::builder(store.clone()).build().unwrap()
}

/// A store and its only client.
pub(crate) fn store_and_client() -> (MemoryStore, LockClient) {
    let store = MemoryStore::new();
    let client = client(&store);
    (store, client)
}

/// A client, and a guard of `key` that another client holds.
pub(crate) async fn held_by_another(key: &str) -> (LockClient, MutexGuard) {
    let store = MemoryStore::new();
    let guard = client(&store).mutex(key.to_owned()).lock().await.unwrap();
    (client(&store), guard)
}

/// Counts how often an event happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicUsize>);

impl Counter {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}
