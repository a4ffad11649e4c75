//! Whatever the store does and wherever a future is dropped, no lock is left behind.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use lock_core::store::MemoryStore;
use lock_core::testing::{ClientStats, Gate, GatedStore, wait_idle};
use lock_core::{LockClient, LockOptions};

const GATES: [Gate; 5] =
    [Gate::Open, Gate::Refused, Gate::Slow(Duration::from_millis(30)), Gate::Lost, Gate::Never];

fn client(store: &GatedStore<MemoryStore>) -> LockClient {
    let options = LockOptions::new()
        .with_ttl(Duration::from_millis(900))
        .with_wait(Duration::from_millis(100));
    LockClient::builder(store.clone()).with_defaults(options).build().unwrap()
}

/// Opens the gates, lets the releaser finish, and looks for leftovers.
async fn nothing_is_left(store: &GatedStore<MemoryStore>, client: &LockClient, case: &str) {
    store.set(|gates| *gates = lock_core::testing::Gates::default());
    tokio::time::timeout(Duration::from_secs(120), wait_idle(client)).await.unwrap_or_else(|_| {
        panic!("{case}: the releaser did not finish: {:?}", ClientStats::of(client))
    });
    assert!(ClientStats::of(client).is_idle(), "{case}: {:?}", ClientStats::of(client));
    let next = client.mutex("k").without_wait().lock().await;
    let guard = next.unwrap_or_else(|error| panic!("{case}: the key is not free: {error}"));
    guard.release().await.unwrap();
    assert!(store.get_ref().is_empty(), "{case}: a lock is left in the store");
}

/// What the acquisition waits behind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behind {
    None,
    Holder,
    /// A holder that releases between the last poll and the drop, so that the grant crosses the
    /// cancellation.
    Releaser,
}

/// A grant that crosses the drop leaves its lock in the store until the ttl is over.
#[tokio::test(start_paused = true)]
async fn acquisition_dropped_after_any_poll_leaves_nothing() {
    let (mut entered, mut dropped, mut crossed) = (0, 0, 0);
    for gate in GATES {
        for polls in 0..8 {
            for behind in [Behind::None, Behind::Holder, Behind::Releaser] {
                let case = format!("{gate:?}, dropped after {polls} polls, behind {behind:?}");
                let store = GatedStore::new(MemoryStore::new());
                let client = client(&store);
                let holder = LockClient::builder(store.get_ref().clone()).build().unwrap();
                let mut held = match behind {
                    Behind::None => None,
                    Behind::Holder | Behind::Releaser => {
                        Some(holder.mutex("k").lock().await.unwrap())
                    }
                };
                store.set(|gates| gates.acquire = gate);
                {
                    let mut lock = pin!(client.mutex("k").lock());
                    let mut is_done = false;
                    for _ in 0..polls {
                        is_done = poll!(lock.as_mut()).is_ready();
                        if is_done {
                            break;
                        }
                        tokio::time::advance(Duration::from_millis(10)).await;
                    }
                    if behind == Behind::Releaser
                        && let Some(held) = held.take()
                    {
                        held.release().await.unwrap();
                        // It is the turn of a claim that is not polled any more.
                        let taken = !store.get_ref().is_empty();
                        crossed += u32::from(taken && !is_done);
                    }
                    entered += u32::from(is_done);
                    dropped += u32::from(!is_done);
                }
                if let Some(held) = held {
                    held.release().await.unwrap();
                }
                // A claim behind `Gate::Never` never arrives, so nothing follows the drop.
                nothing_is_left(&store, &client, &case).await;
            }
        }
    }
    assert!(entered > 20 && dropped > 40, "{entered} entered, {dropped} dropped");
    assert!(crossed > 10, "{crossed} had the lock when they were dropped");
}

/// A failing store is reported as "busy", or a lock stays in the store.
#[tokio::test(start_paused = true)]
async fn every_mix_of_failures_gives_a_true_error_and_a_free_key() {
    let (mut held, mut denied) = (0, 0);
    for acquire in GATES {
        for renew in GATES {
            for release in GATES {
                let case = format!("acquire {acquire:?}, renew {renew:?}, release {release:?}");
                let store = GatedStore::new(MemoryStore::new());
                let client = client(&store);
                store.set(|gates| {
                    (gates.acquire, gates.renew, gates.release) = (acquire, renew, release);
                });
                let all = async {
                    match client.mutex("k").lock().await {
                        Ok(guard) => {
                            assert!(matches!(acquire, Gate::Open | Gate::Slow(_)), "{case}");
                            tokio::time::sleep(Duration::from_millis(600)).await;
                            assert!(guard.is_valid(), "{case}");
                            held += 1;
                            drop(guard.release().await);
                        }
                        Err(error) => {
                            assert!(
                                error.is_store_failure() && !error.is_busy(),
                                "{case}: {error}"
                            );
                            let asked = matches!(acquire, Gate::Lost | Gate::Never);
                            assert_eq!(error.is_unknown(), asked, "{case}: {error}");
                            denied += 1;
                        }
                    }
                };
                // A call behind `Gate::Never` ends when its caller drops it.
                let _ = tokio::time::timeout(Duration::from_secs(2), all).await;
                nothing_is_left(&store, &client, &case).await;
            }
        }
    }
    assert_eq!((held, denied), (2 * 25, 3 * 25), "the gates that deny were met");
}

/// A release whose future is dropped is never sent.
#[tokio::test(start_paused = true)]
async fn release_dropped_after_any_poll_continues_in_the_background() {
    let (mut done, mut dropped) = (0, 0);
    for gate in GATES {
        for polls in 0..4 {
            let case = format!("{gate:?}, dropped after {polls} polls");
            let store = GatedStore::new(MemoryStore::new());
            let client = client(&store);
            let guard = client.mutex("k").lock().await.unwrap();
            store.set(|gates| gates.release = gate);
            {
                let mut release = pin!(guard.release());
                let mut is_done = false;
                for _ in 0..polls {
                    is_done = poll!(release.as_mut()).is_ready();
                    if is_done {
                        break;
                    }
                    tokio::time::advance(Duration::from_millis(10)).await;
                }
                done += u32::from(is_done);
                dropped += u32::from(!is_done);
            }
            nothing_is_left(&store, &client, &case).await;
        }
    }
    assert!(done > 5 && dropped > 5, "{done} done, {dropped} dropped");
}

/// The lock is released while values of the body still exist.
#[tokio::test(start_paused = true)]
async fn dropped_body_is_gone_before_the_release() {
    struct Tell(std::sync::Arc<std::sync::Mutex<Vec<&'static str>>>, LockClient);
    impl Drop for Tell {
        fn drop(&mut self) {
            let held = ClientStats::of(&self.1).held;
            self.0.lock().unwrap().push(if held == 1 { "held" } else { "free" });
        }
    }
    let store = GatedStore::new(MemoryStore::new());
    let client = client(&store);
    let seen = std::sync::Arc::default();
    {
        let tell = Tell(std::sync::Arc::clone(&seen), client.clone());
        let mutex = client.mutex("k");
        let mut run = Box::pin(mutex.run(async move |_| {
            let _tell = tell;
            std::future::pending::<()>().await;
        }));
        while ClientStats::of(&client).held == 0 {
            assert!(poll!(run.as_mut()).is_pending());
        }
        assert!(poll!(run.as_mut()).is_pending());
    }
    assert_eq!(*seen.lock().unwrap(), ["held"]);
    nothing_is_left(&store, &client, "dropped in the body").await;
}
