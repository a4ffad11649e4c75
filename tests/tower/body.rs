//! Locks that are held until the response body is sent.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response as AxumResponse;
use axum::routing::post;
use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use lock_core::{LockClient, LockOptions};
use lock_tower::{LockLayer, LockRejection};
use tokio::sync::mpsc;
use tower::util::ServiceFn;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::support::{
    Server, World, is_released, on_every_store, post as send_post, request, soon,
};

type Frames =
    Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send>>;
type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>;

type Answered<B> = Ready<Result<Response<B>, Infallible>>;

/// A body whose frames come when the test sends them.
fn channel() -> (Sender, StreamBody<Frames>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|item| (item, receiver))
    });
    (sender, StreamBody::new(Box::pin(frames)))
}

fn data(text: &'static str) -> Result<Frame<Bytes>, std::io::Error> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// Calls a service under a layer with `hold_for_body`; its response has this body.
async fn call<B>(
    client: LockClient,
    options: LockOptions,
    body: B,
) -> Response<lock_tower::LockBody<B>>
where
    B: http_body::Body + Send + 'static,
{
    let layer = LockLayer::from_fn(client, |_| Some("k")).with_options(options).hold_for_body();
    layer.layer(once(body)).oneshot(request("/")).await.unwrap()
}

/// A service that can be called once, and answers with this body.
fn once<B: Send + 'static>(body: B) -> ServiceFn<impl Fn(Request<String>) -> Answered<B> + Clone> {
    let body = Arc::new(Mutex::new(Some(body)));
    service_fn(move |_| ready(Ok(Response::new(body.lock().unwrap().take().unwrap()))))
}

async fn is_held(client: &LockClient) -> bool {
    client.mutex("k").try_lock().await.unwrap().is_none()
}

