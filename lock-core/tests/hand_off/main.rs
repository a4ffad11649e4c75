//! Hand-offs of a lock between the tasks of a process: the order, the numbers, the budget of a
//! grant, and what is never handed on.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod leaving;
mod others;
mod release;
mod terms;

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, poll};
use lock_core::store::MemoryStore;
use lock_core::testing::{ClientStats, Gate, GatedStore, wait_idle};
use lock_core::{
    Error, ErrorKind, FencingToken, LockClient, LockOptions, LostReason, MutexGuard, Released,
};
use tokio::task::JoinHandle;
use tokio::time::advance;

const TTL: Duration = Duration::from_secs(10);
/// How long one grant of the store is handed on.
const BUDGET: Duration = Duration::from_millis(5);
/// After this long a short lease has been lengthened.
const SOON: Duration = Duration::from_millis(60);

type Lock = Pin<Box<dyn Future<Output = Result<MutexGuard, Error>> + Send>>;

fn client(store: &GatedStore<MemoryStore>) -> LockClient {
    let options = LockOptions::new().with_ttl(TTL).wait_forever();
    LockClient::builder(store.clone()).with_defaults(options).build().unwrap()
}

fn fixture() -> (GatedStore<MemoryStore>, LockClient) {
    let store = GatedStore::new(MemoryStore::new());
    let client = client(&store);
    (store, client)
}

/// A waiter in the queue that only the test polls.
async fn waiter(client: &LockClient, options: LockOptions) -> Lock {
    let mut lock: Lock = Box::pin(client.mutex("k").with_options(options).lock());
    assert!(poll!(&mut lock).is_pending());
    lock
}

/// The lock that was handed to a waiter: it needs no I/O, so the next poll returns it.
fn handed(lock: &mut Lock) -> MutexGuard {
    lock.now_or_never().expect("it was handed the lock").unwrap()
}

/// The number of the store's grant, and of the hand-off.
fn parts(fence: FencingToken) -> (u64, u64) {
    (fence.get() >> 6, fence.get() & 63)
}

fn lost(error: &Error) -> LostReason {
    match error.kind() {
        ErrorKind::Lost { reason, .. } => reason,
        other => panic!("not {other:?}"),
    }
}

async fn nothing_is_left(store: &GatedStore<MemoryStore>, client: &LockClient) {
    let bound = Duration::from_secs(60);
    tokio::time::timeout(bound, wait_idle(client)).await.expect("the releaser finishes");
    assert!(ClientStats::of(client).is_idle(), "{:?}", ClientStats::of(client));
    assert!(store.get_ref().is_empty(), "a lock is left in the store");
}

/// A hand-off within the process needs a command to the store.
#[tokio::test(start_paused = true)]
async fn lock_is_handed_on_without_the_store() {
    let (store, client) = fixture();
    let mut guard = client.mutex("k").lock().await.unwrap();
    let grant = parts(guard.fencing_token()).0;
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waiter(&client, LockOptions::new()).await);
    }
    // A claim or release would get no reply from now on.
    store.set(|gates| (gates.acquire, gates.release) = (Gate::Never, Gate::Never));
    for (turn, mut next) in (1..).zip(waiters) {
        assert!(poll!(&mut next).is_pending(), "not before its turn");
        if turn % 2 == 0 {
            drop(guard);
        } else {
            assert_eq!(guard.release().now_or_never().unwrap().unwrap(), Released::InTime);
        }
        // The lock is held during the hand-off, too.
        assert!(client.mutex("k").try_lock().await.unwrap().is_none());
        guard = handed(&mut next);
        assert_eq!(parts(guard.fencing_token()), (grant, turn));
        assert!(guard.is_valid());
    }
    store.set(|gates| (gates.acquire, gates.release) = (Gate::Open, Gate::Open));
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    nothing_is_left(&store, &client).await;
}

