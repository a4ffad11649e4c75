//! The responses to refused requests, and that their handlers do not run.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::response::IntoResponse as _;
use axum::routing::post;
use axum::{Router, response::Response};
use http::{HeaderMap, Request, StatusCode};
use lock_core::{ErrorKind, LockClient, LockOptions, key};
use lock_tower::{HeaderKey, LockLayer, LockRejection, PartsKey, PathKey};
use tower::{Layer as _, ServiceExt as _, service_fn};

use lock_testkit::Experiment;

use super::support::{BrokenStore, CountingStore, Desk, World, on_every_store, request, text};

/// A route `/orders/{id}` under a lock, and its handler's desk.
fn app(layer: LockLayer<PathKey>, desk: &Desk) -> Router {
    let desk = desk.clone();
    Router::new().route("/orders/{id}", post(async move || desk.work().await)).route_layer(layer)
}

fn by_path(client: LockClient) -> LockLayer<PathKey> {
    LockLayer::new(client, PathKey::new("order", "id"))
}

fn grpc_request(content_type: &str) -> Request<String> {
    Request::post("/orders/7").header("content-type", content_type).body(String::new()).unwrap()
}

/// The response has this status, and no cache may give it to another client.
fn check<B>(response: &http::Response<B>, status: StatusCode) {
    assert_eq!(response.status(), status);
    let caching: Vec<_> = response.headers().get_all("cache-control").iter().collect();
    assert_eq!(caching, ["no-store"], "{status}");
}

fn rejection(response: &Response) -> &LockRejection {
    response.extensions().get().expect("the reason is in the extensions")
}

