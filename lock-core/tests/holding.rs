//! A held lock, and how it ends; on a paused clock.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{ClientStats, Gate, GatedStore, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions, LostReason, Released, assert_locked, current};

const TTL: Duration = Duration::from_secs(3);

fn client(store: &MemoryStore) -> LockClient {
    let options = LockOptions::new().with_ttl(TTL);
    LockClient::builder(store.clone()).with_defaults(options).build().unwrap()
}

fn lost(error: &lock_core::Error) -> LostReason {
    match error.kind() {
        ErrorKind::Lost { reason, .. } => reason,
        other => panic!("not {other:?}"),
    }
}

/// A lease ends while its guard lives and the store works.
#[tokio::test(start_paused = true)]
async fn held_lock_is_renewed_until_its_release() {
    let (store, other) = (MemoryStore::new(), MemoryStore::clone);
    let (one, two) = (client(&store), client(&other(&store)));
    let guard = one.mutex("k").lock().await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(TTL).await;
        assert!(guard.is_valid());
        assert!(two.mutex("k").try_lock().await.unwrap().is_none());
    }
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    two.mutex("k").try_lock().await.unwrap().unwrap().release().await.unwrap();
}

/// An expired lease counts as held, or its release frees the lock of the next holder.
#[tokio::test(start_paused = true)]
async fn lease_without_renewal_ends_at_its_ttl_and_its_release_reports_it() {
    let store = MemoryStore::new();
    let (one, two) = (client(&store), client(&store));
    let guard = one.mutex("k").without_renewal().lock().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // The process can claim the key again though the guard still lives.
    let again = one.mutex("k").lock().await.unwrap();
    assert!(again.fencing_token() > guard.fencing_token());
    assert_eq!(guard.release().await.unwrap(), Released::TakenByOther);
    assert!(again.is_valid());
    assert!(two.mutex("k").try_lock().await.unwrap().is_none());
}

/// A body runs on while another owner has the lock.
#[tokio::test(start_paused = true)]
async fn body_is_dropped_when_its_lease_is_taken_by_another() {
    let store = MemoryStore::new();
    let (one, two) = (client(&store), client(&store));
    let polls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&polls);
    let body = async move |lease: lock_core::Lease| {
        loop {
            assert!(lease.is_valid(), "polled without the lock");
            seen.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let steal = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.flush();
        two.mutex("k").lock().await.unwrap()
    };
    let mutex = one.mutex("k");
    let start = tokio::time::Instant::now();
    let (result, thief) = tokio::join!(mutex.run::<_, _>(body), steal);
    let error: lock_core::Error = match result {
        Err(error) => error,
        Ok(()) => panic!("the body never ends"),
    };
    assert_eq!(lost(&error), LostReason::TakenByOther);
    assert!(polls.load(Ordering::Relaxed) > 5);
    // Noticed by the first renewal, well before the deadline.
    assert!(start.elapsed() < TTL / 2, "{:?}", start.elapsed());
    assert!(thief.is_valid());
}

/// One failed renewal loses the lease, or a lease outlives its deadline.
#[tokio::test(start_paused = true)]
async fn failed_renewal_keeps_the_lease_and_a_silent_store_ends_it_at_the_deadline() {
    let store = GatedStore::new(MemoryStore::new());
    let options = LockOptions::new().with_ttl(TTL);
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();

    store.set(|gates| gates.renew = Gate::Refused);
    tokio::time::sleep(TTL / 2).await;
    assert!(store.renewals() > 0 && guard.is_valid());
    let before = guard.remaining();
    store.set(|gates| gates.renew = Gate::Open);
    tokio::time::sleep(TTL / 4).await;
    assert!(guard.remaining() > before);

    store.set(|gates| gates.renew = Gate::Never);
    let left = guard.remaining();
    let start = tokio::time::Instant::now();
    let lost = tokio::time::timeout(TTL * 2, guard.lost()).await;
    assert_eq!(lost, Ok(LostReason::Expired));
    assert!(start.elapsed() <= left + Duration::from_millis(10), "{:?}", start.elapsed());
    // A later reply does not bring the lease back.
    store.set(|gates| gates.renew = Gate::Open);
    tokio::time::sleep(TTL).await;
    assert_eq!(guard.lost().await, LostReason::Expired);
}

/// Renewals move the end past `max_hold`.
#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_body_whose_lease_could_be_renewed() {
    let store = MemoryStore::new();
    let client = client(&store);
    let mutex = client.mutex("k").with_max_hold(TTL * 2);
    let start = tokio::time::Instant::now();
    let error = mutex.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert_eq!(lost(&error), LostReason::MaxHold);
    assert!(start.elapsed() >= TTL * 2 && start.elapsed() < TTL * 2 + Duration::from_millis(50));
    wait_idle(&client).await;
    drop(client.mutex("k").without_wait().lock().await.unwrap());
}

