//! The layer among others: nested routers, timeouts, middleware, and servers without axum.

use std::time::{Duration, Instant};

use axum::extract::{Request as AxumRequest, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response as AxumResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use lock_core::{Lease, LockClient, key};
use lock_tower::{HeaderKey, LockLayer, LockRejection, PathKey};
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_http::timeout::TimeoutLayer;

use super::support::{
    Desk, Server, World, get as send_get, is_released, on_every_store, post as send_post, request,
    text,
};

on_every_store! {
    /// A timeout outside makes responses of its own, and drops the handler, which frees the key.
    async fn a_timeout_outside_the_layer_frees_the_key(world: World) {
        let desk = Desk::closed();
        let handler = desk.clone();
        let app = Router::new()
            .route("/", post(async move || handler.work().await))
            .route_layer(
                ServiceBuilder::new()
                    .layer(TimeoutLayer::with_status_code(
                        StatusCode::REQUEST_TIMEOUT,
                        Duration::from_millis(200),
                    ))
                    .layer(LockLayer::from_fn(world.process().await, |_| Some("k"))),
            );
        let server = Server::start(app).await;
        let begin = Instant::now();
        let reply = send_post(&server, "/", &[]).await;
        assert_eq!(reply.status, 408);
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(desk.counts().inside, 0);
        is_released(&world.process().await, "k").await;
    }

    /// The recipe of the crate documentation: custom middleware around `run`.
    async fn middleware_around_run_can_await_its_key(world: World) {
        async fn one_at_a_time(
            State(client): State<LockClient>,
            request: AxumRequest,
            next: Next,
        ) -> Result<AxumResponse, LockRejection> {
            tokio::task::yield_now().await; // a look-up
            let user = request.headers()["x-user"].to_str().unwrap().to_owned();
            Ok(client.mutex(key!("user:<user>")).without_wait().run(|_| next.run(request)).await?)
        }
        let desk = Desk::closed();
        let handler = desk.clone();
        let app = Router::new()
            .route("/", post(async move || handler.work().await))
            .route_layer(from_fn_with_state(world.process().await, one_at_a_time));
        let server = Server::start(app).await;
        let first = send_post(&server, "/", &[("x-user", "a")]);
        let others = async {
            desk.until(|counts| counts.entered == 1).await;
            let busy = send_post(&server, "/", &[("x-user", "a")]).await;
            assert_eq!(busy.status, 409);
            assert_eq!(busy.header("content-type"), Some("application/problem+json"));
            assert_eq!(busy.header("retry-after"), Some("1"));
            desk.let_through(1);
        };
        let (first, ()) = tokio::join!(first, others);
        assert_eq!(first.status, 200);
        is_released(&world.process().await, "user:a").await;
    }

    async fn hyper_works_without_axum(world: World) {
        let desk = Desk::closed();
        let handler = desk.clone();
        let inner = service_fn(move |request: Request<Incoming>| {
            let desk = handler.clone();
            async move {
                let number = request.extensions().get::<Lease>().unwrap().fencing_token();
                let body = request.into_body().collect().await?.to_bytes();
                desk.work().await;
                let text = format!("{number} {}", body.len());
                Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(text))))
            }
        });
        let layer = LockLayer::new(world.process().await, HeaderKey::new("order", "x-order"));
        let server = serve_with_hyper(layer.layer(inner)).await;

        let first = send_post(&server, "/", &[("x-order", "7")]);
        let others = async {
            desk.until(|counts| counts.entered == 1).await;
            let busy = send_post(&server, "/", &[("x-order", "7")]).await;
            assert_eq!((busy.status, busy.header("retry-after")), (409, Some("1")));
            let grpc = [("x-order", "7"), ("content-type", "application/grpc")];
            let grpc = send_post(&server, "/", &grpc).await;
            assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("10")));
            assert_eq!(grpc.body, "");
            assert_eq!(send_post(&server, "/", &[]).await.status, 400);
            desk.let_through(1);
        };
        let (first, ()) = tokio::join!(first, others);
        assert_eq!(first.status, 200);
        assert!(first.body.ends_with(" 0"), "{first:?}");
    }
}

async fn serve_with_hyper<S, B>(service: S) -> Server
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Future: Send>
        + Clone
        + Send
        + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    Server::of_task(addr, task)
}

#[tokio::test]
async fn route_layer_leaves_the_404_page_alone() {
    let client = World::memory().process().await;
    let layer = || LockLayer::new(client.clone(), HeaderKey::new("order", "x-order"));
    let route = || Router::new().route("/orders", post(async || "ordered"));
    let server = Server::start(route().route_layer(layer())).await;
    assert_eq!(send_get(&server, "/zzz").await.status, 404);
    assert_eq!(send_post(&server, "/orders", &[]).await.status, 400);
    // As the documentation warns.
    let server = Server::start(route().layer(layer())).await;
    assert_eq!(send_get(&server, "/zzz").await.status, 400);
}

#[tokio::test]
async fn a_nested_router_knows_its_path_parameters() {
    async fn handler(Extension(lease): Extension<Lease>) -> String {
        lease.key().as_str().to_owned()
    }
    let client = World::memory().process().await;
    let inner = Router::new()
        .route("/{id}", post(handler))
        .route_layer(LockLayer::new(client.clone(), PathKey::new("order", "id")));
    let outer =
        Router::new().route("/direct/{id}", post(handler)).nest("/shops/{shop}/orders", inner);
    // The parameter of the outer router, from a layer in it.
    let by_shop = Router::new()
        .nest("/by-shop/{shop}", Router::new().route("/orders", post(handler)))
        .route_layer(LockLayer::new(client, PathKey::new("shop", "shop")));
    let app = outer.merge(by_shop);

    let response = app.clone().oneshot(request("/shops/north/orders/7")).await.unwrap();
    assert_eq!(text(response).await, "order:7");
    let response = app.oneshot(request("/by-shop/north/orders")).await.unwrap();
    assert_eq!(text(response).await, "shop:north");
}

#[tokio::test]
async fn other_methods_of_a_layered_route_are_under_the_lock_too() {
    let world = World::memory();
    let layer = LockLayer::from_fn(world.process().await, |_| Some("k"));
    let route = post(async || "ordered").layer(layer).merge(get(async || "open"));
    let server = Server::start(Router::new().route("/", route)).await;
    let guard = world.process().await.mutex("k").lock().await.unwrap();
    assert_eq!(send_post(&server, "/", &[]).await.status, 409);
    assert_eq!(send_get(&server, "/").await.status, 200, "merged after the layer");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_handler_can_return_the_rejection_of_its_own_lock() {
    async fn handler(State(client): State<LockClient>) -> Result<&'static str, LockRejection> {
        Ok(client.mutex("k").without_wait().run(async |_| "ordered").await?)
    }
    let world = World::memory();
    let app = Router::new().route("/", post(handler)).with_state(world.process().await);
    let guard = world.process().await.mutex("k").lock().await.unwrap();
    let response = app.clone().oneshot(request("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert!(response.extensions().get::<LockRejection>().unwrap().is_busy());
    guard.release().await.unwrap();
    let response = app.oneshot(request("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn get_ref_get_mut_and_into_inner_reach_the_inner_service() {
    let layer = LockLayer::from_fn(World::memory().process().await, |_| Some("k"));
    let mut service = layer.layer(Desk::open());
    service.get_mut().asked();
    assert_eq!(service.get_ref().counts().asked, 1);
    assert_eq!(service.into_inner().counts().asked, 1);
}
