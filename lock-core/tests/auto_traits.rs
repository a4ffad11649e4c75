//! Auto traits of the public types, and futures that can be spawned without a wrapper.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::Token;
use lock_core::store::{MemoryStore, Store};
use lock_core::{
    ConfigError, Drained, Error, ErrorKind, FencingToken, Key, Lease, LockClient, LockOptions,
    Mutex, MutexGuard, Released,
};

const fn send_sync<T: Send + Sync + Unpin + 'static>() {}
const fn clone<T: Clone>() {}
const fn copy<T: Copy>() {}

const _: () = {
    send_sync::<LockClient>();
    send_sync::<Mutex>();
    send_sync::<MutexGuard>();
    send_sync::<Lease>();
    send_sync::<Error>();
    send_sync::<ConfigError>();
    send_sync::<Key>();
    send_sync::<Token>();
    send_sync::<LockOptions>();
    send_sync::<Drained>();
    send_sync::<Released>();
    clone::<LockClient>();
    clone::<Mutex>();
    clone::<Lease>();
    clone::<Error>();
    copy::<ErrorKind>();
    copy::<FencingToken>();
    copy::<LockOptions>();
};

fn store_is_object_safe(store: MemoryStore) -> Arc<dyn Store> {
    Arc::new(store)
}

/// A future borrows the mutex or is not `Send`, so it cannot be spawned as it is.
#[tokio::test]
async fn futures_can_be_spawned_selected_and_joined() {
    let runtime = tokio::runtime::Handle::current();
    let client = LockClient::builder(store_is_object_safe(MemoryStore::new())).build().unwrap();

    let guard = runtime.spawn(client.mutex("a").lock()).await.unwrap().unwrap();
    let none = runtime.spawn(client.mutex("a").try_lock()).await.unwrap().unwrap();
    assert!(none.is_none());
    runtime.spawn(guard.extend(Duration::from_secs(20))).await.unwrap().unwrap();
    runtime.spawn(guard.release()).await.unwrap().unwrap();

    let other = client.clone();
    let sum = runtime.spawn(async move { other.mutex("a").run(async |_| 1 + 1).await });
    assert_eq!(sum.await.unwrap().unwrap(), 2);

    let (one, two) = tokio::join!(client.mutex("b").lock(), client.mutex("c").lock());
    let late = tokio::time::timeout(Duration::from_millis(1), client.mutex("b").lock()).await;
    late.unwrap_err();
    tokio::select! {
        _ = client.mutex("b").lock() => panic!("it is held"),
        guard = client.mutex("d").lock() => drop(guard.unwrap()),
    }
    drop((one.unwrap(), two.unwrap()));
    assert!(runtime.spawn(client.drain(Duration::from_secs(5))).await.unwrap().is_clean());
}
