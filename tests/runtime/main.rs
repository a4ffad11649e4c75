//! Runtimes that were built without timers or I/O. A program of its own, since it counts the panics
//! that are reported in it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::panic::{set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lock_core::store::{MemoryStore, RedisStore, RedisStoreBuilder};
use lock_core::testing::wait_idle;
use lock_core::{Error, ErrorKind, LockClient, LostReason, Released, distributed_lock};
use lock_testkit::{RedisServer, eventually, ms, within};
use lock_tower::LockLayer;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, ServiceExt, service_fn};

/// Panics that were reported in this process: in callers and in tasks.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics from now on. Called before the first use of a lock.
fn count_panics() {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            // The library tries what the runtime has, and catches this.
            let is_probe = panic.location().is_some_and(|at| at.file().ends_with("probe.rs"));
            if !is_probe {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            report(panic);
        }));
    });
}

fn assert_no_panic() {
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a caller or a task panicked");
}

fn without_timers() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

fn without_io() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn complete() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The error says which part of the runtime is missing, and what to do.
#[track_caller]
fn assert_names(what: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::NoRuntime, "{error}");
    let text = error.to_string();
    assert!(text.contains(what) && text.contains("`enable_all`"), "{text}");
}

#[distributed_lock(key = "macro", client = client)]
async fn locked(client: &LockClient) -> Result<(), Error> {
    panic!("its body runs without its lock")
}

/// Tries everything that takes, keeps, releases or looks at a lock; nothing of it may hang.
async fn assert_nothing_works(client: &LockClient, missing: &str) {
    let mutex = client.mutex("k").wait_forever();
    assert_names(missing, &mutex.lock().await.unwrap_err());
    assert_names(missing, &mutex.try_lock().await.unwrap_err());
    let run = mutex.run(async |_| panic!("its body runs without its lock")).await;
    let error: Result<(), Error> = run;
    assert_names(missing, &error.unwrap_err());
    assert_names(missing, &locked(client).await.unwrap_err());
    let layer = LockLayer::from_fn(client.clone(), |_: &http::request::Parts| Some("k"));
    let handler = async |_: http::Request<String>| -> Result<http::Response<String>, Error> {
        panic!("the handler runs without its lock")
    };
    let service = layer.layer(service_fn(handler));
    let response = service.oneshot(http::Request::new(String::new())).await.unwrap();
    assert_eq!(response.status(), 500);
    assert_names(missing, &client.inspect("k").await.unwrap_err());
    assert_names(missing, &client.health().await.unwrap_err());
    let blocking = tokio::task::spawn_blocking(move || mutex.blocking_lock());
    assert_names(missing, &blocking.await.unwrap().unwrap_err());
}

/// ntex-rs/ntex#93, tokio#2696: the first use of a client is in a runtime without timers.
#[test]
fn runtime_without_timers_is_named_at_once_wherever_a_lock_is_used() {
    count_panics();
    let server = RedisServer::start();
    let lazy = RedisStore::builder(server.url()).connect_lazy().unwrap();
    let clients = [LockClient::builder(MemoryStore::new()), LockClient::builder(lazy)];
    for client in clients.map(|builder| builder.build().unwrap()) {
        without_timers().block_on(async {
            let error = RedisStore::connect(server.url()).await.unwrap_err();
            assert_names("no timers", &error);
            assert_nothing_works(&client, "no timers").await;
            assert!(client.drain(ms(60_000)).await.is_clean());
        });
    }
    assert_no_panic();
}

