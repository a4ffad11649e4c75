//! Runtimes that come and go, threads without one, panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::FutureExt;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions, MutexGuard, Released};
use lock_testkit::{Experiment, Proxy, RedisServer, client, client_with, eventually, ms};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A guard is dropped on a thread without a runtime.
#[tokio::test]
async fn a_guard_dropped_on_a_plain_thread_is_released() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(server.has("lock:k"));
    std::thread::spawn(move || drop(guard)).join().unwrap();
    eventually("it is free", ms(5_000), || !server.has("lock:k")).await;
    wait_idle(&client).await;
}

/// Futures that are polled outside a runtime, and a plain thread that blocks on one.
#[test]
fn calls_outside_a_runtime_fail_without_a_panic() {
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = runtime.block_on(client(&server.url()));
    let kind = |guard: Result<MutexGuard, lock_core::Error>| guard.unwrap_err().kind();
    assert_eq!(kind(client.mutex("k").lock().now_or_never().unwrap()), ErrorKind::NoRuntime);
    let run = client.mutex("k").run(async |_| ()).now_or_never().unwrap();
    assert_eq!(run.unwrap_err().kind(), ErrorKind::NoRuntime);
    assert_eq!(kind(client.mutex("k").blocking_lock()), ErrorKind::NoRuntime);

    let guard = runtime.block_on(client.mutex("k").lock()).unwrap();
    assert!(guard.is_valid());
    let extended = guard.extend(ms(20_000)).now_or_never().unwrap();
    assert_eq!(extended.unwrap_err().kind(), ErrorKind::NoRuntime);
    let released = guard.release().now_or_never().unwrap();
    assert_eq!(released.unwrap_err().kind(), ErrorKind::NoRuntime);
    // The release is not lost. The client's tasks send it.
    runtime.block_on(eventually("it is free", ms(5_000), || !server.has("lock:k")));

    let guard = client.mutex("k").blocking_lock().unwrap();
    assert!(server.has("lock:k"));
    assert_eq!(guard.blocking_release().unwrap(), Released::InTime);
}

/// A plain thread finds no connection and opens one. The connection serves all callers after the
/// thread has ended.
#[test]
fn a_connection_opened_by_a_blocking_call_outlives_it() {
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (proxy, client) = runtime.block_on(async {
        let proxy = Proxy::to(&server);
        let client = client(&proxy.url()).await;
        drop(client.mutex("other").lock().await.unwrap());
        wait_idle(&client).await;
        (proxy, client)
    });
    for round in 1..=3 {
        let before = proxy.connections();
        let killed: i64 = server.cli("CLIENT KILL TYPE normal");
        assert!(killed >= 1, "round {round}");
        let guard = client.mutex("k").with_wait(ms(5_000)).blocking_lock().unwrap();
        assert!(proxy.connections() > before, "round {round}: it had to make one");
        let made = proxy.connections();
        runtime.block_on(async { drop(client.mutex("other").lock().await.unwrap()) });
        assert_eq!(guard.blocking_release().unwrap(), Released::InTime);
        runtime.block_on(wait_idle(&client));
        assert_eq!(proxy.connections(), made, "round {round}: it was lost");
    }
}

/// Two runtimes use a client, one after the other. The second one completes what the first one left
/// undone.
#[test]
fn a_client_outlives_its_runtime() {
    let server = RedisServer::start();
    let first = runtime();
    let client = first.block_on(client_with(&server.url(), LockOptions::new().with_ttl(ms(2_000))));
    let long = client.mutex("dropped").with_ttl(ms(60_000));
    let dropped = first.block_on(long.lock()).unwrap();
    let kept = first.block_on(client.mutex("kept").lock()).unwrap();
    drop(first);
    drop(dropped);
    assert!(server.has("lock:dropped"), "no task runs that could release it");

    let second = runtime();
    second.block_on(async {
        let start = Instant::now();
        let other = client.mutex("other").lock().await.unwrap();
        eventually("the releaser works", ms(5_000), || !server.has("lock:dropped")).await;
        let renewed = || start.elapsed() > ms(2_200);
        eventually("the renewer works", ms(5_000), renewed).await;
        assert!(kept.is_valid() && other.is_valid());
        assert_eq!(kept.release().await.unwrap(), Released::InTime);
        assert_eq!(other.release().await.unwrap(), Released::InTime);
        assert!(ClientStats::of(&client).is_idle());
    });
}

