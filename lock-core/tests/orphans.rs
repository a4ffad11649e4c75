//! Locks in the store without an owner are released; on a paused clock.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions};

const TTL: Duration = Duration::from_secs(100);
/// A grant this late is too late for a lease of that ttl.
const LATE: Duration = Duration::from_secs(95);

/// A client behind gates, and a client without gates.
fn clients(store: &GatedStore<MemoryStore>) -> (LockClient, LockClient) {
    let options = LockOptions::new().with_ttl(TTL);
    let gated = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    (gated, LockClient::builder(store.get_ref().clone()).build().unwrap())
}

/// An extension got no reply, and the store is down for longer than the lock's own ttl. The
/// releaser gives up after that ttl, though the store keeps the lock for the extended time.
#[tokio::test(start_paused = true)]
async fn unconfirmed_extension_is_released_after_a_long_outage() {
    let store = GatedStore::new(MemoryStore::new());
    let (one, two) = clients(&store);
    let guard = one.mutex("k").lock().await.unwrap();
    store.set(|gates| gates.renew = Gate::Lost);
    let error = guard.extend(36 * TTL).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    store.set(|gates| (gates.renew, gates.release) = (Gate::Refused, Gate::Refused));
    drop(guard);
    tokio::time::sleep(6 * TTL).await;
    assert!(
        two.mutex("k").try_lock().await.unwrap().is_none(),
        "the store kept the lock for the extension"
    );
    store.set(|gates| gates.release = Gate::Open);
    wait_idle(&one).await;
    two.mutex("k").try_lock().await.unwrap().expect("released").release().await.unwrap();
}

/// A grant arrives too late, and the next task of the process inherits the error: the store says
/// that the task's own claim did nothing, which is true.
#[tokio::test(start_paused = true)]
async fn late_grant_is_released_when_the_next_claim_fails() {
    let store = GatedStore::new(MemoryStore::new());
    let (one, two) = clients(&store);
    let runtime = tokio::runtime::Handle::current();
    store.set(|gates| gates.acquire = Gate::Late(LATE));
    let first = runtime.spawn(one.mutex("k").without_wait().lock());
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.set(|gates| gates.acquire = Gate::Refused);
    let next = runtime.spawn(one.mutex("k").with_wait(2 * TTL).lock());
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(next.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    wait_idle(&one).await;
    two.mutex("k").try_lock().await.unwrap().expect("released").release().await.unwrap();
}

/// A grant arrives too late, and the store is down for the next claim. The error says that nothing
/// was done.
#[tokio::test(start_paused = true)]
async fn late_grant_makes_the_outcome_unknown() {
    let store = GatedStore::new(MemoryStore::new());
    let (one, two) = clients(&store);
    let runtime = tokio::runtime::Handle::current();
    store.set(|gates| gates.acquire = Gate::Late(LATE));
    let waiter = runtime.spawn(one.mutex("k").with_wait(2 * TTL).lock());
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.set(|gates| gates.acquire = Gate::Refused);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
    wait_idle(&one).await;
    two.mutex("k").try_lock().await.unwrap().expect("released").release().await.unwrap();
}
