//! Locked functions that call locked functions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, LockClient, distributed_lock};

use crate::support::alone;

#[distributed_lock(key = "order:<id>", lease = lease, wait = none)]
async fn inner(id: u64) -> Result<FencingToken, Error> {
    tokio::task::yield_now().await;
    Ok(lease.fencing_token())
}

#[distributed_lock(key = "order:<id>", lease = lease)]
async fn outer(id: u64) -> Result<(), Error> {
    assert_eq!(inner(id).await?, lease.fencing_token(), "another lock inside of the lock");
    // The inner one gave nothing back.
    lock_core::assert_locked(lock_core::key!("order:<id>"));
    assert!(lease.is_valid());
    assert_ne!(inner(id + 1).await?, lease.fencing_token());
    Ok(())
}

// redisson#4796 (R20): an error or an entry, never a hang.
#[tokio::test]
async fn a_nested_call_waits_for_itself() {
    let (store, client) = alone();
    client.scope(outer(7)).await.unwrap();
    assert!(store.is_empty());
}

/// How many run at once, and the most that ever did.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
    order: Mutex<Vec<u64>>,
}

impl Crowd {
    async fn visit(&self, name: u64) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.order.lock().unwrap().push(name);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[distributed_lock(key = "order:<id>")]
async fn sibling(id: u64, name: u64, crowd: &Crowd) -> Result<(), Error> {
    crowd.visit(name).await;
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn parent(id: u64, crowd: &Crowd) -> Result<(), Error> {
    let (a, b, c) =
        tokio::join!(sibling(id, 1, crowd), sibling(id, 2, crowd), sibling(id, 3, crowd));
    a.and(b).and(c)
}

#[tokio::test(start_paused = true)]
async fn siblings_run_at_once_under_one_lock() {
    let (_, client) = alone();
    let crowd = Crowd::default();
    client.scope(parent(7, &crowd)).await.unwrap();
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
    assert_eq!(*crowd.order.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn siblings_run_at_once_without_an_outer_lock() {
    let (_, client) = alone();
    let crowd = Crowd::default();
    let both = async { tokio::join!(sibling(7, 1, &crowd), sibling(7, 2, &crowd)) };
    let (a, b) = client.scope(both).await;
    a.and(b).unwrap();
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn different_keys_wait_for_each_other() {
    let (_, client) = alone();
    let crowd = Crowd::default();
    let both = async { tokio::join!(sibling(7, 1, &crowd), sibling(8, 2, &crowd)) };
    let (a, b) = client.scope(both).await;
    a.and(b).unwrap();
    assert_eq!(crowd.most.load(Ordering::SeqCst), 2);
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
async fn recursion_waits_for_itself() {
    let (_, client) = alone();
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
async fn a_spawned_task_inherits_the_lock() {
    let (_, client) = alone();
    spawning(7, &client).await.unwrap();
}

#[distributed_lock(key = "order:<id>", client = client)]
async fn by_hand(id: u64, client: &LockClient) -> Result<(), Error> {
    let mutex = client.mutex(lock_core::key!("order:<id>"));
    assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    Ok(())
}

#[tokio::test]
async fn a_guard_for_a_key_that_the_task_holds_hangs() {
    let (_, client) = alone();
    by_hand(7, &client).await.unwrap();
}

#[tokio::test]
async fn another_client_enters_the_lock_of_the_first() {
    #[distributed_lock(key = "order:<id>", client = first)]
    async fn outer(id: u64, first: &LockClient, second: &LockClient) -> Result<(), Error> {
        assert!(second.scope(inner(id)).await.unwrap_err().is_busy());
        first.scope(inner(id)).await.map(drop)
    }

    let (store, first) = alone();
    outer(7, &first, &crate::support::client(&store)).await.unwrap();
}
