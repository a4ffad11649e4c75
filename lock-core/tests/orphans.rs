//! What the store holds for nobody is taken back; on a paused clock.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions};

const TTL: Duration = Duration::from_secs(100);
/// Too late for a lease of that.
const LATE: Duration = Duration::from_secs(95);

/// A client behind gates, and one that has none.
fn clients(store: &GatedStore<MemoryStore>) -> (LockClient, LockClient) {
    let options = LockOptions::new().with_ttl(TTL);
    let gated = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    (gated, LockClient::builder(store.get_ref().clone()).build().unwrap())
}

/// What was asked for counts, though nobody confirmed it: the store is away for longer than the
/// lock's own ttl.
#[tokio::test(start_paused = true)]
async fn an_extension_without_an_answer_is_taken_back_after_a_long_outage() {
    let store = GatedStore::new(MemoryStore::new());
    let (one, two) = clients(&store);
    let guard = one.mutex("k").lock().await.unwrap();
    store.set(|gates| gates.renew = Gate::Lost);
    let error = guard.extend(36 * TTL).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    store.set(|gates| (gates.renew, gates.release) = (Gate::Refused, Gate::Refused));
    drop(guard);
    tokio::time::sleep(6 * TTL).await;
    assert!(two.mutex("k").try_lock().await.unwrap().is_none(), "the store did as it was asked");
    store.set(|gates| gates.release = Gate::Open);
    wait_idle(&one).await;
    two.mutex("k").try_lock().await.unwrap().expect("released").release().await.unwrap();
}

/// Nor by one who stands in line: the store says that its own claim did nothing, which is true.
#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_passed_on_and_forgotten() {
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

/// That the store is gone by then does not tell that nothing was done.
#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_hidden_by_what_came_after_it() {
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
