use axum::extract::State;
use lock_core::LockClient;
use lock_tower::{LockLayer, PartsKey};

#[derive(Clone)]
struct App {
    shop: String,
}

fn layer(client: LockClient) {
    LockLayer::new(client, PartsKey::new(|State(app): State<App>| Some(app.shop)));
}

fn main() {}
