//! The routes of a console.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt as _;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde_json::json;
use tokio::time::timeout;

use super::csrf;
use super::feed::Reading;
use super::page::{HEADERS, page};
use super::release::{Outcome, Refusal, Wanted};
use super::view::Observer;

/// Longer than any request of the page.
const BODY_LIMIT: usize = 4 * 1024;
/// How soon the page comes back after its events have ended.
const RETRY: Duration = Duration::from_secs(2);
/// How long a page gets events for one request. Then it sends another, which passes your
/// authentication again.
const LIFE: Duration = Duration::from_secs(5 * 60);
/// Each viewer keeps a connection and a copy of what it is sent.
const MOST_VIEWERS: usize = 64;

pub(super) fn router<S>(observer: Arc<Observer>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Router::new()
        .route("/", get(show))
        .route("/events", get(events))
        .route("/release", post(release))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(observer)
}

async fn show(State(observer): State<Arc<Observer>>, headers: HeaderMap) -> Response {
    match page(observer.settings, &headers) {
        Ok(page) => with_headers(page),
        Err(_) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "the operating system gives no randomness for the page's token",
        ),
    }
}

async fn events(State(observer): State<Arc<Observer>>) -> Response {
    if observer.viewers() >= MOST_VIEWERS {
        return problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "this console is open in too many windows: close some",
        );
    }
    let events = live(&observer).map(Ok::<_, Infallible>);
    let events = Sse::new(events).keep_alive(KeepAlive::default());
    // nginx would collect the events otherwise.
    with_headers(([("x-accel-buffering", "no")], events).into_response())
}

/// What changes, until the viewer leaves, the client drains or the page has to ask again.
fn live(observer: &Arc<Observer>) -> impl Stream<Item = Event> + Send + use<> {
    let event = |name| {
        move |reading: Reading| Event::default().event(name).retry(RETRY).data(reading.with_age())
    };
    let process = observer.watch_process().map(event("process"));
    let store = observer.watch_store().map(event("store"));
    let draining = observer.client.draining();
    // Without an end, a server that shuts down gracefully would wait for its viewers.
    let end = async move {
        match timeout(LIFE, draining).await {
            Ok(()) => "draining",
            Err(_) => "again",
        }
    };
    let end = end.boxed().shared();
    let last = stream::once(end.clone());
    let last = last.map(|name| Event::default().event(name).retry(RETRY).data("{}"));
    stream::select(process, store).take_until(end).chain(last)
}

async fn release(
    State(observer): State<Arc<Observer>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !observer.settings.force {
        return problem(
            StatusCode::FORBIDDEN,
            "this console only looks: call `allow_force_release` where it is made",
        );
    }
    if let Err(why) = csrf::check(&headers, &uri) {
        tracing::warn!(target: "lock_tower", why, "force release refused");
        return problem(StatusCode::FORBIDDEN, why);
    }
    let content_type = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    let wanted = if content_type == Some(b"application/json") { Wanted::read(&body) } else { None };
    let Some(wanted) = wanted else {
        return problem(
            StatusCode::BAD_REQUEST,
            "the request does not name an owner: reload the page",
        );
    };
    match wanted.take(&observer).await {
        Ok(text) => {
            let body = json!({ "outcome": Outcome::Done.as_str(), "text": text });
            json_response(StatusCode::OK, "application/json", &body)
        }
        Err(Refusal { status, outcome, detail }) => problem_after(status, outcome, &detail),
    }
}

fn problem(status: StatusCode, detail: &str) -> Response {
    problem_after(status, Outcome::Nothing, detail)
}

fn problem_after(status: StatusCode, outcome: Outcome, detail: &str) -> Response {
    let title = status.canonical_reason();
    let body = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
        "outcome": outcome.as_str(),
    });
    json_response(status, "application/problem+json", &body)
}

fn json_response(status: StatusCode, content_type: &str, body: &serde_json::Value) -> Response {
    with_headers((status, [(header::CONTENT_TYPE, content_type)], body.to_string()).into_response())
}

fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}
