use lock_core::LockClient;
use lock_tower::LockLayer;

fn layer(client: LockClient) {
    LockLayer::new(client, "order:{id}");
}

fn main() {}
