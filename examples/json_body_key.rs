//! How do I lock on a value in the JSON body of a request?
//!
//! The layer sees the head of a request only. Middleware outside of it reads the body, once and up
//! to a limit, and leaves the key in an extension. The lock is taken when the body has arrived, so
//! a client that sends slowly holds no key. A handler that parses the body anyway needs no layer:
//! see `refund`.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Json, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, serve};
use lock_core::{KeyPart, LockClient, key, store};
use lock_tower::{ExtensionKey, LockLayer, LockRejection};
use serde::Deserialize;

#[derive(Clone, Deserialize, KeyPart)]
struct Account(u64);

#[derive(Deserialize)]
struct Payment {
    account: Account,
    cents: u64,
}

/// Reads the body and puts it back, and gives the layer the account that it names.
async fn find_account(request: Request, next: Next) -> Result<Response, Response> {
    #[derive(Deserialize)]
    struct Named {
        account: Account,
    }
    let (parts, body) = request.into_parts();
    // At most 2 MB, or what the router's `DefaultBodyLimit` says; more is refused with 413.
    let bytes = Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await;
    let bytes = bytes.map_err(IntoResponse::into_response)?;
    let named: Named = serde_json::from_slice(&bytes)
        .map_err(|_| (StatusCode::BAD_REQUEST, "the body names no account").into_response())?;
    let mut request = Request::from_parts(parts, Body::from(bytes));
    request.extensions_mut().insert(named.account);
    Ok(next.run(request).await)
}

async fn pay(Json(payment): Json<Payment>) -> String {
    format!("paid {} to account {}", payment.cents, payment.account.0)
}

/// Excludes `pay` for the same account: the key is the same.
async fn refund(
    State(client): State<LockClient>,
    Json(payment): Json<Payment>,
) -> Result<String, LockRejection> {
    let account = &payment.account;
    let mutex = client.mutex(key!("account:<account>")).without_wait();
    Ok(mutex.run(async |_| format!("refunded {} to account {}", payment.cents, account.0)).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let lock = LockLayer::new(client.clone(), ExtensionKey::<Account>::new("account"));
    let app = Router::new()
        .route("/payments", post(pay))
        .route_layer(lock) // inside: runs second
        .route_layer(from_fn(find_account)) // outside: runs first
        .route("/refunds", post(refund))
        .with_state(client);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(serve(listener, app).await?)
}
