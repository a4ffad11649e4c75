//! The response when there is no order.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use lock_tower::LockRejection;
use serde_json::json;
use tracing::error;

use crate::error::OrderError;

impl IntoResponse for OrderError {
    fn into_response(self) -> Response {
        match self {
            Self::SoldOut => {
                (StatusCode::GONE, Json(json!({ "outcome": "sold_out" }))).into_response()
            }
            Self::Overtaken => (
                StatusCode::SERVICE_UNAVAILABLE,
                [(RETRY_AFTER, "1")],
                Json(json!({ "outcome": "overtaken" })),
            )
                .into_response(),
            // Busy, unavailable, lost: the same answers as from the layer.
            Self::Lock(error) => LockRejection::from(error).into_response(),
            Self::Database(error) => {
                error!(%error, "the database failed");
                (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "outcome": "database_error" })))
                    .into_response()
            }
        }
    }
}