on_every_store! {
    async fn busy_is_409_with_retry_after(world: World) {
        let desk = Desk::open();
        let app = app(by_path(world.process().await), &desk);
        let guard = world.process().await.mutex("order:7").lock().await.unwrap();

        let response = app.clone().oneshot(request("/orders/7")).await.unwrap();
        check(&response, StatusCode::CONFLICT);
        assert!(rejection(&response).is_busy());
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(seconds >= 1);
        let body = text(response).await;
        assert!(body.contains(r#""status":409"#), "{body}");
        assert!(!body.contains("order") && !body.contains('7'), "names no key: {body}");
        assert_eq!(desk.counts().entered, 0);

        guard.release().await.unwrap();
        let response = app.oneshot(request("/orders/7")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }

    /// Source: redis-py#621. When the wait ends without the lock, the body must not run (P6).
    async fn a_wait_that_runs_out_never_starts_the_handler(world: World) {
        let desk = Desk::open();
        let layer = by_path(world.process().await).with_wait(Duration::from_millis(150));
        let app = app(layer, &desk);
        let guard = world.process().await.mutex("order:7").lock().await.unwrap();

        let begin = Instant::now();
        let response = app.oneshot(request("/orders/7")).await.unwrap();
        check(&response, StatusCode::CONFLICT);
        assert!(begin.elapsed() >= Duration::from_millis(150), "it did wait");
        guard.release().await.unwrap();
        assert_eq!(desk.counts().entered, 0);
    }

    async fn a_grpc_call_gets_trailers_only(world: World) {
        let desk = Desk::open();
        let app = app(by_path(world.process().await), &desk);
        let _guard = world.process().await.mutex("order:7").lock().await.unwrap();

        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"] {
            let response = app.clone().oneshot(grpc_request(content_type)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{content_type}");
            assert_eq!(response.headers()["content-type"], content_type);
            assert_eq!(response.headers()["grpc-status"], "10", "ABORTED");
            assert!(response.headers().contains_key("grpc-message"));
            assert!(rejection(&response).is_busy());
            assert!(http_body::Body::is_end_stream(response.body()), "nothing but the head");
            assert_eq!(text(response).await, "");
        }
        assert_eq!(desk.counts().entered, 0);
    }
}

/// Sources: redisson#2801, #543, #5002. "The store is down" is not "the key is taken" (R25).
#[tokio::test]
async fn a_store_that_is_down_is_503_within_the_wait_and_never_busy() {
    for store in [BrokenStore::Down, BrokenStore::Silent] {
        for wait in [None, Some(200), Some(2000)].map(|wait| wait.map(Duration::from_millis)) {
            let desk = Desk::open();
            let mut layer = by_path(store.client());
            if let Some(wait) = wait {
                layer = layer.with_wait(wait);
            }
            let begin = Instant::now();
            let response = app(layer, &desk).oneshot(request("/orders/7")).await.unwrap();
            let limit = wait.unwrap_or_default() + Duration::from_millis(50);
            assert!(begin.elapsed() < limit, "{store} {wait:?}: {:?}", begin.elapsed());
            check(&response, StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key("retry-after"));
            assert!(!rejection(&response).is_busy());
            assert!(rejection(&response).lock_error().unwrap().is_store_failure());
            assert_eq!(desk.counts().entered, 0);
        }
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_unavailable_to_grpc() {
    let app = app(by_path(BrokenStore::Down.client()), &Desk::open());
    let response = app.oneshot(grpc_request("application/grpc")).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14", "UNAVAILABLE");
}

#[tokio::test]
async fn a_drained_client_is_503() {
    let client = World::memory().process().await;
    client.drain(Duration::from_secs(1)).await;
    let response = app(by_path(client), &Desk::open()).oneshot(request("/orders/7")).await.unwrap();
    check(&response, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejection(&response).lock_error().unwrap().kind(), ErrorKind::Draining);
}

#[tokio::test]
async fn invalid_options_are_500_and_the_store_is_not_touched() {
    let store = CountingStore::default();
    let desk = Desk::open();
    let options = [
        LockOptions::new().with_ttl(Duration::ZERO),
        LockOptions::new().with_ttl(Duration::MAX),
        LockOptions::new().with_wait(Duration::ZERO),
        LockOptions::new()
            .with_max_hold(Duration::from_secs(1))
            .with_min_hold(Duration::from_secs(2)),
    ];
    for options in options {
        let app = app(by_path(store.client()).with_options(options), &desk);
        let response = app.oneshot(request("/orders/7")).await.unwrap();
        check(&response, StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!((store.claims(), desk.counts().entered), (0, 0));
}

/// The refusals that no other test here meets: no key, too many waiters, a lost lock. The fault: a
/// cache keeps a refusal and gives it to other clients.
#[tokio::test]
async fn no_refusal_may_be_cached() {
    let layer = LockLayer::new(World::memory().process().await, HeaderKey::new("order", "x-order"));
    let full = layer.clone().max_waiters(0);
    let brief = LockOptions::new().with_max_hold(Duration::from_millis(100));
    let brief = layer.clone().with_options(brief);
    for (layer, header, status) in [
        (layer, "x-other", StatusCode::BAD_REQUEST),
        (full, "x-order", StatusCode::SERVICE_UNAVAILABLE),
        (brief, "x-order", StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let service = layer.layer(service_fn(async |_: Request<String>| {
            std::future::pending::<Result<http::Response<String>, Infallible>>().await
        }));
        let request = Request::post("/").header(header, "7").body(String::new()).unwrap();
        check(&service.oneshot(request).await.unwrap(), status);
    }
}

#[tokio::test]
async fn other_options_leave_the_layer_without_a_wait() {
    let world = World::memory();
    let layer = by_path(world.process().await)
        .with_options(LockOptions::new().with_ttl(Duration::from_secs(30)));
    let _guard = world.process().await.mutex("order:7").lock().await.unwrap();
    let begin = Instant::now();
    let response = app(layer, &Desk::open()).oneshot(request("/orders/7")).await.unwrap();
    check(&response, StatusCode::CONFLICT);
    assert!(begin.elapsed() < Duration::from_secs(1), "the client's own wait is 5 s");
}

#[tokio::test]
async fn a_replaced_response_still_carries_its_reason() {
    let world = World::memory();
    let layer = by_path(world.process().await).on_reject(|rejection| {
        let mut headers = HeaderMap::new();
        headers.insert("x-shop", "closed".parse().unwrap());
        (rejection.status(), headers, "later").into_response()
    });
    let app = app(layer, &Desk::open());
    let _guard = world.process().await.mutex("order:7").lock().await.unwrap();
    let response = app.oneshot(request("/orders/7")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(response.headers()["x-shop"], "closed");
    assert!(rejection(&response).is_busy());
    assert_eq!(text(response).await, "later");
}

#[tokio::test]
async fn an_extractors_own_rejection_is_the_response() {
    struct NotLoggedIn;
    impl<S: Sync> axum::extract::FromRequestParts<S> for NotLoggedIn {
        type Rejection = Response;
        async fn from_request_parts(_: &mut http::request::Parts, _: &S) -> Result<Self, Response> {
            Err((StatusCode::UNAUTHORIZED, "who are you?").into_response())
        }
    }

    let store = CountingStore::default();
    let desk = Desk::open();
    let extractor = PartsKey::new(|_: NotLoggedIn| Some("user:7"));
    let layer = LockLayer::new(store.client(), extractor)
        .allow_unkeyed()
        .on_reject(|_| "replaced".to_owned().into_response());
    let handler = desk.clone();
    let app =
        Router::new().route("/orders", post(async move || handler.work().await)).route_layer(layer);
    let response = app.oneshot(request("/orders")).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(text(response).await, "who are you?");
    assert_eq!((store.claims(), desk.counts().entered), (0, 0));
}

#[tokio::test]
async fn no_secret_reaches_the_client_or_debug() {
    let mut experiment =
        Experiment::new(36, "no key value in answers and Debug", "canary: key value", &["answers"]);
    const SECRET: &str = "4711-4711-4711-4711";

    let world = World::memory();
    let _guard = world.process().await.mutex(key!("card:<SECRET>")).lock().await.unwrap();
    let layer = LockLayer::new(world.process().await, HeaderKey::new("card", "x-card"));
    let debug = format!("{layer:?}");
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    let too_long = SECRET.repeat(20);
    for (card, status) in [(SECRET, StatusCode::CONFLICT), (&*too_long, StatusCode::BAD_REQUEST)] {
        let request = Request::post("/").header("x-card", card).body(String::new()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        check(&response, status);
        experiment.ran(1);
        let rejection = response.extensions().get::<LockRejection>().unwrap();
        let shown = format!("{debug} {rejection:?} {rejection} {:?}", response.headers());
        assert!(!shown.contains(SECRET), "{shown}");
        assert!(!text(response).await.contains(SECRET));
        experiment.saw("answers", 1);
    }
    experiment.finish();
}