/// A guard that was made elsewhere is used, and dropped, in a runtime without timers.
#[test]
fn guard_from_elsewhere_is_released_in_a_runtime_without_timers() {
    count_panics();
    let (server, elsewhere, here) = (RedisServer::start(), complete(), without_timers());
    let redis = elsewhere.block_on(RedisStore::connect(server.url())).unwrap();
    let clients = [LockClient::builder(MemoryStore::new()), LockClient::builder(redis)];
    for client in clients.map(|builder| builder.build().unwrap()) {
        let lock = |key: &'static str| elsewhere.block_on(client.mutex(key).lock()).unwrap();
        let (dropped, released, blocked) = (lock("dropped"), lock("released"), lock("blocked"));
        here.block_on(async {
            assert_nothing_works(&client, "no timers").await;
            assert!(dropped.is_valid());
            assert_names("no timers", &dropped.extend(ms(20_000)).await.unwrap_err());
            // Neither sets a timer. Both are woken by the end of the lease.
            assert!(dropped.run_until_lost(std::future::pending::<()>()).now_or_never().is_none());
            let lost = tokio::task::spawn({
                let lease = dropped.lease();
                async move { lease.lost().await }
            });
            tokio::task::yield_now().await;
            drop(dropped);
            assert_eq!(lost.await.unwrap(), LostReason::Released);
            assert_names("no timers", &released.release().await.unwrap_err());
            let blocking = tokio::task::spawn_blocking(move || blocked.blocking_release());
            assert_names("no timers", &blocking.await.unwrap().unwrap_err());
        });
        for key in ["dropped", "released", "blocked"] {
            // Long before its ttl.
            let again = client.mutex(key).with_wait(ms(5_000)).lock();
            let guard = elsewhere.block_on(again).unwrap();
            assert_eq!(elsewhere.block_on(guard.release()).unwrap(), Released::InTime);
        }
        elsewhere.block_on(wait_idle(&client));
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    assert_no_panic();
}

/// The tasks of a client are to run in a runtime without timers.
#[test]
fn given_runtime_that_is_not_complete_is_refused_by_name() {
    count_panics();
    let (server, no_timers, no_io) = (RedisServer::start(), without_timers(), without_io());
    let field = |error: lock_core::ConfigError| (error.field(), error.to_string());

    let client = LockClient::builder(MemoryStore::new());
    let (name, text) = field(client.with_runtime(no_timers.handle().clone()).build().unwrap_err());
    assert!(name == "runtime" && text.contains("no timers"), "{text}");
    for (runtime, missing) in [(&no_timers, "no timers"), (&no_io, "no I/O")] {
        let store = RedisStore::builder(server.url()).with_runtime(runtime.handle().clone());
        let (name, text) = field(RedisStoreBuilder::connect_lazy(store).unwrap_err());
        assert!(name == "runtime" && text.contains(missing), "{text}");
        assert!(text.contains("`enable_all`"), "{text}");
    }

    // What the store of a client needs is not known before it dials.
    let store = RedisStore::builder(server.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).with_runtime(no_io.handle().clone()).build().unwrap();
    let driven =
        std::thread::spawn(move || no_io.block_on(async { tokio::time::sleep(ms(2_000)).await }));
    complete().block_on(async {
        let (locked, took) =
            within("an answer", ms(5_000), client.mutex("k").wait_forever().lock()).await;
        assert_names("no I/O", &locked.unwrap_err());
        assert!(took < ms(500), "{took:?}");
    });
    driven.join().unwrap();
    assert_no_panic();
}

/// 50 panics in tasks, and 5 s until an answer.
#[test]
fn runtime_without_io_is_named_at_once_and_has_locks_in_memory() {
    count_panics();
    let server = RedisServer::start();
    let lazy = RedisStore::builder(server.url()).connect_lazy().unwrap();
    let client = LockClient::builder(lazy).build().unwrap();
    let start = Instant::now();
    without_io().block_on(async {
        assert_names("no I/O", &RedisStore::connect(server.url()).await.unwrap_err());
        assert_nothing_works(&client, "no I/O").await;
        let memory = LockClient::builder(MemoryStore::new()).build().unwrap();
        let guard = memory.mutex("k").lock().await.unwrap();
        let waiter = tokio::task::spawn(memory.mutex("k").lock());
        eventually("it waits", ms(5_000), || {
            lock_core::testing::ClientStats::of(&memory).held == 2
        })
        .await;
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // The server was not to blame: elsewhere it is dialled at once.
    complete().block_on(async {
        client.mutex("k").without_wait().lock().await.unwrap().release().await.unwrap();
    });
    assert_no_panic();
}
