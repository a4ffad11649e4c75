//! A `tower` layer that handles one request at a time per key, across processes.
//!
//! Put [`LockLayer`] around a route or around any `Service<http::Request<B>>`, axum or not, and say
//! where the key comes from. Of two requests with the same key, to any instance, one is handled and
//! the other waits or is refused.
//!
//! # The rules
//!
//! 1. The key is taken from the head of the request. **No key is not "no lock"**: such a request
//!    gets 400, unless [`allow_unkeyed`](LockLayer::allow_unkeyed) lets it pass. A mistake in the
//!    program is 500, and an error in the log that names it: a `PathKey` on a route without its
//!    parameter, an [`ExtensionKey`] outside of the layer that inserts the extension, a prefix that
//!    no key can begin with.
//! 2. A request waits for the one before it only under [`with_wait`](LockLayer::with_wait);
//!    otherwise busy is 409 with `Retry-After`. If the store is down, or the outcome unknown, that
//!    is 503, and never "busy".
//! 3. The handler never runs without the lock. When the lock is lost, the handler is dropped at its
//!    next `await` and the answer is 503. It finds the [`Lease`](lock_core::Lease), with its
//!    fencing token, in the request extensions.
//! 4. The lock is held until the handler has returned its response, or with
//!    [`hold_for_body`](LockLayer::hold_for_body) until the body is sent. The release is awaited
//!    *before* the response goes out, so a client's next request never meets its own lock, and no
//!    outcome of the release changes the response.
//! 5. When the client hangs up, the handler is dropped and the lock released in the background;
//!    with [`shield`](LockLayer::shield) both go on in a task of their own. A handler that panics
//!    releases, and the panic goes on.
//! 6. Refusals are `application/problem+json`, or for gRPC a reply of trailers only, and name
//!    neither key nor holder. [`LockRejection`] is the whole table, and
//!    [`on_reject`](LockLayer::on_reject) replaces the response.
//! 7. The error type of the inner service is unchanged, and waiting takes none of its capacity: it
//!    is polled for readiness only once the lock is held.
//!
//! # Examples
//!
//! A service without a framework; the second request is refused because the key is taken:
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use lock_core::{LockClient, key, store::MemoryStore};
//! use lock_tower::{HeaderKey, LockLayer};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::builder(MemoryStore::new()).build()?;
//! let layer = LockLayer::new(client.clone(), HeaderKey::new("payment", "idempotency-key"));
//! let service = layer.layer(service_fn(async |_: Request<String>| {
//!     Ok::<_, std::convert::Infallible>(Response::new("paid".to_owned()))
//! }));
//! let request = || Request::post("/pay").header("idempotency-key", "a-1").body(String::new());
//!
//! let response = service.clone().oneshot(request()?).await?;
//! assert_eq!(response.status(), StatusCode::OK);
//!
//! // Another process holds the key.
//! let value = "a-1";
//! let guard = client.mutex(key!("payment:<value>")).lock().await?;
//! let response = service.clone().oneshot(request()?).await?;
//! assert_eq!(response.status(), StatusCode::CONFLICT);
//! assert_eq!(response.headers()["retry-after"], "1");
//! # drop(guard);
//!
//! // A request without the header has no key, and is not handled without a lock.
//! let response = service.oneshot(Request::post("/pay").body(String::new())?).await?;
//! assert_eq!(response.status(), StatusCode::BAD_REQUEST);
//! # Ok(())
//! # }
//! ```
//!
//! Customised, on one route of an axum application (feature `axum`): orders queue for a second,
//! finish even if the buyer closes the tab, and a refusal is a page of the shop.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, extract::Path, response::IntoResponse, routing::post};
//! use lock_core::{Lease, LockClient, LockOptions, store::MemoryStore};
//! use lock_tower::{LockLayer, PathKey};
//!
//! async fn order(Path(id): Path<u64>, Extension(lease): Extension<Lease>) -> String {
//!     format!("{id} ordered under number {}", lease.fencing_token())
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::builder(MemoryStore::new()).build()?;
//! let layer = LockLayer::new(client, PathKey::new("order", "id"))
//!     .with_wait(Duration::from_secs(1))
//!     .with_options(LockOptions::new().with_max_hold(Duration::from_secs(20)))
//!     .max_waiters(1_000)
//!     .max_waiters_per_key(20)
//!     .shield()
//!     .on_reject(|rejection| (rejection.status(), "please try again").into_response());
//! let app: Router = Router::new().route("/orders/{id}", post(order)).route_layer(layer);
//! # Ok(())
//! # }
//! ```
//!
//! # A key from anything asynchronous
//!
//! With axum, middleware of your own is four lines, and may read whatever it likes first:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, extract::{Request, State}, middleware::{Next, from_fn_with_state}};
//! use axum::{response::Response, routing::post};
//! use lock_core::{LockClient, key, store::MemoryStore};
//! use lock_tower::LockRejection;
//!
//! async fn one_at_a_time(
//!     State(client): State<LockClient>,
//!     request: Request,
//!     next: Next,
//! ) -> Result<Response, LockRejection> {
//!     let user_id = user_of(request.headers()).await;
//!     Ok(client.mutex(key!("user:<user_id>")).run(|_| next.run(request)).await?)
//! }
//! # async fn user_of(_: &http::HeaderMap) -> u64 { 7 }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = LockClient::builder(MemoryStore::new()).build()?;
//! let app: Router = Router::new()
//!     .route("/orders", post(async || "ordered"))
//!     .route_layer(from_fn_with_state(client, one_at_a_time));
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! **Authentication outside, the lock inside.** With a key made of an unchecked identity, any
//! client can hold any user's lock. In axum the layer that is added *last* runs first:
//!
//! ```text
//! Router::new()
//!     .route("/orders", post(order))
//!     .route_layer(lock)              // inside: runs second
//!     .route_layer(authentication)    // outside: runs first
//! ```
//!
//! Use `route_layer`: `Router::layer` wraps the 404 page too, and around a whole router there are
//! no path parameters. Put timeouts outside: then they cover the waiting. A concurrency limit
//! inside counts handlers, outside it counts waiters as well.
//!
//! # Caveats
//!
//! - **It is a lock, not a record.** A request that arrives after the one before it is done is
//!   handled. The handler itself must check, under the lock, that it does not do the same thing
//!   twice.
//! - Every request of the wrapped routes is locked, whatever its method: also a `GET`, or the
//!   `OPTIONS` of a browser. Put the layer on a
//!   [method](https://docs.rs/axum/latest/axum/routing/method_routing/struct.MethodRouter.html#method.layer),
//!   and CORS outside of it.
//! - A handler that blocks its thread is not stopped when the lock is lost, and may hold up its
//!   renewal.
//! - **Uploads are read under the lock**, since the handler reads the request body. A client that
//!   sends slowly keeps the key for as long: set
//!   [`with_max_hold`](lock_core::LockOptions::with_max_hold) or a timeout for the body.
//! - An upgrade (a websocket) ends the request at the 101, and with it the lock.
//! - The response body is made outside the lock unless it is [held for](LockLayer::hold_for_body).
//! - A lease is not mutual exclusion when the process stalls or the store fails over. Pass the
//!   fencing token to what you write to, or let a constraint of the database decide.
//! - Two layers with the same key around one handler: the inner one would wait for the outer one,
//!   so the request gets 500, and it is logged; but if the inner one is a
//!   [`shield`](LockLayer::shield), whose task does not know of the outer one, the request waits
//!   for itself until its wait ends, and is then refused as busy. The macro and `run` inside a
//!   layer with the same key are re-entrant.
//! - Nothing bounds the number of waiting requests unless [`max_waiters`](LockLayer::max_waiters)
//!   or [`max_waiters_per_key`](LockLayer::max_waiters_per_key) does.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `axum` | no | `PathKey`, `PartsKey`, and `IntoResponse` for [`LockRejection`] |
//! | `console` | no | `console`: a page that shows locks, waiters and losses, for operators |
//!
//! A feature adds types and changes nothing else.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
#[cfg(feature = "console")]
#[cfg_attr(docsrs, doc(cfg(feature = "console")))]
pub mod console;
mod future;
mod key;
mod layer;
mod rejection;
mod release;
mod service;
mod settings;
mod waiters;

pub use self::body::LockBody;
#[cfg(feature = "console")]
#[cfg_attr(docsrs, doc(cfg(feature = "console")))]
pub use self::console::{Console, console};
pub use self::future::ResponseFuture;
pub use self::key::{ExtensionKey, ExtractKey, HeaderKey, KeyRejection};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::key::{PartsKey, PathKey};
pub use self::layer::LockLayer;
pub use self::rejection::LockRejection;
pub use self::service::LockService;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
