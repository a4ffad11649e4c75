//! Redis servers, and what locks leave on them.

mod leftovers;
pub(crate) mod scripts;
mod server;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};

pub use self::scripts::classify;
pub use self::server::{Cli, RedisServer, documented_user, free_port};

/// A client with the namespace `lock` on the server at `url`, whose locks have a ttl of 10 s and a
/// wait of 5 s by default.
pub async fn client(url: &str) -> LockClient {
    client_with(url, LockOptions::new()).await
}

/// As [`client`], with other default options.
pub async fn client_with(url: &str, defaults: LockOptions) -> LockClient {
    let store = RedisStore::connect(url).await.unwrap();
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}