/// A waiter overtakes another, or two holders have the same number.
#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_with_growing_fencing_tokens() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Handle::current();
    let mut tasks = Vec::new();
    for turn in 0..500 {
        let (mutex, served) = (client.mutex("k"), Arc::clone(&served));
        tasks.push(runtime.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            served.lock().unwrap().push((turn, guard.fencing_token()));
            drop(guard);
        }));
        tokio::task::yield_now().await;
    }
    let first = guard.fencing_token();
    drop(guard);
    for task in tasks {
        tokio::time::timeout(TTL, task).await.expect("woken").unwrap();
    }
    let served = served.lock().unwrap().clone();
    assert!(served.iter().map(|(turn, _)| *turn).eq(0..500));
    assert!(served[0].1 > first && served.is_sorted_by(|one, two| one.1 < two.1));
    // 63 hand-offs of each grant, no more.
    let grants: HashSet<_> = served.iter().map(|(_, fence)| parts(*fence).0).collect();
    assert_eq!(grants.len(), 501_usize.div_ceil(64));
    nothing_is_left(&store, &client).await;
}

/// One process hands a lock on for ever.
#[tokio::test(start_paused = true)]
async fn another_process_gets_its_turn_after_sixty_three_hand_offs() {
    let (store, one) = fixture();
    let two = client(&store);
    let mut guard = one.mutex("k").lock().await.unwrap();
    let mut other = pin!(two.mutex("k").lock());
    assert!(poll!(other.as_mut()).is_pending());
    for _ in 0..63 {
        let mut next = waiter(&one, LockOptions::new()).await;
        drop(guard);
        guard = handed(&mut next);
    }
    let mut next = waiter(&one, LockOptions::new()).await;
    let last = guard.fencing_token();
    drop(guard);
    // At once, and not because the lease has expired.
    let granted = tokio::time::timeout(TTL / 2, other).await.expect("its turn").unwrap();
    assert!(granted.fencing_token() > last);
    assert!(poll!(&mut next).is_pending());
    granted.release().await.unwrap();
    assert!(next.await.unwrap().is_valid());
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn another_process_gets_its_turn_after_five_milliseconds() {
    for (span, shared) in [(Duration::from_micros(4_999), true), (BUDGET, false)] {
        let (store, one) = fixture();
        let two = client(&store);
        let guard = one.mutex("k").lock().await.unwrap();
        let mut other = pin!(two.mutex("k").lock());
        assert!(poll!(other.as_mut()).is_pending());
        let mut second = waiter(&one, LockOptions::new()).await;
        let mut third = waiter(&one, LockOptions::new()).await;
        // The time counts from the grant, not from the last hand-off.
        drop(guard);
        let guard = handed(&mut second);
        advance(span).await;
        drop(guard);
        if shared {
            drop(handed(&mut third));
        }
        drop(other.await.unwrap());
        if !shared {
            drop(third.await.unwrap());
        }
        wait_idle(&two).await;
        nothing_is_left(&store, &one).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_take_turns_in_blocks() {
    let (store, one) = fixture();
    let two = client(&store);
    let order = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Handle::current();
    let gate = one.mutex("k").lock().await.unwrap();
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for (process, client) in [&one, &two].into_iter().enumerate() {
        for _ in 0..256 {
            let (mutex, order) = (client.mutex("k"), Arc::clone(&order));
            tasks.push(runtime.spawn(async move {
                let guard = mutex.lock().await.unwrap();
                order.lock().unwrap().push((process, guard.fencing_token()));
                drop(guard);
            }));
        }
    }
    tokio::time::sleep(BUDGET * 2).await;
    drop(gate);
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted_by(|before, after| before.1 < after.1));
    let blocks: Vec<_> = order.chunk_by(|before, after| before.0 == after.0).collect();
    assert_eq!(blocks.len(), 8, "four turns each");
    assert!(blocks.iter().all(|block| block.len() == 64));
    wait_idle(&two).await;
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_process_do_not_hand_on_to_each_other() {
    let (store, one) = fixture();
    let two = client(&store);
    let guard = one.mutex("k").lock().await.unwrap();
    let other = two.mutex("k").lock();
    let mut other = pin!(other);
    assert!(poll!(other.as_mut()).is_pending());
    let first = parts(guard.fencing_token());
    drop(guard);
    let granted = other.await.unwrap();
    let second = parts(granted.fencing_token());
    assert!(second.0 > first.0 && second.1 == 0, "granted by the store");
    drop(granted);
    wait_idle(&two).await;
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn lost_lease_is_never_handed_on() {
    type Case = (&'static str, LockOptions, LostReason);
    let renewed = LockOptions::new();
    let cases: [Case; 4] = [
        ("deadline", renewed.without_renewal(), LostReason::Expired),
        ("flush", renewed, LostReason::Gone),
        ("thief", renewed, LostReason::TakenByOther),
        ("max_hold", renewed.with_max_hold(Duration::from_millis(2)), LostReason::MaxHold),
    ];
    for (case, options, reason) in cases {
        let (store, client) = fixture();
        let guard = client.mutex("k").with_options(options).lock().await.unwrap();
        if case == "flush" || case == "thief" {
            store.get_ref().flush();
        }
        let thief = LockClient::builder(store.clone()).build().unwrap();
        let thief = match case {
            "thief" => Some(thief.mutex("k").lock().await.unwrap()),
            _ => None,
        };
        assert_eq!(guard.lost().await, reason, "{case}");
        let mut next: Lock = Box::pin(client.mutex("k").lock());
        let before = guard.fencing_token();
        // It waits behind the guard, or claims the lock in the store.
        let polled = poll!(&mut next);
        drop(guard);
        drop(thief);
        let next = match polled {
            Poll::Ready(next) => next.unwrap(),
            Poll::Pending => next.as_mut().await.unwrap(),
        };
        let (grant, turn) = parts(next.fencing_token());
        assert!(grant > parts(before).0 && turn == 0, "{case}: it claimed the lock");
        drop(next);
        nothing_is_left(&store, &client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_ends_at_the_drop_is_not_handed_on() {
    let (store, client) = fixture();
    let mutex = client.mutex("k").with_max_hold(Duration::from_millis(2));
    let guard = mutex.lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new()).await;
    // Neither a timer nor the renewer has noticed the end yet.
    advance(Duration::from_millis(2)).now_or_never();
    let before = guard.fencing_token();
    drop(guard);
    let next = next.as_mut().await.unwrap();
    assert!(parts(next.fencing_token()).0 > parts(before).0);
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn late_reply_to_the_last_holders_renewal_moves_no_deadline() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let lease = guard.lease();
    // Under way when the lock changes hands, and confirmed after.
    store.set(|gates| gates.renew = Gate::Slow(Duration::from_secs(1)));
    let mut extend = Box::pin(guard.extend(TTL * 6));
    assert!(poll!(&mut extend).is_pending());
    let mut next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    let guard = handed(&mut next);
    assert_eq!(lost(&extend.await.unwrap_err()), LostReason::Released);
    assert!(!lease.is_valid() && lease.remaining() == Duration::ZERO);
    assert!(guard.is_valid() && guard.remaining() <= TTL);
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn watcher_of_the_old_lease_is_woken_at_the_hand_off() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let lease = guard.lease();
    let mut end = pin!(lease.lost());
    assert!(poll!(end.as_mut()).is_pending());
    let mut next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    let next = handed(&mut next);
    assert_eq!(end.now_or_never(), Some(LostReason::Released), "at once");
    assert_eq!(lost(&lease.extend(TTL).await.unwrap_err()), LostReason::Released);
    assert!(next.is_valid());
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn run_and_nested_calls_work_under_a_handed_on_lock() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let mutex = client.mutex("k");
    let mut runs = Vec::new();
    for _ in 0..3 {
        let mutex = mutex.clone();
        let mut run = Box::pin(async move {
            let inner = mutex.clone();
            mutex
                .run(async move |lease| {
                    lock_core::assert_locked("k");
                    let nested = inner.run(async |deeper| deeper.fencing_token()).await.unwrap();
                    assert_eq!(nested, lease.fencing_token());
                    parts(nested).1
                })
                .await
        });
        assert!(poll!(&mut run).is_pending());
        runs.push(run);
    }
    drop(guard);
    for (turn, run) in (1..).zip(runs) {
        assert_eq!(run.now_or_never().expect("no I/O").unwrap(), turn);
    }
    nothing_is_left(&store, &client).await;
}
