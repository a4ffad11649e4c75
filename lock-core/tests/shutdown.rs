//! A client that drains together with its server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::MemoryStore;
use lock_core::{ErrorKind, LockClient, Mutex};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(10);

fn client() -> LockClient {
    LockClient::builder(MemoryStore::new()).build().unwrap()
}

/// A mutex that another client holds for good, and that client's guard.
async fn taken() -> (LockClient, Mutex, impl Sized) {
    let store = MemoryStore::new();
    let [one, other] = [0, 1].map(|_| LockClient::builder(store.clone()).build().unwrap());
    let guard = other.mutex("k").lock().await.unwrap();
    let mutex = one.mutex("k").wait_forever();
    (one, mutex, guard)
}

/// A signal, and the future that it makes ready.
fn signal() -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
    let (sender, receiver) = oneshot::channel();
    (sender, async move { receiver.await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn waiters_are_refused_at_the_signal_though_the_server_still_serves() {
    let (client, mutex, _guard) = taken().await;
    let waiter = tokio::spawn(async move { (mutex.lock().await.map(drop), Instant::now()) });
    let (terminate, terminated) = signal();
    let shutdown = client.shutdown_on(terminated, LIMIT).unwrap();
    let started = shutdown.started();
    let server = async {
        started.await;
        sleep(LIMIT / 2).await;
        7
    };
    let start = Instant::now();
    let signal = async {
        sleep(LIMIT).await;
        terminate.send(()).unwrap();
    };
    let ((served, drained), ()) = tokio::join!(shutdown.finish(server), signal);
    assert_eq!((served, drained.is_clean()), (Some(7), true));
    assert_eq!(start.elapsed(), LIMIT + LIMIT / 2);
    let (refused, at) = waiter.await.unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Draining);
    assert_eq!(at - start, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn limit_cuts_off_a_server_and_the_bodies_before() {
    let client = client();
    let (terminate, terminated) = signal();
    let shutdown = client.shutdown_on(terminated, LIMIT).unwrap();
    let mutex = client.mutex("k");
    let body = tokio::spawn(async move { (mutex.run(|_| pending::<()>()).await, Instant::now()) });
    tokio::task::yield_now().await;
    let start = Instant::now();
    terminate.send(()).unwrap();
    let (served, drained) = shutdown.finish(pending::<()>()).await;
    assert_eq!((served, drained.is_clean(), start.elapsed()), (None, true, LIMIT));
    let (stopped, at) = body.await.unwrap();
    assert!(stopped.unwrap_err().is_lost());
    assert_eq!(at - start, LIMIT / 5 * 4);
}

#[tokio::test(start_paused = true)]
async fn body_learns_that_the_client_drains() {
    let client = client();
    let (terminate, terminated) = signal();
    let shutdown = client.shutdown_on(terminated, LIMIT).unwrap();
    let mutex = client.mutex("k");
    let body = tokio::spawn(async move {
        mutex
            .run(async |lease| {
                lease.draining().await;
                lease.is_valid()
            })
            .await
    });
    tokio::task::yield_now().await;
    terminate.send(()).unwrap();
    let start = Instant::now();
    assert!(shutdown.drained().await.is_clean());
    assert!(start.elapsed() < LIMIT / 10);
    assert!(body.await.unwrap().unwrap());
    client.draining().await;
}

#[tokio::test(start_paused = true)]
async fn server_that_ends_by_itself_drains_the_client() {
    let client = client();
    let shutdown = client.shutdown_on(pending(), LIMIT).unwrap();
    let (served, drained) = shutdown.finish(async { Err::<(), _>("the socket broke") }).await;
    assert_eq!((served, drained.is_clean()), (Some(Err("the socket broke")), true));
    assert_eq!(client.mutex("k").lock().await.unwrap_err().kind(), ErrorKind::Draining);
}

#[tokio::test(start_paused = true)]
async fn signal_that_panics_has_come() {
    let client = client();
    let shutdown = client.shutdown_on(async { panic!("on purpose") }, LIMIT).unwrap();
    let started = shutdown.started();
    let (served, drained) = shutdown.finish(started).await;
    assert_eq!((served, drained.is_clean()), (Some(()), true));
}

#[tokio::test(start_paused = true)]
async fn dropped_shutdown_still_drains_and_keeps_no_client_alive() {
    let client = client();
    let (terminate, terminated) = signal();
    drop(client.shutdown_on(terminated, LIMIT));
    terminate.send(()).unwrap();
    client.draining().await;

    let store = Arc::new(MemoryStore::new());
    let client = LockClient::builder(Arc::clone(&store)).build().unwrap();
    drop(client.shutdown_on(pending(), LIMIT));
    tokio::task::yield_now().await;
    drop(client);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[test]
fn shutdown_needs_a_runtime() {
    let error = client().shutdown_on(async {}, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
}
