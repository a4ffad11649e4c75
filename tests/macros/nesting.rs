//! Locked functions that call locked functions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, LockClient, distributed_lock};

use crate::support::store_and_client;

#[distributed_lock(key = "order:<id>", lease = lease, wait = none)]
async fn inner(id: u64) -> Result<FencingToken, Error> {
    tokio::task::yield_now().await;
    Ok(lease.fencing_token())
}

#[distributed_lock(key = "order:<id>", lease = lease)]
async fn outer(id: u64) -> Result<(), Error> {
    assert_eq!(inner(id).await?, lease.fencing_token(), "the inner call took another lock");
    // The inner call did not release the lock.
    lock_core::assert_locked(lock_core::key!("order:<id>"));
    assert!(lease.is_valid());
    assert_ne!(inner(id + 1).await?, lease.fencing_token());
    Ok(())
}

/// redisson#4796 (R20): a nested call waits for itself. It must enter the lock or fail, but never
/// hang.
#[tokio::test]
async fn nested_call_enters_the_held_lock() {
    let (store, client) = store_and_client();
    client.scope(outer(7)).await.unwrap();
    assert!(store.is_empty());
}

/// How many siblings run now, how many ran at once at most, and in which order they started.
#[derive(Default)]
struct Running {
    now: AtomicUsize,
    peak: AtomicUsize,
    order: Mutex<Vec<u64>>,
}

impl Running {
    async fn enter(&self, name: u64) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        self.order.lock().unwrap().push(name);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[distributed_lock(key = "order:<id>")]
async fn sibling(id: u64, name: u64, running: &Running) -> Result<(), Error> {
    running.enter(name).await;
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn parent(id: u64, running: &Running) -> Result<(), Error> {
    let (a, b, c) =
        tokio::join!(sibling(id, 1, running), sibling(id, 2, running), sibling(id, 3, running));
    a.and(b).and(c)
}

#[tokio::test(start_paused = true)]
async fn siblings_under_one_lock_take_turns() {
    let (_, client) = store_and_client();
    let running = Running::default();
    client.scope(parent(7, &running)).await.unwrap();
    assert_eq!(running.peak.load(Ordering::SeqCst), 1);
    assert_eq!(*running.order.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn siblings_without_an_outer_lock_take_turns() {
    let (_, client) = store_and_client();
    let running = Running::default();
    let both = async { tokio::join!(sibling(7, 1, &running), sibling(7, 2, &running)) };
    let (a, b) = client.scope(both).await;
    a.and(b).unwrap();
    assert_eq!(running.peak.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn different_keys_do_not_wait_for_each_other() {
    let (_, client) = store_and_client();
    let running = Running::default();
    let both = async { tokio::join!(sibling(7, 1, &running), sibling(8, 2, &running)) };
    let (a, b) = client.scope(both).await;
    a.and(b).unwrap();
    assert_eq!(running.peak.load(Ordering::SeqCst), 2);
}

#[distributed_lock(key = "tree:<root>")]
async fn descend(root: u64, depth: u32) -> Result<u32, Error> {
    if depth == 0 {
        return Ok(0);
    }
    let (left, right) =
        tokio::join!(Box::pin(descend(root, depth - 1)), Box::pin(descend(root, depth - 1)));
    Ok(left? + right? + 1)
}

#[tokio::test]
async fn recursive_call_enters_the_held_lock() {
    let (_, client) = store_and_client();
    assert_eq!(client.scope(descend(1, 4)).await.unwrap(), 15);
}

#[distributed_lock(key = "order:<id>", client = client)]
async fn spawning(id: u64, client: &LockClient) -> Result<(), Error> {
    let task = tokio::spawn(client.clone().scope(inner(id)));
    assert!(task.await.unwrap().unwrap_err().is_busy(), "a spawned task entered its parent's lock");
    assert!(tokio::spawn(async { lock_core::current().is_none() }).await.unwrap());
    Ok(())
}

#[tokio::test]
async fn spawned_task_does_not_inherit_the_lock() {
    let (_, client) = store_and_client();
    spawning(7, &client).await.unwrap();
}

#[distributed_lock(key = "order:<id>", client = client)]
async fn by_hand(id: u64, client: &LockClient) -> Result<(), Error> {
    let mutex = client.mutex(lock_core::key!("order:<id>"));
    assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    Ok(())
}

#[tokio::test]
async fn locking_a_held_key_by_hand_fails_with_would_deadlock() {
    let (_, client) = store_and_client();
    by_hand(7, &client).await.unwrap();
}

#[tokio::test]
async fn another_client_does_not_enter_the_lock() {
    #[distributed_lock(key = "order:<id>", client = first)]
    async fn outer(id: u64, first: &LockClient, second: &LockClient) -> Result<(), Error> {
        assert!(second.scope(inner(id)).await.unwrap_err().is_busy());
        first.scope(inner(id)).await.map(drop)
    }

    let (store, first) = store_and_client();
    outer(7, &first, &crate::support::client(&store)).await.unwrap();
}
