use lock_core::LockClient;
use lock_tower::{ExtensionKey, LockLayer};

#[derive(Clone)]
struct UserId(u64);

fn layer(client: LockClient) {
    LockLayer::new(client, ExtensionKey::<UserId>::new("user"));
}

fn main() {}
