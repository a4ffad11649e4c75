//! Many requests at once.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use lock_tower::{LockLayer, LockRejection};
use tower::limit::ConcurrencyLimitLayer;
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

use lock_testkit::Experiment;

use super::support::{
    CountingStore, Desk, Server, World, is_released, on_every_store, post as send_post, request,
    soon,
};

type Service = BoxCloneSyncService<Request<String>, StatusCode, Infallible>;

/// A layer whose key is the path, and which reports each extraction to `desk`.
fn by_path(
    desk: &Desk,
    client: lock_core::LockClient,
) -> LockLayer<impl Fn(&http::request::Parts) -> Option<String> + Clone + Send + Sync + 'static> {
    let desk = desk.clone();
    LockLayer::from_fn(client, move |parts| {
        desk.asked();
        Some(parts.uri.path().trim_start_matches('/').to_owned())
    })
}

fn work(
    desk: &Desk,
) -> impl tower::Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ Sync
+ 'static {
    let desk = desk.clone();
    service_fn(move |_| {
        let desk = desk.clone();
        async move {
            desk.work().await;
            Ok(Response::new(String::new()))
        }
    })
}

on_every_store! {
    /// Source: axum#2582 (U18). `MethodRouter::layer` makes a service per method and clones it per
    /// request.
    async fn fifty_posts_with_one_key_are_handled_one_at_a_time(world: World) {
        let desk = Desk::open();
        let handler = desk.clone();
        let layer = by_path(&desk, world.process().await).with_wait(Duration::from_secs(20));
        let app = Router::new().route(
            "/orders",
            post(async move || handler.work().await).get(async || "open").layer(layer),
        );
        let server = Server::start(app).await;
        let replies = soon(join_all((0..50).map(|_| send_post(&server, "/orders", &[])))).await;
        assert!(replies.iter().all(|reply| reply.status == 200));
        let counts = desk.counts();
        assert_eq!((counts.finished, counts.most), (50, 1));
    }

    /// Sources: tower#547, tower-resilience#286 (U18). A request that waits for its key must not
    /// hold a permit that requests for other keys need.
    async fn waiters_for_a_hot_key_hold_no_permit_of_a_concurrency_limit(world: World) {
        let desk = Desk::open();
        let service = by_path(&desk, world.process().await)
            .with_wait(Duration::from_secs(20))
            .layer(ConcurrencyLimitLayer::new(4).layer(work(&desk)));
        let other = world.process().await;
        let guard = other.mutex("hot").lock().await.unwrap();

        let hot: Vec<_> = (0..4)
            .map(|_| {
                let mut service = service.clone();
                tokio::spawn(async move {
                    service.ready().await.unwrap().call(request("/hot")).await
                })
            })
            .collect();
        desk.until(|counts| counts.asked == 4).await;

        let cold = soon(service.clone().oneshot(request("/cold"))).await.unwrap();
        assert_eq!(cold.status(), StatusCode::OK);
        assert_eq!(desk.counts().entered, 1, "the cold one only");

        guard.release().await.unwrap();
        for hot in hot {
            assert_eq!(soon(hot).await.unwrap().unwrap().status(), StatusCode::OK);
        }
        assert_eq!(desk.counts().most, 1);
    }

    async fn one_waiter_too_many_is_503_and_the_others_are_served(world: World) {
        let desk = Desk::open();
        let layer = by_path(&desk, world.process().await)
            .with_wait(Duration::from_secs(20))
            .max_waiters(3)
            .max_waiters_per_key(2);
        // Two services of one layer: the bounds are the layer's.
        let services = [layer.layer(work(&desk)), layer.layer(work(&desk))];
        let other = world.process().await;
        let guards = [
            other.mutex("a").lock().await.unwrap(),
            other.mutex("b").lock().await.unwrap(),
        ];
        let mut waiting = Vec::new();
        for (n, path) in ["/a", "/a", "/b"].into_iter().enumerate() {
            waiting.push(tokio::spawn(services[n % 2].clone().oneshot(request(path))));
            desk.until(|counts| counts.asked == n + 1).await;
        }
        for path in ["/a", "/b", "/c"] {
            let response = soon(services[0].clone().oneshot(request(path))).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert!(response.headers().contains_key("retry-after"));
            let rejection = response.extensions().get::<LockRejection>().unwrap();
            assert!(!rejection.is_busy() && rejection.lock_error().is_none());
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        for waiting in waiting {
            assert_eq!(soon(waiting).await.unwrap().unwrap().status(), StatusCode::OK);
        }
        // Every place was given back.
        for path in ["/a", "/a", "/b", "/c"] {
            let response = services[1].clone().oneshot(request(path)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        }
    }

    async fn a_waiter_that_gives_up_gives_back_its_place(world: World) {
        let desk = Desk::open();
        let layer = by_path(&desk, world.process().await)
            .with_wait(Duration::from_secs(20))
            .max_waiters(1);
        let service = layer.layer(work(&desk));
        let other = world.process().await;
        let guard = other.mutex("a").lock().await.unwrap();
        for n in 1..=3 {
            let waiting = tokio::spawn(service.clone().oneshot(request("/a")));
            desk.until(|counts| counts.asked == n).await;
            waiting.abort();
            assert!(waiting.await.unwrap_err().is_cancelled());
        }
        let response = soon(service.clone().oneshot(request("/b"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        guard.release().await.unwrap();
        is_released(&other, "a").await;
    }
}

#[tokio::test]
async fn over_the_bound_the_store_is_not_touched() {
    let mut experiment = Experiment::new(
        38,
        "503 before the store is asked",
        "requests over the bound",
        &["requests refused"],
    );
    let store = CountingStore::default();
    let desk = Desk::closed();
    let layer = by_path(&desk, store.client());
    let service: Service = BoxCloneSyncService::new(
        layer.max_waiters(0).layer(work(&desk)).map_response(|response| response.status()),
    );
    let statuses =
        join_all((0..100).map(|n| service.clone().oneshot(request(&format!("/{n}"))))).await;
    for status in statuses {
        assert_eq!(status.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        experiment.saw("requests refused", 1);
    }
    assert_eq!((store.claims(), desk.counts().entered), (0, 0));
    experiment.ran(1);
    experiment.finish();
}

/// With one place, one request waits while another is handled.
#[tokio::test]
async fn a_request_that_holds_its_lock_takes_no_place() {
    let desk = Desk::closed();
    let layer = by_path(&desk, World::memory().process().await)
        .with_wait(Duration::from_secs(20))
        .max_waiters_per_key(1);
    let service = layer.layer(work(&desk));
    let first = tokio::spawn(service.clone().oneshot(request("/a")));
    desk.until(|counts| counts.entered == 1).await;
    let second = tokio::spawn(service.clone().oneshot(request("/a")));
    desk.until(|counts| counts.asked == 2).await;
    let begin = Instant::now();
    let third = soon(service.clone().oneshot(request("/a"))).await.unwrap();
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(begin.elapsed() < Duration::from_secs(5), "at once");
    desk.let_through(2);
    for call in [first, second] {
        assert_eq!(soon(call).await.unwrap().unwrap().status(), StatusCode::OK);
    }
}
