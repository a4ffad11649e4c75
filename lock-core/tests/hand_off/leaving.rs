//! Waiters that leave or sleep at any moment lose no lock.

use super::*;

/// A waiter whose time is nearly over returns an error though it has been handed the lock.
#[tokio::test(start_paused = true)]
async fn waiter_without_time_for_a_claim_takes_a_handed_lock() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let wait = Duration::from_millis(50);
    let mut next = waiter(&client, LockOptions::new().with_wait(wait)).await;
    advance(Duration::from_millis(1)).await;
    drop(guard);
    advance(Duration::from_millis(48)).await;
    // Handed in time, and polled with one millisecond left.
    let guard = handed(&mut next);
    drop(guard);

    // A waiter takes the lock even after its time, if it was handed in time.
    let guard = client.mutex("k").lock().await.unwrap();
    let mut next = waiter(&client, LockOptions::new().with_wait(wait)).await;
    drop(guard);
    advance(wait * 2).await;
    drop(handed(&mut next));
    nothing_is_left(&store, &client).await;
}

/// A waiter that is polled late enters a lease that has ended.
#[tokio::test(start_paused = true)]
async fn expired_handed_lease_is_not_entered() {
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

/// A waiter that is dropped after the hand-off keeps the lock until its ttl is over.
#[tokio::test(start_paused = true)]
async fn dropped_waiter_passes_its_handed_lock_on() {
    let (store, client) = fixture();
    let guard = client.mutex("k").lock().await.unwrap();
    let grant = parts(guard.fencing_token()).0;
    let mut leavers = Vec::new();
    for _ in 0..3 {
        leavers.push(waiter(&client, LockOptions::new()).await);
    }
    let mut last = waiter(&client, LockOptions::new()).await;
    drop(guard);
    // The first has it, then the second, then the third; the store sees none of this.
    for leaver in leavers {
        drop(leaver);
        assert_eq!(ClientStats::of(&client).pending, 0);
    }
    let guard = handed(&mut last);
    // Waiters that never entered used up no number.
    assert_eq!(parts(guard.fencing_token()), (grant, 1));

    let next = waiter(&client, LockOptions::new()).await;
    drop(guard);
    drop(next);
    assert_eq!(ClientStats::of(&client).pending, 1, "without a waiter the lock goes back");
    nothing_is_left(&store, &client).await;
}

#[tokio::test(start_paused = true)]
async fn drain_during_a_hand_off_loses_no_lock() {
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
            let stats = ClientStats::of(&client);
            assert!(stats.held + stats.pending > 0, "{stats:?}");
            let error = lock.now_or_never().expect("an error at once").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Draining);
        }
        let drained = drain.await;
        assert!(drained.is_clean(), "{drained:?}");
        nothing_is_left(&store, &client).await;
    }
}

#[tokio::test(start_paused = true)]
async fn drain_ends_waiting_claims_at_once_and_returns_with_the_last_holder() {
    let (store, one) = fixture();
    let two = client(&store);
    let foreign = two.mutex("k").lock().await.unwrap();
    let own = one.mutex("other").lock().await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let claim = runtime.spawn(one.mutex("k").lock());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let start = tokio::time::Instant::now();
    let drain = runtime.spawn(one.drain(Duration::from_secs(60)));
    assert_eq!(claim.await.unwrap().unwrap_err().kind(), ErrorKind::Draining);
    assert_eq!(start.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!drain.is_finished());
    drop(own);
    assert!(drain.await.unwrap().is_clean());
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    drop(foreign);
    wait_idle(&two).await;
    nothing_is_left(&store, &one).await;
}

/// A small generator, so that a failure can be reproduced.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test(start_paused = true)]
async fn cancellations_at_any_moment_lose_no_lock_and_no_wake_up() {
    let (mut left, mut handed_on) = (0, 0);
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
                            Poll::Ready(guard) => {
                                waiting.push((step, Box::pin(async move { guard })));
                            }
                            Poll::Pending => waiting.push((step, lock)),
                        }
                    }
                }
                4..=5 if !waiting.is_empty() => {
                    let gone = random.below(waiting.len() as u64);
                    drop(waiting.remove(gone as usize));
                    left += 1;
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
                            handed_on += u32::from(parts(guard.fencing_token()).1 > 0);
                        }
                        entered += 1;
                        held = Some(guard);
                        break;
                    }
                }
            }
        }
        assert!(entered > 20, "seed {seed}: {entered} entered");
        // Every waiter that is left gets the lock and a wake-up: spawned tasks are polled only when
        // they are woken.
        let runtime = tokio::runtime::Handle::current();
        let waiting: Vec<_> = waiting
            .into_iter()
            .map(|(_, lock)| runtime.spawn(async move { drop(lock.await.unwrap()) }))
            .collect();
        tokio::task::yield_now().await;
        drop(held);
        for task in waiting {
            tokio::time::timeout(Duration::from_secs(60), task).await.expect("woken").unwrap();
        }
        wait_idle(&other).await;
        nothing_is_left(&store, &client).await;
        assert!(ClientStats::of(&other).is_idle());
    }
    assert!(left > 1_000 && handed_on > 100, "{left} left, {handed_on} got the lock by a hand-off");
}

#[test]
fn cancellations_on_several_threads_lose_no_lock() {
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
                let (mut entered, mut cancelled) = (0_u32, 0_u32);
                for _ in 0..300 {
                    let patience = Duration::from_micros(random.below(400));
                    let lock = mutex.lock();
                    // A timer cancels it on any thread, before, during or after the hand-off.
                    let Ok(guard) = tokio::time::timeout(patience, lock).await else {
                        cancelled += 1;
                        continue;
                    };
                    let guard = guard.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    if random.below(2) == 0 {
                        tokio::task::yield_now().await;
                    }
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(guard);
                    entered += 1;
                }
                (entered, cancelled)
            }));
        }
        let (mut entered, mut cancelled) = (0, 0);
        for task in tasks {
            let done = tokio::time::timeout(Duration::from_secs(60), task).await;
            let counts = done.expect("no task is stuck").unwrap();
            entered += counts.0;
            cancelled += counts.1;
        }
        assert!(entered > 100 && cancelled > 100, "{entered} entered, {cancelled} cancelled");
        nothing_is_left(&store, &client).await;
    });
}