/// A guard, a waiter and a claim are dropped because their runtime shuts down.
#[test]
fn guards_dropped_by_a_runtime_shutdown_cause_no_panic() {
    let mut experiment = Experiment::new(
        41,
        "no panic, free by the ttl",
        "runtime shut down under guards",
        &["guards dropped"],
    );
    let server = RedisServer::start();
    for threads in [1, 2] {
        let first =
            Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
        let client =
            first.block_on(client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))));
        let guards = Arc::new(AtomicUsize::new(0));
        let dropped = first.block_on(async {
            let (sign, mut dropped) = tokio::sync::mpsc::unbounded_channel();
            for key in 0..8 {
                let (mutex, sign) = (client.mutex(format!("k{}", key / 2)), sign.clone());
                let guards = Arc::clone(&guards);
                tokio::spawn(async move {
                    let guard = mutex.wait_forever().lock().await.unwrap();
                    let _sign = Sign(sign.clone(), Some(guard));
                    guards.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                });
            }
            let held = || guards.load(Ordering::Relaxed) == 4;
            eventually("four are held", ms(5_000), held).await;
            dropped.try_recv().unwrap_err();
            dropped
        });
        let mut dropped = dropped;
        drop(first);
        experiment.ran(1);
        for _ in 0..4 {
            dropped.try_recv().expect("each guard was dropped, and its drop returned");
            experiment.saw("guards dropped", 1);
        }
        runtime().block_on(async {
            client.mutex("wake").lock().await.unwrap().release().await.unwrap();
            let free = || server.cli::<Vec<String>>("KEYS lock:k*").is_empty();
            eventually("all are free", ms(5_000), free).await;
            wait_idle(&client).await;
            assert!(ClientStats::of(&client).is_idle());
        });
    }
    experiment.finish();
}

/// Sends a signal when the drop of its guard has returned.
struct Sign(tokio::sync::mpsc::UnboundedSender<()>, Option<MutexGuard>);

impl Drop for Sign {
    fn drop(&mut self) {
        drop(self.1.take());
        self.0.send(()).unwrap();
    }
}

/// The last handle is dropped, and the client still releases its locks.
#[tokio::test]
async fn a_dropped_client_still_sends_its_releases() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let guard = client.mutex("k").lock().await.unwrap();
    drop(client);
    assert!(guard.is_valid());
    drop(guard);
    eventually("it is free", ms(5_000), || !server.has("lock:k")).await;
    let connections = || {
        let list: String = server.cli("CLIENT LIST TYPE normal");
        list.lines().count()
    };
    eventually("its connection is closed", ms(5_000), || connections() == 1).await;
}

#[tokio::test]
async fn the_lock_of_a_panicking_body_is_released() {
    let mut experiment =
        Experiment::new(41, "the lock is free at once", "panic in the body", &["panics"]);
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let mutex = client.mutex("k");
    let task = tokio::spawn(async move {
        mutex.run(async |_| panic!("on purpose")).await.unwrap();
    });
    let panicked = task.await.unwrap_err().is_panic();
    assert!(panicked);
    eventually("it is free", ms(5_000), || !server.has("lock:k")).await;

    // A panic does not poison what later bodies need either.
    let outcome: Result<i32, _> = client.mutex("k").run(async |_| 1).await;
    assert_eq!(outcome.unwrap(), 1);
    assert!(ClientStats::of(&client).is_idle());
    experiment.ran(1);
    experiment.saw("panics", usize::from(panicked));
    experiment.finish();
}

/// Two clients on two runtimes at the same time, each with its own tasks.
#[test]
fn clients_on_two_runtimes_exclude_each_other() {
    let server = RedisServer::start();
    let url = server.url();
    let work = move || {
        runtime().block_on(async {
            let client: LockClient = client(&url).await;
            for _ in 0..30 {
                let guard = client.mutex("k").with_wait(ms(30_000)).lock().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    };
    let threads = [std::thread::spawn(work.clone()), std::thread::spawn(work)];
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(!server.has("lock:k"));
}
