//! What a client tells of its own locks, and of which acquisition an owner is.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::testing::{Gate, GatedStore};
use lock_core::{Activity, ErrorKind, Key, LockClient, LockOptions, LostReason};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(3);

fn client(store: impl lock_core::store::Store) -> LockClient {
    let options = LockOptions::new().with_ttl(TTL);
    LockClient::builder(store).with_defaults(options).build().unwrap()
}

fn order(user: &str) -> Key {
    Key::new(format!("order:{user}")).unwrap().with_label("order:<user>")
}

fn waiting(activity: &Activity) -> Vec<(&str, &str, usize)> {
    let rows = activity.waiting.iter();
    rows.map(|row| (row.key.as_str(), row.key.label(), row.tasks)).collect()
}

#[tokio::test(start_paused = true)]
async fn held_locks_and_waiting_tasks_are_listed_while_they_last() {
    let store = MemoryStore::new();
    let (here, there) = (client(store.clone()), client(store));
    assert!(here.activity().held.is_empty() && waiting(&here.activity()).is_empty());

    let guard = here.mutex(order("7")).lock().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let second = here.mutex(order("8")).lock().await.unwrap();
    let elsewhere = there.mutex(order("9")).lock().await.unwrap();
    // Two tasks wait for a lock of this process, and one for a lock of another.
    let mut tasks = Vec::new();
    for user in ["7", "7", "9"] {
        tasks.push(tokio::spawn(here.mutex(order(user)).wait_forever().lock()));
        yield_now().await;
    }

    let activity = here.activity();
    let held: Vec<_> = activity.held.iter().map(|lock| lock.key.as_str()).collect();
    assert_eq!(held, ["order:7", "order:8"], "the longest first");
    assert_eq!(activity.held[0].fencing_token, guard.fencing_token());
    assert_eq!(activity.held[0].held_for, Duration::from_millis(500));
    assert_eq!(activity.held[1].remaining, second.remaining());
    assert!(activity.held.iter().all(|lock| !lock.is_in_doubt));
    let label = "order:<user>";
    assert_eq!(waiting(&activity), [("order:7", label, 2), ("order:9", label, 1)]);
    assert!(!format!("{activity:?}").contains("order:7"), "{activity:?}");

    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(waiting(&here.activity()), []);
    drop((guard, second, elsewhere));
    assert!(here.activity().held.is_empty() && here.activity().losses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn losses_are_kept_with_their_reasons_the_latest_first() {
    let store = GatedStore::new(MemoryStore::new());
    let here = client(store.clone());
    let short = here.mutex(order("1")).with_max_hold(Duration::from_millis(200));
    let short = short.lock().await.unwrap();
    assert_eq!(short.lost().await, LostReason::MaxHold);

    let silent = here.mutex(order("2")).lock().await.unwrap();
    store.set(|gates| gates.renew = Gate::Never);
    sleep(TTL / 2).await;
    // The renewal was sent and has no reply; its time is not over yet.
    store.set(|gates| gates.renew = Gate::Refused);
    let in_doubt = async {
        while !here.activity().held.iter().any(|lock| lock.is_in_doubt) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TTL, in_doubt).await.unwrap();
    assert_eq!(silent.lost().await, LostReason::Expired);

    let activity = here.activity();
    let losses: Vec<_> =
        activity.losses.iter().map(|loss| (loss.key.as_str(), loss.reason)).collect();
    assert_eq!(losses, [("order:2", LostReason::Expired), ("order:1", LostReason::MaxHold)]);
    assert_eq!(activity.losses[1].held_for, Duration::from_millis(200));
    assert_eq!(activity.losses[0].fencing_token, silent.fencing_token());
    assert!(activity.held.is_empty(), "a lost lease is not held");
}

#[tokio::test(start_paused = true)]
async fn a_draining_client_says_so_and_tells_what_it_still_holds() {
    let here = client(MemoryStore::new());
    let guard = here.mutex(order("7")).lock().await.unwrap();
    let drain = tokio::spawn(here.drain(Duration::from_secs(10)));
    here.draining().await;
    let activity = here.activity();
    assert!(activity.is_draining && activity.held.len() == 1);
    let refused = here.mutex("k").lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Draining);
    assert_eq!(guard.lost().await, LostReason::Draining);
    assert!(!drain.await.unwrap().is_clean());
    assert_eq!(here.activity().losses[0].reason, LostReason::Draining);
}

/// A page that shows an owner must not take the lock from the next one.
#[tokio::test(start_paused = true)]
async fn fingerprint_is_of_one_acquisition_and_the_same_for_every_client() {
    let store = MemoryStore::new();
    let (here, there) = (client(store.clone()), client(store));
    let seen_by = async |client: &LockClient| {
        client.inspect("k").await.unwrap().owner.map(|owner| owner.fingerprint())
    };
    let guard = here.mutex("k").lock().await.unwrap();
    let first = seen_by(&here).await;
    assert!(first.is_some());
    assert_eq!(seen_by(&there).await, first);
    sleep(TTL).await;
    assert_eq!(seen_by(&there).await, first, "a renewal changes nothing");
    guard.release().await.unwrap();
    let guard = here.mutex("k").lock().await.unwrap();
    assert_ne!(seen_by(&there).await, first);
    guard.release().await.unwrap();

    let kept = here.mutex("k").with_min_hold(TTL).lock().await.unwrap();
    let held = seen_by(&there).await;
    kept.release().await.unwrap();
    let released = seen_by(&there).await;
    assert!(released.is_some() && released != held);
}
