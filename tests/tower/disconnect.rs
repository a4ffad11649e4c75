//! Clients that hang up: on a real connection, while they wait and while they are handled.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use lock_core::{LockClient, LockOptions};
use lock_tower::{ExtractKey, LockLayer, LockRejection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing::Instrument as _;

use lock_testkit::Experiment;

use super::support::{
    Desk, Server, World, is_released, on_every_store, open, post as send_post, request, soon,
};

const KEY: &str = "k";

fn layer(
    client: LockClient,
    desk: &Desk,
) -> LockLayer<impl Fn(&Parts) -> Option<&'static str> + Clone + Send + Sync + 'static> {
    let desk = desk.clone();
    LockLayer::from_fn(client, move |_| {
        desk.asked();
        Some(KEY)
    })
    .with_wait(Duration::from_secs(60))
}

/// A server that reports to `desk` when a request has left it.
async fn serve<E: ExtractKey>(layer: LockLayer<E>, desk: &Desk) -> Server {
    let handler = desk.clone();
    let app = Router::new().route("/", post(async move || handler.work().await)).route_layer(layer);
    Server::start(desk.outside(app)).await
}

on_every_store! {
    /// Sources: redisson#2714 and #4368, gears-rust#4237, llm-d-rl-time-slicing#80 (U2). A dropped
    /// acquire leaves neither a key nor a place in the queue.
    async fn a_client_that_hangs_up_while_waiting_leaves_nothing(world: World) {
        let (desk, other) = (Desk::open(), world.process().await);
        let server = serve(layer(world.process().await, &desk), &desk).await;
        let guard = other.mutex(KEY).lock().await.unwrap();

        let waiting = open(&server, "/").await;
        desk.until(|counts| counts.asked == 1).await;
        drop(waiting);
        desk.until(|counts| counts.gone == 1).await;

        guard.release().await.unwrap();
        is_released(&other, KEY).await;
        assert_eq!(desk.counts().entered, 0);
    }

    /// The next waiter in the same process gets the lock.
    async fn a_waiter_that_hangs_up_does_not_hold_up_the_next(world: World) {
        let (desk, other) = (Desk::open(), world.process().await);
        let server = serve(layer(world.process().await, &desk), &desk).await;
        let guard = other.mutex(KEY).lock().await.unwrap();

        let first = open(&server, "/").await;
        desk.until(|counts| counts.asked == 1).await;
        let _second = open(&server, "/").await;
        desk.until(|counts| counts.asked == 2).await;
        drop(first);
        desk.until(|counts| counts.gone == 1).await;
        guard.release().await.unwrap();
        desk.until(|counts| counts.finished == 1).await;
    }

    /// Source: blnk#354 (P4). The handler is dropped, and the key is free long before its ttl.
    async fn a_client_that_hangs_up_while_handled_frees_the_key(world: World) {
        let desk = Desk::closed();
        let server = serve(layer(world.process().await, &desk), &desk).await;
        let handled = open(&server, "/").await;
        desk.until(|counts| counts.entered == 1).await;
        drop(handled);
        desk.until(|counts| counts.gone == 1).await;
        is_released(&world.process().await, KEY).await;
        let counts = desk.counts();
        assert_eq!((counts.inside, counts.finished), (0, 0), "the handler was dropped");
    }

    /// Source: blnk#354 (P4), the opposite case: a shielded handler finishes under its lock.
    async fn a_shielded_handler_finishes_without_its_client(world: World) {
        let (desk, other) = (Desk::closed(), world.process().await);
        let server = serve(layer(world.process().await, &desk).shield(), &desk).await;
        let handled = open(&server, "/").await;
        desk.until(|counts| counts.entered == 1).await;
        drop(handled);
        desk.until(|counts| counts.gone == 1).await;

        assert_eq!(desk.counts().inside, 1, "goes on");
        assert!(other.mutex(KEY).try_lock().await.unwrap().is_none(), "under its lock");
        desk.let_through(1);
        desk.until(|counts| counts.finished == 1).await;
        is_released(&other, KEY).await;
    }

    async fn a_shielded_request_keeps_waiting_without_its_client(world: World) {
        let (desk, other) = (Desk::open(), world.process().await);
        let server = serve(layer(world.process().await, &desk).shield(), &desk).await;
        let guard = other.mutex(KEY).lock().await.unwrap();
        let waiting = open(&server, "/").await;
        desk.until(|counts| counts.asked == 1).await;
        drop(waiting);
        desk.until(|counts| counts.gone == 1).await;
        guard.release().await.unwrap();
        desk.until(|counts| counts.finished == 1).await;
        is_released(&other, KEY).await;
    }

    /// Source: blnk#354 (P4). The task that serves the request is aborted.
    async fn an_aborted_task_frees_the_key(world: World) {
        let desk = Desk::closed();
        let handler = desk.clone();
        let service = layer(world.process().await, &desk).layer(service_fn(move |_: Request<String>| {
            let desk = handler.clone();
            async move {
                desk.work().await;
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        }));
        let task = tokio::spawn(service.oneshot(request("/")));
        desk.until(|counts| counts.entered == 1).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        is_released(&world.process().await, KEY).await;
    }
}

/// A slow upload is read under the lock; `max_hold` ends it, and the next request is served.
#[tokio::test]
async fn an_upload_that_never_ends_holds_the_key_for_max_hold_only() {
    let mut experiment = Experiment::new(
        39,
        "held for max_hold only, the next is served",
        "slow upload",
        &["uploads cut off"],
    );
    let world = World::memory();
    let desk = Desk::open();
    const MAX_HOLD: Duration = Duration::from_millis(300);
    let options = LockOptions::new().with_max_hold(MAX_HOLD);
    let layer = layer(world.process().await, &desk).with_options(options);
    let handler = desk.clone();
    let app = Router::new()
        .route("/", post(async move |_: String| handler.work().await))
        .route_layer(layer);
    let server = Server::start(app).await;

    let (mut answer, mut upload) = TcpStream::connect(server.addr).await.unwrap().into_split();
    let head =
        b"POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 9999\r\n\r\n";
    let begin = Instant::now();
    upload.write_all(head).await.unwrap();
    let dripping = tokio::spawn(async move {
        let mut bytes = 0;
        while upload.write_all(b"x").await.is_ok() {
            bytes += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bytes
    });
    desk.until(|counts| counts.asked == 1).await;
    let next = soon(send_post(&server, "/", &[])).await;
    let held = begin.elapsed();
    assert_eq!(next.status, 200, "served after the upload lost its lock");
    assert!(held >= MAX_HOLD && held < MAX_HOLD * 4, "{held:?}");
    let mut reply = Vec::new();
    // A server resets a connection on which it left something unread.
    let _reset = soon(answer.read_to_end(&mut reply)).await;
    let reply = String::from_utf8(reply).unwrap();
    assert!(soon(dripping).await.unwrap() > 3, "it went on all the time");
    assert_eq!(desk.counts().entered, 1, "the upload never reached the handler");
    assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
    experiment.saw("uploads cut off", 1);
    experiment.ran(1);
    experiment.finish();
}

/// Sources: redisson#7272, rueidis#1010. Dropped after every possible number of polls.
#[tokio::test]
async fn a_request_dropped_at_any_await_leaves_nothing() {
    let world = World::memory();
    let other = world.process().await;
    let service = layer(world.process().await, &Desk::open()).layer(service_fn(
        async |_: Request<String>| {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(Response::new(String::new()))
        },
    ));
    for polls in 0.. {
        let mut call = Box::pin(service.clone().oneshot(request("/")));
        let mut left = polls;
        let answered = poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(false);
            }
            left -= 1;
            call.as_mut().poll(cx).map(|response| response.is_ok())
        })
        .await;
        drop(call);
        is_released(&other, KEY).await;
        if answered {
            assert!(polls > 1, "nothing was cut short");
            break;
        }
    }
}