on_every_store! {
    async fn the_key_is_taken_until_the_body_has_ended(world: World) {
        let other = world.process().await;
        let (sender, body) = channel();
        let response = call(world.process().await, LockOptions::new(), body).await;
        assert!(is_held(&other).await, "the head is out, the body is not");
        let mut body = response.into_body();
        assert!(!body.is_end_stream());

        sender.send(data("one")).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        assert!(is_held(&other).await);
        drop(sender);
        assert!(soon(body.frame()).await.is_none());
        assert!(body.is_end_stream());
        assert!(!is_held(&other).await, "released before the end of the body");
        assert!(body.frame().await.is_none(), "and again");
    }

    /// With a known length the client has the whole response with the last frame, not with the end
    /// after it.
    async fn the_release_comes_before_the_last_frame_of_a_known_length(world: World) {
        let other = world.process().await;
        let body = Full::new(Bytes::from_static(b"all of it"));
        let response = call(world.process().await, LockOptions::new(), body).await;
        assert!(is_held(&other).await);
        assert_eq!(response.body().size_hint().exact(), Some(9));
        let mut body = response.into_body();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "all of it");
        assert!(!is_held(&other).await);
        assert!(body.is_end_stream());
    }

    async fn an_empty_body_does_not_hold_the_lock(world: World) {
        let response =
            call(world.process().await, LockOptions::new(), Empty::<Bytes>::new()).await;
        assert!(response.body().is_end_stream());
        assert!(!is_held(&world.process().await).await);
    }

    async fn a_body_dropped_half_way_frees_the_key(world: World) {
        let (sender, body) = channel();
        let response = call(world.process().await, LockOptions::new(), body).await;
        sender.send(data("one")).unwrap();
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        drop(body);
        assert!(sender.is_closed(), "the inner body is gone");
        is_released(&world.process().await, "k").await;
    }

    async fn an_error_of_the_body_releases_the_lock_and_is_passed_on(world: World) {
        let (sender, body) = channel();
        let response = call(world.process().await, LockOptions::new(), body).await;
        sender.send(Err(std::io::Error::other("the body's own"))).unwrap();
        let mut body = response.into_body();
        let error = soon(body.frame()).await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the body's own");
        assert!(!is_held(&world.process().await).await);
        assert!(body.frame().await.is_none());
    }

    /// Also while the body has nothing to send: then only the loss can wake it.
    async fn a_lost_lock_cuts_the_body_off(world: World) {
        let (sender, body) = channel();
        let options = LockOptions::new().with_max_hold(Duration::from_millis(100));
        let response = call(world.process().await, options, body).await;
        // In a task of its own, which only the loss wakes; the handler's task was woken by it
        // before.
        let reader = tokio::spawn(async move {
            let mut body = response.into_body();
            (body.frame().await, body)
        });
        let (frame, mut body) = soon(reader).await.unwrap();
        let error = frame.unwrap().unwrap_err();
        assert!(error.downcast_ref::<LockRejection>().unwrap().is_lost());
        assert!(sender.is_closed(), "the inner body is gone");
        assert!(body.frame().await.is_none());
        is_released(&world.process().await, "k").await;
    }

    /// The clock is read before each frame, whether or not anything has woken the body.
    async fn no_frame_is_sent_after_the_lease(world: World) {
        let (sender, body) = channel();
        let options = LockOptions::new().with_max_hold(Duration::from_millis(100));
        let response = call(world.process().await, options, body).await;
        sender.send(data("too late")).unwrap();
        // Not a wait for an event: the thread itself is held up, so no timer of this runtime can
        // fire.
        std::thread::sleep(Duration::from_millis(150));
        let error = response.into_body().frame().await.unwrap().unwrap_err();
        assert!(error.downcast_ref::<LockRejection>().unwrap().is_lost());
    }

    /// The fault: a late runtime polls a waiting body after its deadline. The timer of the body is
    /// set, and cannot fire while the thread is held up.
    async fn a_waiting_body_is_not_polled_after_its_deadline(world: World) {
        let (sender, body) = channel();
        let hold = Duration::from_millis(1_000);
        let options = LockOptions::new().with_max_hold(hold);
        let response = call(world.process().await, options, body).await;
        let mut body = response.into_body();
        assert!(body.frame().now_or_never().is_none(), "there is nothing to send yet");
        sender.send(data("too late")).unwrap();
        std::thread::sleep(hold);
        let error = body.frame().now_or_never().unwrap().unwrap().unwrap_err();
        assert!(error.downcast_ref::<LockRejection>().unwrap().is_lost());
        assert!(sender.is_closed(), "the inner body is gone");
        is_released(&world.process().await, "k").await;
    }

    async fn a_request_sent_over_http_after_the_body_has_ended_is_not_refused(world: World) {
        let chunked = async || {
            let frames = stream::iter((0..5).map(|_| data("chunk")));
            AxumResponse::new(Body::new(StreamBody::new(frames)))
        };
        let mut servers = Vec::new();
        for _ in 0..2 {
            let layer = LockLayer::from_fn(world.process().await, |_| Some("k")).hold_for_body();
            let app = Router::new()
                .route("/chunked", post(chunked))
                .route("/whole", post(async || "whole"))
                .route("/empty", post(async || StatusCode::NO_CONTENT))
                .route_layer(layer);
            servers.push(Server::start(app).await);
        }
        for n in 0..60 {
            let path = ["/chunked", "/whole", "/empty"][n % 3];
            let reply = send_post(&servers[n % 2], path, &[]).await;
            assert!([200, 204].contains(&reply.status), "request {n}: {reply:?}");
        }
    }
}

#[tokio::test]
async fn without_hold_for_body_the_body_is_outside_the_lock() {
    let world = World::memory();
    let (_sender, body) = channel();
    let layer = LockLayer::from_fn(world.process().await, |_| Some("k"));
    let response = layer.layer(once(body)).oneshot(request("/")).await.unwrap();
    assert!(!is_held(&world.process().await).await);
    assert!(!response.body().is_end_stream(), "yet to be sent");
}
