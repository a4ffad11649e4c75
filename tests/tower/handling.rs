//! What happens around a handler that has the lock.

use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::Router;
use axum::routing::post;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use lock_core::store::MemoryStore;
use lock_core::{Lease, LockClient, LockOptions, assert_locked, current};
use lock_tower::{LockBody, LockLayer, LockRejection, PathKey};
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

use lock_testkit::Experiment;

use super::support::{
    BrokenStore, Desk, Server, World, is_released, on_every_store, post as send_post, request,
    soon, text,
};

on_every_store! {
    async fn the_handler_finds_its_lease(world: World) {
        async fn handler(Extension(lease): Extension<Lease>) {
            assert!(lease.is_valid());
            assert!(lease.fencing_token().get() > 0);
            assert_eq!(current().unwrap().fencing_token(), lease.fencing_token());
            assert_locked("order:7");
        }
        let app = Router::new()
            .route("/", post(handler))
            .route_layer(LockLayer::from_fn(world.process().await, |_| Some("order:7")));
        let response = app.oneshot(request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }

    /// Source: Truxify#4696 and others (U19). The lock must be free when the client has its answer.
    async fn a_request_sent_the_instant_the_first_is_answered_is_not_refused(world: World) {
        // Two processes: the second learns of the release from the store only.
        let mut servers = Vec::new();
        for _ in 0..2 {
            let layer = LockLayer::from_fn(world.process().await, |_| Some("user:7"));
            let app = Router::new().route("/", post(async || "ordered")).route_layer(layer);
            servers.push(Server::start(app).await);
        }
        for n in 0..100 {
            let reply = send_post(&servers[n % 2], "/", &[]).await;
            assert_eq!(reply.status, 200, "request {n}: {}", reply.body);
        }
    }

    async fn a_panic_releases_the_lock_and_propagates(world: World) {
        let service = service_fn(async |_: Request<String>| -> Result<Response<String>, Infallible> {
            tokio::task::yield_now().await;
            panic!("the handler's own")
        });
        let layer = LockLayer::from_fn(world.process().await, |_| Some("k"));
        for layer in [layer.clone(), layer.shield()] {
            let outcome = AssertUnwindSafe(layer.layer(service).oneshot(request("/")));
            let panic = soon(outcome.catch_unwind()).await.unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"the handler's own"));
            is_released(&world.process().await, "k").await;
        }
    }

    async fn an_error_of_the_inner_service_is_passed_on_unchanged(world: World) {
        #[derive(Debug, PartialEq)]
        struct OwnError(u32); // not even an `Error`

        let service = service_fn(async |_: Request<String>| Err::<Response<String>, _>(OwnError(7)));
        let layer = LockLayer::from_fn(world.process().await, |_| Some("k"));
        for layer in [layer.clone(), layer.shield()] {
            let error = layer.layer(service).oneshot(request("/")).await.unwrap_err();
            assert_eq!(error, OwnError(7));
            let other = world.process().await;
            assert!(other.mutex("k").try_lock().await.unwrap().is_some(), "released before the error was returned");
        }
    }

    async fn a_lock_that_is_lost_while_handling_is_503(world: World) {
        let mut experiment = Experiment::new(
            39,
            "held for max_hold only, the handler is dropped",
            "endless handler",
            &["handlers dropped"],
        );
        const MAX_HOLD: Duration = Duration::from_millis(300);
        let desk = Desk::closed();
        let handler = desk.clone();
        let layer = LockLayer::from_fn(world.process().await, |_| Some("k"))
            .with_options(LockOptions::new().with_max_hold(MAX_HOLD));
        let app = Router::new().route("/", post(async move || handler.work().await)).route_layer(layer);
        let begin = Instant::now();
        let response = soon(app.oneshot(request("/"))).await.unwrap();
        let held = begin.elapsed();
        assert!(held >= MAX_HOLD && held < MAX_HOLD * 4, "{held:?}");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.extensions().get::<LockRejection>().unwrap().is_lost());
        assert!(!response.headers().contains_key("retry-after"), "half of the work may be done");
        assert!(text(response).await.contains("lost"));
        let counts = desk.counts();
        assert_eq!((counts.entered, counts.inside, counts.finished), (1, 0, 0), "dropped at its await");
        is_released(&world.process().await, "k").await;
        experiment.ran(1);
        experiment.saw("handlers dropped", counts.entered);
        experiment.finish();
    }
}

