//! The routes: one for each way to order, a few to look on, and the page.

mod error;
mod user;
mod watch;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use lock_core::{Lease, LockClient, key};
use lock_tower::{Console, LockLayer, PartsKey};
use tower_http::cors::CorsLayer;
use tower_http::set_header::SetResponseHeaderLayer;

pub use self::user::{USER_HEADER, User};
use crate::db::Database;
use crate::service::{OrderError, OrderService, Outcome};

/// Names the instance that has answered.
pub const INSTANCE_HEADER: HeaderName = HeaderName::from_static("x-instance");

/// What the page sells, one for each way to order.
pub const PAGE_VOUCHERS: [&str; 3] = ["page-none", "page-macro", "page-layer"];

/// All routes of an instance.
///
/// `peers` are the origins of other instances: their pages may press this one's buttons. The
/// `console` shows the locks at `/locks`; a service would put its authentication around it.
pub fn router(
    service: OrderService,
    db: Database,
    locks: LockClient,
    name: HeaderValue,
    peers: Vec<HeaderValue>,
    console: Option<Console>,
) -> Router {
    orders(service, locks)
        .merge(watch::router(db, &name, &peers))
        .route("/", get(|| async { Html(include_str!("../../page/index.html")) }))
        .layer(
            CorsLayer::new()
                .allow_origin(peers)
                .allow_methods([Method::GET, Method::POST])
                .allow_headers([USER_HEADER])
                .expose_headers([INSTANCE_HEADER]),
        )
        // After the layer above, so outside of it: other origins have no business there.
        .merge(console.map_or_else(Router::new, |console| {
            let console: Router = console.into_router();
            Router::new().nest_service("/locks", console.layer(from_fn(by_local_name)))
        }))
        .layer(SetResponseHeaderLayer::overriding(INSTANCE_HEADER, name))
}

/// Refuses names other than this machine's own. A page of another site, under a name that resolves
/// to the loopback address, would else be of the console's origin.
async fn by_local_name(request: Request, next: Next) -> Result<Response, StatusCode> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host.map(|host| host.rsplit_once(':').map_or(host, |(name, _port)| name));
    match name {
        Some("127.0.0.1" | "localhost" | "[::1]") => Ok(next.run(request).await),
        _ => Err(StatusCode::NOT_FOUND),
    }
}

/// The three ways to order.
fn orders(service: OrderService, locks: LockClient) -> Router {
    // `User` refuses strangers before there is a key, so they cannot hold up anybody's order.
    let one_at_a_time = LockLayer::new(
        locks,
        PartsKey::new(|(User(user), Path(voucher)): (User, Path<String>)| {
            Some(key!("order:<voucher>:<user>"))
        }),
    );

    Router::new()
        .route("/none/vouchers/{voucher}/orders", post(order_unlocked))
        .route("/macro/vouchers/{voucher}/orders", post(order))
        .route(
            "/layer/vouchers/{voucher}/orders",
            post(order_under_layer).route_layer(one_at_a_time),
        )
        .with_state(service)
}

async fn order_unlocked(
    State(service): State<OrderService>,
    User(user): User,
    Path(voucher): Path<String>,
) -> Result<Outcome, OrderError> {
    service.order_unlocked(&voucher, user).await
}

async fn order(
    State(service): State<OrderService>,
    User(user): User,
    Path(voucher): Path<String>,
) -> Result<Outcome, OrderError> {
    service.order(&voucher, user).await
}

async fn order_under_layer(
    State(service): State<OrderService>,
    Extension(lease): Extension<Lease>,
    User(user): User,
    Path(voucher): Path<String>,
) -> Result<Outcome, OrderError> {
    service.order_under(&lease, &voucher, user).await
}

impl IntoResponse for Outcome {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Ordered(_) => StatusCode::CREATED,
            Self::AlreadyOrdered(_) => StatusCode::OK,
        };
        (status, Json(self)).into_response()
    }
}
