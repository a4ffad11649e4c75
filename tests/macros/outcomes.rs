//! Whether the body runs, what the caller gets, and whether the lock is free afterwards.

use std::time::Duration;

use lock_core::testing::wait_idle;
use lock_core::{Error, ErrorKind, distributed_lock};
use tokio::time::Instant;

use crate::ending::{End, OrderError, ending};
use crate::support::{Counter, held_by_another, store_and_client};

#[distributed_lock(key = "order:<user_id>", wait = none)]
async fn at_once(user_id: u64, ran: &Counter) -> Result<u64, Error> {
    ran.count();
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id>", wait = "100ms")]
async fn patient(user_id: u64, ran: &Counter) -> Result<u64, OrderError> {
    ran.count();
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id>", wait = "100ms", on_busy = |_| Ok("busy"))]
async fn answering(user_id: u64, ran: &Counter) -> Result<&'static str, Error> {
    ran.count();
    let _ = user_id;
    Ok("done")
}

/// klock#1, wllock#1, alturkovic/distributed-lock#35 (U11); redis-py#621 (P6): the body runs
/// although the lock was not acquired.
#[tokio::test(start_paused = true)]
async fn body_does_not_run_without_the_lock() {
    let (client, guard) = held_by_another("order:7").await;
    let ran = Counter::default();
    client
        .scope(async {
            let start = Instant::now();
            assert!(at_once(7, &ran).await.unwrap_err().is_busy());
            assert_eq!(start.elapsed(), Duration::ZERO);
            match patient(7, &ran).await.unwrap_err() {
                OrderError::Lock(error) => assert!(error.is_busy()),
                other @ OrderError::SoldOut => panic!("{other:?}"),
            }
            assert!(start.elapsed() >= Duration::from_millis(100));
            assert_eq!(answering(7, &ran).await.unwrap(), "busy");
            assert_eq!(ran.get(), 0);

            // The counter works: with a free key the body runs.
            at_once(8, &ran).await.unwrap();
            assert_eq!(ran.get(), 1);
        })
        .await;
    guard.release().await.unwrap();
}

/// lock4j#28, klock#13 (U12): the lock is not released after an error or an early return.
#[tokio::test]
async fn lock_is_released_however_the_body_returns() {
    let (store, client) = store_and_client();
    for end in End::RETURNS {
        let result = client.scope(ending(7, end)).await;
        assert!(store.is_empty(), "{end:?}: still held when the call returns");
        end.check(result);
    }
}

/// lock4j#28 (U12), with unwinding. The release is not awaited then, but made in the background.
#[tokio::test]
async fn lock_is_released_when_the_body_panics() {
    let (store, client) = store_and_client();
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.scope(ending(7, End::Panic)).await }
    });
    assert!(task.await.unwrap_err().is_panic());
    wait_idle(&client).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn lock_is_released_when_the_call_is_dropped() {
    #[distributed_lock(key = "order:<user_id>")]
    async fn never(user_id: u64, started: tokio::sync::oneshot::Sender<u64>) -> Result<(), Error> {
        started.send(user_id).unwrap();
        std::future::pending().await
    }

    let (store, client) = store_and_client();
    let (started, starts) = tokio::sync::oneshot::channel();
    tokio::select! {
        _ = client.scope(never(7, started)) => panic!("the body never ends"),
        user_id = starts => assert_eq!(user_id, Ok(7)),
    }
    wait_idle(&client).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn outage_is_not_reported_as_busy() {
    #[distributed_lock(key = "nightly", wait = none, on_busy = |_| "busy", on_error = other)]
    async fn job() -> &'static str {
        "done"
    }

    #[allow(clippy::needless_pass_by_value)] // handlers take the error by value
    fn other(error: Error) -> &'static str {
        assert_eq!(error.kind(), ErrorKind::NoClient);
        "outage"
    }

    // No client is installed in this process.
    assert_eq!(job().await, "outage");
    let (client, guard) = held_by_another("nightly").await;
    assert_eq!(client.scope(job()).await, "busy");
    guard.release().await.unwrap();
    assert_eq!(client.scope(job()).await, "done");
}

#[tokio::test]
async fn on_error_without_on_busy_handles_busy() {
    #[distributed_lock(key = "nightly", wait = none, on_error = |error| error.is_busy())]
    async fn job() -> bool {
        panic!("the lock is taken")
    }

    let (client, guard) = held_by_another("nightly").await;
    assert!(client.scope(job()).await);
    drop(guard);
}

/// tracing#1863, alturkovic/distributed-lock#14 (U15): the lock covers only the creation of the
/// future.
#[tokio::test]
async fn lock_is_held_while_a_boxed_future_runs() {
    #[async_trait::async_trait]
    trait Orders {
        async fn order(&self, user_id: u64) -> Result<bool, Error>;
    }

    struct Service(lock_core::store::MemoryStore);

    #[async_trait::async_trait]
    impl Orders for Service {
        #[distributed_lock(key = "order:<user_id>")]
        async fn order(&self, user_id: u64) -> Result<bool, Error> {
            tokio::task::yield_now().await;
            assert_eq!(lock_core::current().unwrap().key().as_str(), format!("order:{user_id}"));
            Ok(self.0.is_empty())
        }
    }

    let (store, client) = store_and_client();
    let service: Box<dyn Orders> = Box::new(Service(store.clone()));
    let future = service.order(7);
    assert!(store.is_empty(), "locked before the first poll");
    assert!(!client.scope(future).await.unwrap(), "not locked in the body");
    assert!(store.is_empty(), "still locked");
}