/// The other way to lose a lock: the store forgets it, and the next renewal finds that out.
#[tokio::test]
async fn a_lock_that_the_store_forgot_is_503() {
    let store = MemoryStore::new();
    let options = LockOptions::new().with_ttl(Duration::from_millis(600));
    let client = LockClient::builder(store.clone()).with_defaults(options).build().unwrap();
    let desk = Desk::closed();
    let handler = desk.clone();
    let app = Router::new()
        .route("/", post(async move || handler.work().await))
        .route_layer(LockLayer::from_fn(client, |_| Some("k")));
    let response = tokio::spawn(app.oneshot(request("/")));
    desk.until(|counts| counts.entered == 1).await;
    store.flush();
    let response = soon(response).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(desk.counts().finished, 0);
}

/// Sources: node-redlock#369 F7, lago-api#3413 (U8, P5). The work is done; a failed release does
/// not undo it.
#[tokio::test]
async fn a_failed_release_never_replaces_the_response() {
    let client = BrokenStore::DownAtRelease(MemoryStore::new()).client();
    let app = Router::new()
        .route("/", post(async || (StatusCode::CREATED, "ordered")))
        .route_layer(LockLayer::from_fn(client, |_| Some("k")));
    let response = soon(app.oneshot(request("/"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(text(response).await, "ordered");
}

#[tokio::test]
async fn run_on_the_same_key_inside_the_layer_is_reentrant() {
    let client = World::memory().process().await;
    let inner = client.clone();
    let handler = async move || inner.mutex("k").run(async |_| "both").await.unwrap();
    let app = Router::new()
        .route("/", post(handler))
        .route_layer(LockLayer::from_fn(client, |_| Some("k")));
    let response = soon(app.oneshot(request("/"))).await.unwrap();
    assert_eq!(text(response).await, "both");
}

#[tokio::test]
async fn two_layers_with_one_key_are_500_instead_of_hanging() {
    let client = World::memory().process().await;
    let layer = LockLayer::from_fn(client, |_| Some("k")).with_wait(Duration::from_secs(60));
    let app = Router::new()
        .route("/", post(async || "never"))
        .route_layer(layer.clone())
        .route_layer(layer);
    let response = soon(app.oneshot(request("/"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

/// Source: tower's contract for clones (U18). A clone of a ready service is not ready; the fault is
/// to call it all the same.
#[tokio::test]
async fn the_inner_service_is_never_called_unready() {
    #[derive(Default)]
    struct Strict {
        is_ready: bool,
    }
    // A clone has to be polled again.
    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self::default()
        }
    }
    impl tower::Service<Request<String>> for Strict {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.is_ready = true;
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            assert!(std::mem::take(&mut self.is_ready), "called unready");
            std::future::ready(Ok(Response::new(String::new())))
        }
    }

    let layer = LockLayer::from_fn(World::memory().process().await, |parts| {
        Some(parts.uri.path().to_owned())
    });
    let mut service = layer.layer(Strict::default());
    let mut calls = Vec::new();
    for n in 0..3 {
        service.ready().await.unwrap();
        calls.push(service.call(request(&format!("/{n}"))));
    }
    for call in calls {
        assert_eq!(call.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn path_and_extension_extractors_work_behind_the_layer() {
    async fn handler(
        axum::extract::Path(id): axum::extract::Path<u64>,
        Extension(who): Extension<&'static str>,
        body: String,
    ) -> String {
        format!("{who} {id} {body}")
    }
    let layer = LockLayer::new(World::memory().process().await, PathKey::new("order", "id"));
    let app = Router::new()
        .route("/orders/{id}", post(handler))
        .route_layer(layer)
        .route_layer(Extension("ann"));
    let request = Request::post("/orders/7").body("two of it".to_owned()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(text(response).await, "ann 7 two of it");
}

/// Also if the inner body has no default.
#[test]
fn lock_body_has_a_default_for_every_body() {
    struct NoDefault;
    assert!(format!("{:?}", LockBody::<NoDefault>::default()).contains("LockBody"));
    let body = LockBody::<String>::default();
    assert!(http_body::Body::is_end_stream(&body));
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(0));
}

#[test]
fn layer_service_and_future_have_the_auto_traits_that_servers_require() {
    fn layer<T: Clone + Send + Sync + fmt::Debug + 'static>() {}
    fn future<T: Send + Unpin + 'static>() {}
    fn body<T: Send + 'static>() {}
    layer::<LockLayer<PathKey>>();
    layer::<lock_tower::LockService<Router, PathKey>>();
    layer::<LockRejection>();
    future::<lock_tower::ResponseFuture<axum::body::Body, Infallible>>();
    body::<LockBody<axum::body::Body>>();
}

#[tokio::test]
async fn an_extractor_that_panics_or_is_dropped_leaves_nothing() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let layer = LockLayer::from_fn(World::memory().process().await, move |_| -> Option<&str> {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("the closure's own")
    });
    let service = layer.max_waiters(1).layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    for _ in 0..2 {
        let call = AssertUnwindSafe(service.clone().oneshot(request("/"))).catch_unwind();
        call.await.unwrap_err();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}