/// A guard that is forgotten is renewed for ever though it has a `max_hold`.
#[tokio::test(start_paused = true)]
#[allow(clippy::mem_forget)] // it is what is tried
async fn forgotten_guard_is_renewed_until_its_max_hold() {
    let store = GatedStore::new(MemoryStore::new());
    let options = LockOptions::new().with_ttl(TTL);
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let other = LockClient::builder(store.get_ref().clone()).build().unwrap();
    let most = TTL * 10;
    let guard = client.mutex("bounded").with_max_hold(most).lock().await.unwrap();
    let (lease, start) = (guard.lease(), tokio::time::Instant::now());
    std::mem::forget(guard);
    tokio::time::sleep(most.saturating_sub(Duration::from_millis(1))).await;
    assert!(lease.is_valid() && store.renewals() > 10, "{}", store.renewals());
    let renewals = store.renewals();
    assert_eq!(lease.lost().await, LostReason::MaxHold);
    assert_eq!(start.elapsed(), most);

    // Other processes and this one get the key when the ttl of the last renewal has passed.
    let next = other.mutex("bounded").with_wait(TTL * 2).lock().await.unwrap();
    assert!(start.elapsed() <= most + TTL, "{:?}", start.elapsed());
    assert!(next.fencing_token() > lease.fencing_token());
    assert_eq!(next.release().await.unwrap(), Released::InTime);
    client.mutex("bounded").without_wait().lock().await.unwrap().release().await.unwrap();
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(store.renewals(), renewals, "not renewed any more");
    assert!(store.get_ref().is_empty());

    // Without `max_hold` the lease ends with the process or the client.
    std::mem::forget(client.mutex("unbounded").lock().await.unwrap());
    tokio::time::sleep(TTL * 100).await;
    assert!(other.mutex("unbounded").try_lock().await.unwrap().is_none());
    let drained = client.drain(TTL).await;
    assert_eq!((drained.held, drained.pending), (2, 0), "neither guard was dropped");
    tokio::time::sleep(TTL).await;
    assert!(store.get_ref().is_empty());
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_key_after_an_early_release() {
    let store = MemoryStore::new();
    let (one, two) = (client(&store), client(&store));
    let start = tokio::time::Instant::now();
    let guard = one.mutex("job").with_min_hold(TTL * 3).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(one.mutex("job").try_lock().await.unwrap().is_none());
    assert!(two.mutex("job").try_lock().await.unwrap().is_none());
    drop(two.mutex("job").with_wait(TTL * 4).lock().await.unwrap());
    assert!(start.elapsed() >= TTL * 3);
}

#[tokio::test(start_paused = true)]
async fn extension_outlasts_the_ttl_and_renewals_do_not_shorten_it() {
    let store = MemoryStore::new();
    let client = client(&store);
    let guard = client.mutex("k").lock().await.unwrap();
    guard.extend(TTL * 10).await.unwrap();
    assert!(guard.remaining() > TTL * 9);
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.remaining() > TTL * 7);
    let error = guard.extend(Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn dropped_guard_frees_the_key_for_this_process_at_once() {
    let client = client(&MemoryStore::new());
    for _ in 0..100 {
        drop(client.mutex("k").lock().await.unwrap());
        drop(client.mutex("k").try_lock().await.unwrap().expect("given back a moment ago"));
    }
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
}

/// Bodies side by side run at once, or a nested call waits for its own parent.
#[tokio::test(start_paused = true)]
async fn siblings_under_one_lease_take_turns_and_nested_calls_do_not_wait() {
    let client = client(&MemoryStore::new());
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let nested = async || {
        let mutex = client.mutex("k");
        mutex
            .run(async |lease| {
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                // Nested in the holder's own body.
                let deeper = mutex.run(async |inner| inner.fencing_token()).await.unwrap();
                assert_eq!(deeper, lease.fencing_token());
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
            .unwrap();
    };
    client
        .mutex("k")
        .run(async |lease| {
            assert_locked("k");
            assert_eq!(current().unwrap().fencing_token(), lease.fencing_token());
            tokio::join!(nested(), nested(), nested());
            let raw = client.mutex("k").lock().await.unwrap_err();
            assert_eq!(raw.kind(), ErrorKind::WouldDeadlock);
            assert!(client.mutex("k").try_lock().await.unwrap().is_none());
            client.mutex("other").run(async |_| assert_locked("k")).await.unwrap();
        })
        .await
        .unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert!(current().is_none());
}

#[tokio::test(start_paused = true)]
async fn spawned_task_does_not_inherit_the_lock() {
    let client = client(&MemoryStore::new());
    let runtime = tokio::runtime::Handle::current();
    client
        .mutex("k")
        .run(async |_| {
            runtime.spawn(async { assert!(current().is_none()) }).await.unwrap();
            let other = client.mutex("k").without_wait();
            let error = runtime.spawn(other.lock()).await.unwrap().unwrap_err();
            assert!(error.is_busy());
        })
        .await
        .unwrap();
}

#[tokio::test]
#[should_panic(expected = "needs a lock that its task does not hold")]
async fn assert_locked_panics_without_the_lock() {
    assert_locked("k");
}

/// The store does not reply, and waiters behind the claim return "busy".
#[tokio::test(start_paused = true)]
async fn waiters_behind_an_unanswered_claim_do_not_return_busy() {
    let store = GatedStore::new(MemoryStore::new());
    let client = LockClient::builder(store.clone()).build().unwrap();
    let runtime = tokio::runtime::Handle::current();
    store.set(|gates| gates.acquire = Gate::Never);
    let wait = Duration::from_millis(200);
    let waiters: Vec<_> =
        (0..5).map(|_| runtime.spawn(client.mutex("k").with_wait(wait).lock())).collect();
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(error.is_store_failure() && !error.is_busy(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn drain_rejects_new_claims_lets_holders_finish_and_ends_the_rest() {
    let store = MemoryStore::new();
    let (one, two) = (client(&store), client(&store));
    let runtime = tokio::runtime::Handle::current();
    let (quick, endless) = (one.mutex("quick"), one.mutex("endless"));
    let quick = runtime.spawn(async move {
        quick.run(async |_| tokio::time::sleep(Duration::from_secs(1)).await).await
    });
    let endless = runtime
        .spawn(async move { endless.run(async |_| std::future::pending::<()>().await).await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let waiter = runtime.spawn(one.mutex("quick").lock());
    tokio::time::sleep(Duration::from_millis(10)).await;

    let drained = one.drain(Duration::from_secs(10)).await;
    assert!(drained.is_clean(), "{drained:?}");
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Draining);
    assert_eq!(one.mutex("new").lock().await.unwrap_err().kind(), ErrorKind::Draining);
    quick.await.unwrap().unwrap();
    assert_eq!(lost(&endless.await.unwrap().unwrap_err()), LostReason::Draining);
    for key in ["quick", "endless"] {
        two.mutex(key).try_lock().await.unwrap().expect("released").release().await.unwrap();
    }
}

/// A call or a drop outside a runtime panics.
#[test]
fn lock_outside_a_runtime_is_an_error_and_a_guard_drops_anywhere() {
    let client = client(&MemoryStore::new());
    let outside = futures_util::FutureExt::now_or_never(client.mutex("k").lock());
    assert_eq!(outside.unwrap().unwrap_err().kind(), ErrorKind::NoRuntime);
    assert_eq!(client.mutex("k").blocking_lock().unwrap_err().kind(), ErrorKind::NoRuntime);

    // Two runtimes, one after the other, as in two tests that share a client.
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let guard = first.block_on(client.mutex("k").lock()).unwrap();
    drop(first);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let second = runtime();
    second.block_on(async {
        let guard = client.mutex("k").lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    });
    let guard = client.mutex("k").blocking_lock().unwrap();
    assert_eq!(guard.blocking_release().unwrap(), Released::InTime);
}

/// `blocking_lock` hangs because no thread drives the runtime of the client's tasks.
#[test]
fn blocking_lock_ends_after_its_wait_on_an_idle_runtime() {
    let client = client(&MemoryStore::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(client.mutex("k").lock()).unwrap();
    let start = lock_core::time::Instant::now();
    let wait = Duration::from_millis(100);
    let error = client.mutex("k").with_wait(wait).blocking_lock().unwrap_err();
    assert!(error.is_busy(), "{error}");
    assert!(lock_core::time::Instant::now().saturating_since(start) < Duration::from_secs(5));
    drop(runtime);
    let error = client.mutex("k").with_wait(wait).blocking_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
    drop(guard);
}

#[test]
fn futures_that_wait_for_a_lease_do_not_panic_outside_a_runtime() {
    use futures_util::FutureExt;
    let client = client(&MemoryStore::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(client.mutex("k").lock()).unwrap();
    assert!(guard.lost().now_or_never().is_none());
    assert!(guard.run_until_lost(std::future::pending::<()>()).now_or_never().is_none());
    assert_eq!(guard.run_until_lost(async { 7 }).now_or_never().unwrap().unwrap(), 7);
    assert_eq!(client.drain(TTL).now_or_never().unwrap().held, 1);
}

/// A lease is granted that no task renews.
#[test]
fn client_with_a_runtime_that_ended_grants_no_lease() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let gone = runtime();
    let handle = gone.handle().clone();
    drop(gone);
    let client = LockClient::builder(MemoryStore::new()).with_runtime(handle).build().unwrap();
    let error = runtime().block_on(client.mutex("k").lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
    assert!(ClientStats::of(&client).is_idle());
}

/// Nested calls of two bodies under one guard run at once.
#[tokio::test(start_paused = true)]
async fn bodies_of_one_guard_take_turns() {
    let client = client(&MemoryStore::new());
    let guard = client.mutex("k").lock().await.unwrap();
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let nested = async || {
        client
            .mutex("k")
            .run(async |_| {
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
            .unwrap();
    };
    let (one, two) = tokio::join!(guard.run_until_lost(nested()), guard.run_until_lost(nested()));
    one.unwrap();
    two.unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// A watcher sleeps on after the end, or dropped watchers use up memory.
#[tokio::test(start_paused = true)]
async fn every_watcher_is_woken_and_dropped_ones_are_forgotten() {
    let client = client(&MemoryStore::new());
    let guard = client.mutex("k").without_renewal().lock().await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let watchers: Vec<_> = (0..50)
        .map(|_| {
            let lease = guard.lease();
            runtime.spawn(async move { lease.lost().await })
        })
        .collect();
    for _ in 0..1_000 {
        let lease = guard.lease();
        let passer_by = runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = lease.lost() => panic!("not yet"),
                () = tokio::task::yield_now() => {}
            }
        });
        passer_by.await.unwrap();
    }
    assert_eq!(lock_core::testing::watchers(&guard), 50);
    drop(guard);
    for watcher in watchers {
        assert_eq!(watcher.await.unwrap(), LostReason::Released);
    }
}

/// The renewer retries without a pause.
#[tokio::test(start_paused = true)]
async fn short_max_hold_and_outage_do_not_busy_loop() {
    // On a paused clock a task that never sleeps never ends.
    let store = GatedStore::new(MemoryStore::new());
    let options = LockOptions::new().with_ttl(TTL);
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let mutex = client.mutex("k").with_max_hold(Duration::from_millis(15));
    let other = client.mutex("other").lock().await.unwrap();
    let error = mutex.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert_eq!(lost(&error), LostReason::MaxHold);

    store.set(|gates| gates.renew = Gate::Refused);
    let before = store.renewals();
    assert_eq!(other.lost().await, LostReason::Expired);
    let tries = store.renewals() - before;
    assert!((5..100).contains(&tries), "{tries} renewals in one lease");
}

/// A renewal that hangs keeps the waiters of this process waiting past the deadline.
#[tokio::test(start_paused = true)]
async fn unanswered_renewal_ends_the_lease_and_lets_the_next_waiter_claim() {
    let store = GatedStore::new(MemoryStore::new());
    let client = LockClient::builder(store.clone()).build().unwrap();
    let guard = client.mutex("k").with_ttl(TTL).lock().await.unwrap();
    store.set(|gates| gates.renew = Gate::Never);
    let start = tokio::time::Instant::now();
    let next = client.mutex("k").with_wait(TTL * 10).lock().await.unwrap();
    assert!(start.elapsed() < TTL * 2, "{:?}", start.elapsed());
    assert!(!guard.is_valid() && next.is_valid());
}

/// The repeated release reports `InTime` because the refused one might have freed the lock.
#[tokio::test(start_paused = true)]
async fn refused_release_does_not_count_as_one_that_freed_the_lock() {
    let store = GatedStore::new(MemoryStore::new());
    let client = LockClient::builder(store.clone()).build().unwrap();
    let other = LockClient::builder(store.get_ref().clone()).build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    store.get_ref().flush();
    let thief = other.mutex("k").lock().await.unwrap();
    store.set(|gates| gates.release = Gate::Slow(Duration::from_millis(50)));
    store.refuse_once();
    let start = tokio::time::Instant::now();
    assert_eq!(guard.release().await.unwrap(), Released::TakenByOther);
    assert_eq!(start.elapsed(), Duration::from_millis(50), "once refused, once sent");
    assert!(thief.is_valid());
}

#[tokio::test(start_paused = true)]
async fn nested_call_without_wait_does_not_wait_for_its_sibling() {
    let client = client(&MemoryStore::new());
    let mutex = client.mutex("k");
    mutex
        .run(async |_| {
            let long = mutex.run(async |_| tokio::time::sleep(Duration::from_millis(300)).await);
            let start = tokio::time::Instant::now();
            let quick = async {
                let error = client.mutex("k").without_wait().run(async |_| ()).await.unwrap_err();
                assert!(error.is_busy());
                assert_eq!(start.elapsed(), Duration::ZERO);
            };
            let (done, ()) = tokio::join!(long, quick);
            done.unwrap();
        })
        .await
        .unwrap();
}