/// The end of a runtime cancels its tasks; that is not a panic of the handler.
#[test]
fn a_shielded_task_that_the_runtime_ends_is_503() {
    let doomed = tokio::runtime::Runtime::new().unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let desk = Desk::closed();
    let handler = desk.clone();
    let client = other.block_on(World::memory().process());
    let service = layer(client, &desk).shield().layer(service_fn(move |_: Request<String>| {
        let desk = handler.clone();
        async move {
            desk.work().await;
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let mut call = pin!(service.oneshot(request("/")));

    doomed.block_on(async {
        poll_fn(|cx| {
            assert!(call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        desk.until(|counts| counts.entered == 1).await;
    });
    doomed.shutdown_background();
    let response = other.block_on(soon(call)).unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.extensions().get::<LockRejection>().is_some());
    // How much of the work was done is unknown.
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_shielded_handler_runs_in_the_span_of_its_request() {
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry());
    let service = layer(World::memory().process().await, &Desk::open()).shield().layer(service_fn(
        async |_: Request<String>| {
            let span = tracing::Span::current();
            let name = span.metadata().map_or("none", |metadata| metadata.name());
            Ok::<_, Infallible>(Response::new(name.to_owned()))
        },
    ));
    let call = service.oneshot(request("/")).instrument(tracing::info_span!("a_request"));
    assert_eq!(super::support::text(call.await.unwrap()).await, "a_request");
}

#[test]
fn a_request_outside_a_runtime_is_500_and_does_not_panic() {
    let client = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(World::memory().process());
    let layer = layer(client, &Desk::open());
    for layer in [layer.clone(), layer.shield()] {
        let service = layer.layer(service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let response = futures_util::FutureExt::now_or_never(service.oneshot(request("/")));
        let response = response.expect("nothing to wait for").unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
