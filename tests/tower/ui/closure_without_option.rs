use lock_core::LockClient;
use lock_tower::LockLayer;

fn layer(client: LockClient) {
    LockLayer::from_fn(client, |parts| parts.uri.path().to_owned());
}

fn main() {}
