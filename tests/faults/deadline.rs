//! No poll of a body starts at or after the deadline of its lease, even where the runtime wakes up
//! late.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::routing::post;
use axum::{Extension, Router};
use lock_core::{Error, Lease, LockClient, LockOptions, distributed_lock};
use lock_testkit::{Experiment, RedisServer, client_with, ms, within};
use lock_tower::LockLayer;
use tower::ServiceExt as _;

const TTL: Duration = Duration::from_millis(200);

/// How often a body was polled, how often too late, and how often its runtime slept past its
/// deadline.
#[derive(Clone, Debug, Default)]
struct Polls(Arc<[AtomicU32; 3]>);

impl Polls {
    /// A body that is always ready and never ends. Its first poll lets the runtime sleep past the
    /// deadline.
    async fn body(&self, lease: Lease) {
        let (watched, polls) = (lease.clone(), self.clone());
        tokio::spawn(async move {
            while watched.is_valid() {
                std::thread::sleep(ms(20));
            }
            polls.0[2].fetch_add(1, Ordering::Relaxed);
        });
        poll_fn(|context| {
            let late = usize::from(!lease.is_valid());
            self.0[late].fetch_add(1, Ordering::Relaxed);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        })
        .await;
    }

    fn check(&self, fault: &'static str) {
        let mut experiment = Experiment::new(
            43,
            "no poll starts after the deadline",
            fault,
            &["polls in time", "deadlines slept over"],
        );
        let [in_time, late, slept] = [0, 1, 2].map(|which| self.0[which].load(Ordering::Relaxed));
        assert!(in_time > 0, "the body never ran");
        assert_eq!(late, 0, "polls that started after the deadline");
        experiment.ran(1);
        experiment.saw("polls in time", in_time as usize);
        experiment.saw("deadlines slept over", slept as usize);
        experiment.finish();
    }
}

async fn fixed(server: &RedisServer) -> LockClient {
    client_with(&server.url(), LockOptions::new().with_ttl(TTL).without_renewal()).await
}

#[tokio::test]
async fn the_body_of_run_is_not_polled_after_its_deadline() {
    let server = RedisServer::start();
    let (client, polls) = (fixed(&server).await, Polls::default());
    let mutex = client.mutex("k");
    let (result, _) = within("the loss", ms(5_000), mutex.run(|l| polls.body(l))).await;
    assert!(result.unwrap_err().is_lost());
    polls.check("body that is never done: run");
}

#[tokio::test]
async fn a_future_under_run_until_lost_is_not_polled_after_the_deadline() {
    let server = RedisServer::start();
    let (client, polls) = (fixed(&server).await, Polls::default());
    let guard = client.mutex("k").lock().await.unwrap();
    let bound = guard.run_until_lost(polls.body(guard.lease()));
    let (result, _) = within("the loss", ms(5_000), bound).await;
    assert!(result.unwrap_err().is_lost());
    polls.check("body that is never done: guard.bind");
}

#[distributed_lock(key = "k", client = client, lease = lease)]
async fn cancelled(client: &LockClient, polls: &Polls) -> Result<(), Error> {
    polls.body(lease).await;
    Ok(())
}

#[tokio::test]
async fn a_locked_function_is_not_polled_after_its_deadline() {
    let server = RedisServer::start();
    let (client, polls) = (fixed(&server).await, Polls::default());
    let (result, _) = within("the loss", ms(5_000), cancelled(&client, &polls)).await;
    assert!(result.unwrap_err().is_lost());
    polls.check("body that is never done: macro");
}

#[tokio::test]
async fn a_handler_is_not_polled_after_its_deadline() {
    let server = RedisServer::start();
    let (client, polls) = (fixed(&server).await, Polls::default());
    let handler = polls.clone();
    let app = Router::new()
        .route("/", post(async move |Extension(lease)| handler.body(lease).await))
        .route_layer(LockLayer::from_fn(client, |_| Some("k")));
    let request = http::Request::post("/").body(axum::body::Body::empty()).unwrap();
    let (response, _) = within("the loss", ms(5_000), app.oneshot(request)).await;
    assert_eq!(response.unwrap().status(), http::StatusCode::SERVICE_UNAVAILABLE);
    polls.check("body that is never done: layer");
}

/// Checks the method: where nothing compares the clock, such a body is polled late.
#[tokio::test]
async fn the_body_of_these_tests_detects_late_polls() {
    let server = RedisServer::start();
    let (client, polls) = (fixed(&server).await, Polls::default());
    let guard = client.mutex("k").lock().await.unwrap();
    let body = polls.body(guard.lease());
    tokio::select! {
        biased;
        () = body => pending().await,
        _ = guard.lost() => {}
    }
    assert!(polls.0[1].load(Ordering::Relaxed) > 0);
}
