//! How do I lock a route, one request at a time per user?

use axum::{Router, extract::Path, routing::post};
use lock_core::{LockClient, store};
use lock_tower::{LockLayer, PathKey};

async fn order(Path(user): Path<u64>) -> String {
    format!("ordered for user {user}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let lock = LockLayer::new(client, PathKey::new("order", "user"));
    let app = Router::new().route("/orders/{user}", post(order)).route_layer(lock);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
