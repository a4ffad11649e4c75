//! What the page looks at: the instance, and the books of a voucher.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::db::{Audit, Database, Order, Voucher};
use crate::service::OrderError;

/// The page has room for about this many.
const LATEST_ORDERS: u32 = 12;

#[derive(Clone, Debug)]
struct Watch {
    db: Database,
    instance: Arc<Instance>,
}

#[derive(Debug, Serialize)]
struct Instance {
    name: String,
    peers: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Of {
    user: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Books {
    voucher: Voucher,
    #[serde(flatten)]
    audit: Audit,
    /// How many orders the user in question has.
    of_user: Option<i64>,
    latest: Vec<Order>,
}

pub(super) fn router(db: Database, name: &HeaderValue, peers: &[HeaderValue]) -> Router {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let instance = Instance { name: text(name), peers: peers.iter().map(text).collect() };
    Router::new()
        .route("/instance", get(instance_info))
        .route("/vouchers/{voucher}", get(books))
        .route("/vouchers/{voucher}/start-over", post(start_over))
        .with_state(Watch { db, instance: Arc::new(instance) })
}

async fn instance_info(State(watch): State<Watch>) -> Response {
    Json(&*watch.instance).into_response()
}

async fn books(
    State(Watch { db, .. }): State<Watch>,
    Path(code): Path<String>,
    Query(of): Query<Of>,
) -> Result<Response, OrderError> {
    let Some(voucher) = db.voucher(&code).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let audit = db.audit(&voucher).await?;
    let of_user = match of.user {
        Some(user) => Some(db.orders_of(&code, user).await?),
        None => None,
    };
    let latest = db.latest_orders(&code, LATEST_ORDERS).await?;
    Ok(Json(Books { voucher, audit, of_user, latest }).into_response())
}

async fn start_over(
    State(Watch { db, .. }): State<Watch>,
    Path(code): Path<String>,
) -> Result<StatusCode, OrderError> {
    db.start_over(&code).await?;
    Ok(StatusCode::NO_CONTENT)
}
