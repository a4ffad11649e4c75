//! Everything that the caller passed is dropped before the lock is released.
//!
//! Otherwise a transaction could end after the release, which is what the lock should prevent.

use std::sync::{Arc, Mutex};

use lock_core::store::MemoryStore;
use lock_core::{Error, KeyPart, KeyWriter, distributed_lock};

use crate::support::store_and_client;

/// Records on drop whether the lock is held.
#[derive(Debug)]
struct Probe {
    name: &'static str,
    store: MemoryStore,
    log: Log,
}

type Log = Arc<Mutex<Vec<(&'static str, bool)>>>;

impl Drop for Probe {
    fn drop(&mut self) {
        self.log.lock().unwrap().push((self.name, !self.store.is_empty()));
    }
}

impl KeyPart for Probe {
    fn write(&self, out: &mut KeyWriter) -> Result<(), Error> {
        self.name.write(out)
    }
}

#[derive(Debug)]
struct Pair {
    one: Probe,
    two: Probe,
}

#[distributed_lock(key = "<in_key>")]
#[allow(unused_variables, clippy::too_many_arguments)]
async fn all_kinds(
    used: Probe,
    in_key: Probe,
    _: Probe,
    _named: Probe,
    unused: Probe,
    (first, _): (Probe, Probe),
    Pair { one, .. }: Pair,
    [head, .., tail]: [Probe; 3],
    ref by_ref: Probe,
    mut reassigned: Option<Probe>,
) -> Result<(), Error> {
    drop(used);
    tokio::task::yield_now().await;
    drop(first);
    drop(reassigned.take());
    Ok(())
}

/// getlago/lago-api#3413 and similar (U17): an argument outlives the lock.
#[tokio::test]
async fn arguments_are_dropped_before_the_release() {
    let (store, client) = store_and_client();
    let log = Log::default();
    let probe = |name| Probe { name, store: store.clone(), log: Arc::clone(&log) };
    let call = all_kinds(
        probe("used"),
        probe("in_key"),
        probe("_"),
        probe("_named"),
        probe("unused"),
        (probe("first"), probe("left out of a tuple")),
        Pair { one: probe("one"), two: probe("left out of a struct") },
        [probe("head"), probe("left out of a slice"), probe("tail")],
        probe("by_ref"),
        Some(probe("reassigned")),
    );
    client.scope(call).await.unwrap();
    assert!(store.is_empty());
    let dropped = log.lock().unwrap();
    assert_eq!(dropped.len(), 14, "{dropped:?}");
    for (name, held) in &*dropped {
        assert!(held, "`{name}` was dropped after the release: {dropped:?}");
    }
    // In the same order as without the attribute.
    assert_eq!(
        dropped[..3].iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["used", "first", "reassigned"]
    );
}

impl Pair {
    #[distributed_lock(key = "<self.one>")]
    async fn unmentioned_self(self) -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "<self.one>")]
    async fn boxed_self(self: Box<Self>) -> Result<(), Error> {
        drop(self.two);
        Ok(())
    }
}

#[tokio::test]
async fn self_is_dropped_before_the_release() {
    let (store, client) = store_and_client();
    let log = Log::default();
    let probe = |name| Probe { name, store: store.clone(), log: Arc::clone(&log) };
    let pair = || Pair { one: probe("one"), two: probe("two") };
    client.scope(pair().unmentioned_self()).await.unwrap();
    client.scope(Box::new(pair()).boxed_self()).await.unwrap();
    let dropped = log.lock().unwrap();
    assert_eq!(dropped.len(), 4);
    assert!(dropped.iter().all(|(_, held)| *held), "{dropped:?}");
}

#[async_trait::async_trait]
trait Boxed {
    async fn boxed(&self, one: Probe, _: Probe, _named: Probe) -> Result<(), Error>;
}

struct Service;

#[async_trait::async_trait]
impl Boxed for Service {
    #[distributed_lock(key = "a:<one>")]
    #[allow(unused_variables)]
    async fn boxed(&self, one: Probe, _: Probe, _named: Probe) -> Result<(), Error> {
        Ok(())
    }
}

#[tokio::test]
async fn async_trait_arguments_are_dropped_before_the_release() {
    let (store, client) = store_and_client();
    let log = Log::default();
    let probe = |name| Probe { name, store: store.clone(), log: Arc::clone(&log) };
    client.scope(Service.boxed(probe("one"), probe("_"), probe("_named"))).await.unwrap();
    let dropped = log.lock().unwrap();
    assert_eq!(dropped.len(), 3);
    assert!(dropped.iter().all(|(_, held)| *held), "{dropped:?}");
}

#[distributed_lock(key = "a", ttl = "1s", on_error = |_| log.lock().unwrap().push(("on_error", false)))]
async fn lost(log: &Log, probe: Probe, _: Probe) {
    let _probe = probe;
    std::future::pending::<()>().await;
}

/// The fault: the caller learns of the loss while the body still holds its resources.
#[tokio::test(start_paused = true)]
async fn lost_body_is_dropped_before_on_error_runs() {
    let (store, client) = store_and_client();
    let log = Log::default();
    let probe = |name| Probe { name, store: store.clone(), log: Arc::clone(&log) };
    let steal = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        store.flush();
    };
    tokio::join!(client.scope(lost(&log, probe("local"), probe("_"))), steal);
    let names: Vec<_> = log.lock().unwrap().iter().map(|(name, _)| *name).collect();
    assert_eq!(names[..2], ["local", "on_error"]);
}
