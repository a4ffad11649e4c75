//! A lock that goes from task to task within a process, and when it does not.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{FutureExt, poll};
use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore, Vitals, settled};
use lock_core::{
    Error, ErrorKind, FencingToken, LockClient, LockOptions, LostReason, MutexGuard, Released,
};
use tokio::task::JoinHandle;
use tokio::time::advance;

const TTL: Duration = Duration::from_secs(10);
/// How long one grant of the store goes from hand to hand.
const BUDGET: Duration = Duration::from_millis(5);

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

/// A waiter that stands in line and is polled only by the test.
async fn waiter(client: &LockClient, options: LockOptions) -> Lock {
    let mut lock: Lock = Box::pin(client.mutex("k").with_options(options).lock());
    assert!(poll!(&mut lock).is_pending());
    lock
}

/// The lock that a waiter was handed: it needs no I/O, so the next poll has it.
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
    tokio::time::timeout(bound, settled(client)).await.expect("the janitor finishes");
    assert!(Vitals::of(client).is_idle(), "{:?}", Vitals::of(client));
    assert!(store.get_ref().is_empty(), "a lock is left in the store");
}

#[tokio::test(start_paused = true)]
async fn a_lock_goes_down_the_line_without_the_store() {
    let (store, client) = fixture();
    let mut guard = client.mutex("k").lock().await.unwrap();
    let grant = parts(guard.fencing_token()).0;
    let mut line = Vec::new();
    for _ in 0..5 {
        line.push(waiter(&client, LockOptions::new()).await);
    }
    // Whoever asked the store now would never hear of it.
    store.set(|gates| (gates.acquire, gates.release) = (Gate::Never, Gate::Never));
    for (turn, mut next) in (1..).zip(line) {
        assert!(poll!(&mut next).is_pending(), "not before its turn");
        if turn % 2 == 0 {
            drop(guard);
        } else {
            assert_eq!(guard.release().now_or_never().unwrap().unwrap(), Released::InTime);
        }
        // In transit it is held as well.
        assert!(client.mutex("k").try_lock().await.unwrap().is_none());
        guard = handed(&mut next);
        assert_eq!(parts(guard.fencing_token()), (grant, turn));
        assert!(guard.is_valid());
    }
    store.set(|gates| (gates.acquire, gates.release) = (Gate::Open, Gate::Open));
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_order_and_each_has_a_larger_number() {
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
        task.await.unwrap();
    }
    let served = served.lock().unwrap().clone();
    assert!(served.iter().map(|(turn, _)| *turn).eq(0..500));
    assert!(served[0].1 > first && served.is_sorted_by(|one, two| one.1 < two.1));
    // 63 hand-offs of each grant, no more.
    let grants: HashSet<_> = served.iter().map(|(_, fence)| parts(*fence).0).collect();
    assert_eq!(grants.len(), 501_usize.div_ceil(64));
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn after_sixty_three_hand_offs_another_process_has_its_turn() {
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
    let theirs = other.await.unwrap();
    assert!(theirs.fencing_token() > last);
    assert!(poll!(&mut next).is_pending());
    theirs.release().await.unwrap();
    assert!(next.await.unwrap().is_valid());
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn when_its_time_is_over_another_process_has_its_turn() {
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
        settled(&two).await;
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
    settled(&two).await;
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn clients_on_one_store_share_nothing() {
    let (store, one) = fixture();
    let two = client(&store);
    let guard = one.mutex("k").lock().await.unwrap();
    let other = two.mutex("k").lock();
    let mut other = pin!(other);
    assert!(poll!(other.as_mut()).is_pending());
    let first = parts(guard.fencing_token());
    drop(guard);
    let theirs = other.await.unwrap();
    let second = parts(theirs.fencing_token());
    assert!(second.0 > first.0 && second.1 == 0, "granted by the store");
    drop(theirs);
    settled(&two).await;
    nothing_is_left(&store, &one).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_never_handed_on() {
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
        drop(guard);
        drop(thief);
        let next = next.as_mut().await.unwrap();
        let (grant, turn) = parts(next.fencing_token());
        assert!(grant > parts(before).0 && turn == 0, "{case}: it asked the store");
        drop(next);
        nothing_is_left(&store, &client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_in_the_moment_of_the_drop_is_not_handed_on() {
    let (store, client) = fixture();
    let mutex = client.mutex("k").with_max_hold(Duration::from_millis(2));
    let guard = mutex.lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new()).await;
    // The clock alone decides; neither a timer nor the renewer has noticed yet.
    advance(Duration::from_millis(2)).now_or_never();
    let before = guard.fencing_token();
    drop(guard);
    let next = next.as_mut().await.unwrap();
    assert!(parts(next.fencing_token()).0 > parts(before).0);
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn what_its_holder_wants_kept_taken_is_not_handed_on() {
    let (store, client) = fixture();
    let hold = Duration::from_secs(3);
    let guard = client.mutex("k").with_min_hold(hold).lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new()).await;
    let start = tokio::time::Instant::now();
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    let next = next.as_mut().await.unwrap();
    assert!(start.elapsed() >= hold, "{:?}", start.elapsed());
    drop(next);

    // One who wants that may be handed a lock, and keeps the key that long itself.
    let guard = client.mutex("k").lock().await.unwrap();
    let mut job = waiter(&client, LockOptions::new().with_min_hold(hold)).await;
    drop(guard);
    drop(handed(&mut job));
    let start = tokio::time::Instant::now();
    drop(client.mutex("k").lock().await.unwrap());
    assert!(start.elapsed() + BUDGET >= hold, "{:?}", start.elapsed());
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn each_holder_has_a_max_hold_of_its_own() {
    let (store, client) = fixture();
    let ms = Duration::from_millis;
    let guard = client.mutex("k").with_max_hold(ms(3)).lock().await.unwrap();
    let mut second = waiter(&client, LockOptions::new()).await;
    let mut third = waiter(&client, LockOptions::new().with_max_hold(ms(50))).await;
    advance(ms(2)).await;
    drop(guard);
    let guard = handed(&mut second);
    advance(ms(2)).await;
    assert!(guard.is_valid() && guard.remaining() > TTL / 2, "the first one's bound is gone");
    drop(guard);
    let guard = handed(&mut third);
    let left = guard.remaining();
    assert!(left <= ms(50) && left > ms(48), "{left:?}");
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_with_a_longer_ttl_gets_it_and_one_with_a_shorter_is_not_cut() {
    let short = LockOptions::new().with_ttl(Duration::from_secs(1));
    for next in [
        LockOptions::new().with_ttl(TTL * 6),
        LockOptions::new().with_ttl(TTL * 6).without_renewal(),
    ] {
        let (store, client) = fixture();
        let guard = client.mutex("k").with_options(short).lock().await.unwrap();
        let mut long = waiter(&client, next).await;
        drop(guard);
        let guard = handed(&mut long);
        assert!(guard.remaining() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(store.renewals(), 1, "lengthened at once");
        assert!(guard.remaining() > TTL * 5, "{:?}", guard.remaining());
        let start = tokio::time::Instant::now();
        if next.renewal() == Some(false) {
            assert_eq!(guard.lost().await, LostReason::Expired);
            assert!(start.elapsed() > TTL * 5 && start.elapsed() < TTL * 6);
            assert_eq!(store.renewals(), 1, "once");
        } else {
            tokio::time::sleep(TTL * 20).await;
            assert!(guard.is_valid());
        }
        drop(guard);
        nothing_is_left(&store, &client).await;
    }
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let mut next = waiter(&client, short).await;
    drop(guard);
    let guard = handed(&mut next);
    assert!(guard.remaining() > Duration::from_secs(9));
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_valid());
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_lift_that_fails_is_tried_again_and_is_over_at_the_deadline() {
    let (store, client) = fixture();
    let short = LockOptions::new().with_ttl(Duration::from_secs(1));
    let fixed = LockOptions::new().without_renewal();
    let guard = client.mutex("k").with_options(short).lock().await.unwrap();
    let mut next = waiter(&client, fixed).await;
    store.set(|gates| gates.renew = Gate::Refused);
    drop(guard);
    let guard = handed(&mut next);
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(store.renewals() > 1 && guard.is_valid());
    store.set(|gates| gates.renew = Gate::Open);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(guard.remaining() > TTL * 9 / 10, "{:?}", guard.remaining());
    drop(guard);

    let guard = client.mutex("k").with_options(short).lock().await.unwrap();
    let mut next = waiter(&client, fixed).await;
    store.set(|gates| gates.renew = Gate::Never);
    drop(guard);
    let guard = handed(&mut next);
    let start = tokio::time::Instant::now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(start.elapsed() <= Duration::from_secs(1));
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn hand_offs_at_the_same_ttl_cost_no_renewal() {
    let (store, client) = fixture();
    for options in [LockOptions::new(), LockOptions::new().without_renewal()] {
        let mut guard = client.mutex("k").with_options(options).lock().await.unwrap();
        for _ in 0..40 {
            let mut next = waiter(&client, options).await;
            advance(Duration::from_micros(100)).await;
            drop(guard);
            guard = handed(&mut next);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(store.renewals(), 0);
        drop(guard);
        settled(&client).await;
    }
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn too_little_is_not_handed_on_and_the_next_asks_the_store() {
    let (store, client) = fixture();
    let tiny = LockOptions::new().with_ttl(Duration::from_millis(100)).without_renewal();
    let guard = client.mutex("k").with_options(tiny).lock().await.unwrap();
    // Another one with that ttl would take it, but not one with a hundred times as much.
    let mut next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    let next = next.as_mut().await.unwrap();
    assert_eq!(parts(next.fencing_token()).1, 0);
    assert!(next.remaining() > TTL / 2);
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_the_last_holders_renewal_moves_nothing() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let lease = guard.lease();
    // Long enough for a renewal to be under way; the time budget does not reach that far, so this one asks the store.
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
async fn who_watches_is_told_of_the_hand_off() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let lease = guard.lease();
    let mut end = pin!(lease.lost());
    assert!(poll!(end.as_mut()).is_pending());
    let mut next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    let next = handed(&mut next);
    assert_eq!(end.await, LostReason::Released);
    assert_eq!(lost(&lease.extend(TTL).await.unwrap_err()), LostReason::Released);
    assert!(next.is_valid());
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_with_no_time_to_ask_the_store_takes_what_it_is_handed() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let wait = Duration::from_millis(50);
    let mut next = waiter(&client, LockOptions::new().with_wait(wait)).await;
    advance(Duration::from_millis(1)).await;
    drop(guard);
    advance(Duration::from_millis(48)).await;
    // Handed in time, looked at with one millisecond left.
    let guard = handed(&mut next);
    drop(guard);

    // Even after its time, if the lock came in time.
    let guard = client.mutex("k").lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new().with_wait(wait)).await;
    drop(guard);
    advance(wait * 2).await;
    drop(handed(&mut next));
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_handed_to_one_who_slept_on_it_is_not_entered() {
    let (store, client) = fixture();
    let fixed = LockOptions::new().with_ttl(Duration::from_millis(500)).without_renewal();
    let guard = client.mutex("k").with_options(fixed).lock().await.unwrap();
    let before = guard.fencing_token();
    let mut next = waiter(&client, fixed).await;
    drop(guard);
    advance(Duration::from_secs(5)).await;
    let next = next.as_mut().await.unwrap();
    assert!(next.is_valid());
    assert!(parts(next.fencing_token()).0 > parts(before).0);
    drop(next);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn one_who_leaves_with_the_lock_in_hand_passes_it_on() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let grant = parts(guard.fencing_token()).0;
    let mut leavers = Vec::new();
    for _ in 0..3 {
        leavers.push(waiter(&client, LockOptions::new()).await);
    }
    let mut last = waiter(&client, LockOptions::new()).await;
    drop(guard);
    // The first has it, then the second, then the third; all of them at once for the store.
    for leaver in leavers {
        drop(leaver);
        assert_eq!(Vitals::of(&client).pending, 0);
    }
    let guard = handed(&mut last);
    // Those who never entered have used up no number.
    assert_eq!(parts(guard.fencing_token()), (grant, 1));

    let next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    drop(next);
    assert_eq!(Vitals::of(&client).pending, 1, "with nobody there it goes back");
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn draining_in_the_middle_of_a_hand_off_loses_nothing() {
    for drained_first in [false, true] {
        let (store, client) = fixture();
        let guard = client.mutex("k").lock().await.unwrap();
        let mut next = waiter(&client, LockOptions::new()).await;
        let mut behind = waiter(&client, LockOptions::new()).await;
        let mut drain = Box::pin(client.drain(Duration::from_secs(5)));
        if drained_first {
            assert!(poll!(&mut drain).is_pending());
            drop(guard);
        } else {
            drop(guard);
            assert!(poll!(&mut drain).is_pending());
        }
        for lock in [&mut next, &mut behind] {
            let vitals = Vitals::of(&client);
            assert!(vitals.held + vitals.pending > 0, "{vitals:?}");
            let error = lock.now_or_never().expect("told at once").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Draining);
        }
        let drained = drain.await;
        assert!(drained.is_clean(), "{drained:?}");
        nothing_is_left(&store, &client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn holders_with_and_without_a_number_share_a_line() {
    let (store, client) = fixture();
    let plain = LockOptions::new().without_fencing();
    let zero = FencingToken::from_raw(0);

    // Without a number from one to the other.
    let guard = client.mutex("k").with_options(plain).lock().await.unwrap();
    assert_eq!(guard.fencing_token(), zero);
    let mut next = waiter(&client, plain).await;
    let mut fenced = waiter(&client, LockOptions::new()).await;
    let mut last = waiter(&client, plain).await;
    drop(guard);
    let guard = handed(&mut next);
    assert_eq!(guard.fencing_token(), zero);

    // One who needs a number gets it from the store.
    drop(guard);
    let guard = fenced.as_mut().await.unwrap();
    assert!(guard.fencing_token() > zero);
    assert_eq!(parts(guard.fencing_token()).1, 0);

    // One who does not need it has none, and those behind it have larger ones.
    let mut behind = waiter(&client, LockOptions::new()).await;
    let before = guard.fencing_token();
    drop(guard);
    let guard = handed(&mut last);
    assert_eq!(guard.fencing_token(), zero);
    drop(guard);
    let guard = handed(&mut behind);
    assert_eq!(parts(guard.fencing_token()), (parts(before).0, 2));
    drop(guard);
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn run_and_nested_calls_work_under_a_lock_that_was_handed_on() {
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

/// A small generator, so that a failure can be run again.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_cancellations_at_any_moment_lose_no_lock_and_wake_everybody() {
    for seed in 0..40 {
        let mut random = Seeded(seed);
        let (store, client) = fixture();
        let other = self::client(&store);
        let (mut entered, mut last) = (0, None);
        let mut waiting: Vec<(u64, Lock)> = Vec::new();
        let mut held: Option<MutexGuard> = None;
        for step in 0..400 {
            match random.below(10) {
                0..=3 => {
                    let client = if random.below(8) == 0 { &other } else { &client };
                    let mutex = match random.below(4) {
                        0 => client.mutex("k").without_fencing(),
                        1 => client.mutex("k").with_ttl(Duration::from_millis(100)),
                        2 => client.mutex("k").with_max_hold(Duration::from_millis(3)),
                        _ => client.mutex("k"),
                    };
                    let mut lock: Lock = Box::pin(mutex.lock());
                    // Not all are polled before they are dropped.
                    if random.below(10) > 0 {
                        match poll!(&mut lock) {
                            std::task::Poll::Ready(guard) => {
                                waiting.push((step, Box::pin(async move { guard })));
                            }
                            std::task::Poll::Pending => waiting.push((step, lock)),
                        }
                    }
                }
                4..=5 if !waiting.is_empty() => {
                    let gone = random.below(waiting.len() as u64);
                    drop(waiting.remove(gone as usize));
                }
                6..=7 => held = None,
                8 => tokio::task::yield_now().await,
                _ => advance(Duration::from_micros(random.below(4_000))).await,
            }
            if held.is_none() {
                for index in 0..waiting.len() {
                    if let Some(guard) = (&mut waiting[index].1).now_or_never() {
                        drop(waiting.remove(index));
                        let guard = guard.unwrap();
                        if guard.is_valid() && guard.fencing_token() > FencingToken::from_raw(0) {
                            assert!(last < Some(guard.fencing_token()), "seed {seed}, step {step}");
                            last = Some(guard.fencing_token());
                        }
                        entered += 1;
                        held = Some(guard);
                        break;
                    }
                }
            }
        }
        drop(held);
        assert!(entered > 20, "seed {seed}: {entered} entered");
        // Everybody who still waits gets it, so no wake-up was lost.
        for (_, lock) in waiting {
            let bound = Duration::from_secs(60);
            drop(tokio::time::timeout(bound, lock).await.expect("woken").unwrap());
        }
        settled(&other).await;
        nothing_is_left(&store, &client).await;
        assert!(Vitals::of(&other).is_idle());
    }
}

#[test]
fn threads_that_come_and_go_lose_no_lock() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, client) = fixture();
        let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let mut tasks = Vec::new();
        for task in 0..32_u64 {
            let (mutex, inside) = (client.mutex("k"), Arc::clone(&inside));
            tasks.push(runtime.spawn(async move {
                let mut random = Seeded(task);
                let mut entered = 0_u32;
                for _ in 0..300 {
                    let patience = Duration::from_micros(random.below(400));
                    let lock = mutex.lock();
                    // Cancelled by a timer on whichever thread, before, while or after it is handed the lock.
                    let Ok(guard) = tokio::time::timeout(patience, lock).await else { continue };
                    let guard = guard.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    if random.below(2) == 0 {
                        tokio::task::yield_now().await;
                    }
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(guard);
                    entered += 1;
                }
                entered
            }));
        }
        let mut entered = 0;
        for task in tasks {
            entered += tokio::time::timeout(Duration::from_secs(60), task)
                .await
                .expect("nobody is stuck")
                .unwrap();
        }
        assert!(entered > 100, "{entered} entered");
        nothing_is_left(&store, &client).await;
    });
}
