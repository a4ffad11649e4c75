use lock_core::LockClient;
use lock_tower::LockLayer;

fn layer(client: LockClient) {
    LockLayer::from_fn(client, |_| Some(7));
}

fn main() {}
