//! A Redis that is down, or hangs.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};
use lock_testkit::{LogCapture, RedisServer};
use lock_tower::{LockLayer, LockRejection};
use tower::ServiceExt as _;

use super::support::{Desk, Server, is_released, open, request};

const KEY: &str = "k";
/// The time limit of one command, and so of a request that does not wait.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// How late a response may be, by the source.
const LATE: Duration = Duration::from_millis(50);
/// On top, for a machine that runs many tests at once.
const BUSY_MACHINE: Duration = Duration::from_millis(200);

async fn process(server: &RedisServer) -> LockClient {
    let store =
        RedisStore::builder(server.url()).with_request_timeout(REQUEST_TIMEOUT).connect().await;
    let options = LockOptions::new().with_ttl(Duration::from_secs(60));
    LockClient::builder(store.unwrap()).with_defaults(options).build().unwrap()
}

fn app(client: LockClient, wait: Option<Duration>, desk: &Desk) -> Router {
    let (handler, asking) = (desk.clone(), desk.clone());
    let mut layer = LockLayer::from_fn(client, move |_| {
        asking.asked();
        Some(KEY)
    });
    if let Some(wait) = wait {
        layer = layer.with_wait(wait);
    }
    Router::new().route("/", post(async move || handler.work().await)).route_layer(layer)
}

async fn is_503_in_time(client: &LockClient, wait: Option<Duration>) {
    let desk = Desk::open();
    let begin = Instant::now();
    let response = app(client.clone(), wait, &desk).oneshot(request("/")).await.unwrap();
    let took = begin.elapsed();
    assert_eq!(response.status(), 503, "{wait:?}");
    let rejection: &LockRejection = response.extensions().get().unwrap();
    assert!(rejection.lock_error().unwrap().is_store_failure());
    assert!(!rejection.is_busy());
    assert!(took < wait.unwrap_or(REQUEST_TIMEOUT) + LATE + BUSY_MACHINE, "{wait:?}: {took:?}");
    assert_eq!(desk.counts().entered, 0);
}

const WAITS: [Option<Duration>; 3] =
    [None, Some(Duration::from_millis(200)), Some(Duration::from_secs(2))];

/// Sources: redisson#2801, #543, #5002 (R25).
#[tokio::test]
async fn a_killed_redis_is_503_within_the_wait() {
    let mut server = RedisServer::start();
    let client = process(&server).await;
    server.kill();
    let log = LogCapture::start();
    for wait in WAITS {
        is_503_in_time(&client, wait).await;
    }
    // The operator learns the cause.
    let text = log.text();
    let refused: Vec<_> = text.lines().filter(|line| line.contains("request refused")).collect();
    assert_eq!(refused.len(), WAITS.len(), "{text}");
    assert!(refused.iter().any(|line| line.contains("Connection refused")), "{text}");
}

/// Sources: redisson#2801, #543, #5002 (R25). The server accepts the claims, and executes them long
/// after the clients gave up.
#[tokio::test]
async fn a_hung_redis_is_503_within_the_wait_and_leaves_no_key() {
    let server = RedisServer::start();
    let (client, other) = (process(&server).await, process(&server).await);
    server.pause();
    for wait in WAITS {
        is_503_in_time(&client, wait).await;
    }
    server.resume();
    is_released(&other, KEY).await;
}

/// Source: gears-rust#4237 (U2). The claim is in flight when the client hangs up, and takes effect
/// afterwards.
#[tokio::test]
async fn a_client_that_hangs_up_on_a_frozen_redis_leaves_no_key() {
    let server = RedisServer::start();
    let (client, other) = (process(&server).await, process(&server).await);
    let desk = Desk::open();
    let app = app(client, Some(Duration::from_secs(20)), &desk);
    let web = Server::start(desk.outside(app)).await;
    for n in 1..=3 {
        server.pause();
        let waiting = open(&web, "/").await;
        desk.until(|counts| counts.asked == n).await;
        drop(waiting);
        desk.until(|counts| counts.gone == n).await;
        server.resume();
        is_released(&other, KEY).await;
    }
    assert_eq!(desk.counts().entered, 0);
}
