//! Redis servers, and what locks leave on them.

mod commands;
mod leftovers;
pub(crate) mod scripts;
mod server;
mod standalone;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};

pub use self::commands::Cli;
pub use self::scripts::classify;
pub use self::server::{RedisBuilder, RedisServer, StartError, redis_server};
pub use self::standalone::run_standalone;

const STORE_DOCS: &str = include_str!("../../../../lock-core/src/store/redis/mod.rs");

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

/// The arguments of `ACL SETUSER` in the documentation of `RedisStore`: a name, and the permissions
/// that a client needs.
///
/// # Panics
///
/// If the documentation does not show them.
#[must_use]
pub fn documented_user() -> Vec<&'static str> {
    let docs =
        STORE_DOCS.split_once("/// ACL SETUSER ").and_then(|(_, docs)| docs.split_once("```"));
    let (command, _) = docs.expect("the docs show the permissions");
    // It goes on over several lines.
    command.split_whitespace().filter(|word| !matches!(*word, "\\" | "///")).collect()
}
