//! Redis servers, and what locks leave on them.

mod cluster;
mod commands;
mod leftovers;
mod migration;
mod monitor;
mod quorum;
mod replication;
pub(crate) mod scripts;
mod sentinels;
mod server;
mod standalone;

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{Error, LockClient, LockOptions};

pub use self::cluster::{FailOver, RedisCluster};
pub use self::commands::Cli;
pub use self::migration::Migration;
pub use self::monitor::{Monitor, ScriptCall};
pub use self::quorum::Quorum;
pub use self::scripts::classify;
pub use self::sentinels::{Sentinels, SentinelsBuilder};
pub use self::server::{REDIS_SERVER, RedisBuilder, RedisServer, StartError, redis_server};
pub use self::standalone::{
    DAMAGE, DAMAGED, run_cluster, run_quorum, run_sentinels, run_standalone,
};

use crate::wait::within;

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

/// The error of a client that waits for ever for a lock at `url`.
pub async fn refusal(url: &str) -> Error {
    let store = RedisStore::builder(url).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let locking = client.mutex("k").wait_forever().lock();
    within("an answer", Duration::from_secs(5), locking).await.0.unwrap_err()
}

/// The arguments of `ACL SETUSER` in the documentation of `RedisStore`: a name, and the permissions
/// that a client needs.
///
/// # Panics
///
/// If the documentation does not show them.
#[must_use]
pub fn documented_user() -> Vec<&'static str> {
    users(STORE_DOCS).next().expect("the docs show the permissions")
}

impl RedisServer {
    /// Makes the [documented user](documented_user), with these passwords and no others, and tells
    /// its name.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[allow(clippy::must_use_candidate)] // the name is always the same
    pub fn documented_user_with(&self, passwords: &[&str]) -> &'static str {
        let user = documented_user();
        let rules = user.iter().filter(|rule| !rule.starts_with('>')).map(|&rule| rule.to_owned());
        let passwords = passwords.iter().map(|password| format!(">{password}"));
        let mut command: Vec<String> = ["ACL", "SETUSER"].map(str::to_owned).into();
        command.extend(rules.chain(["resetpass".to_owned()]).chain(passwords));
        let () = self.connect().command(&command).unwrap();
        user[0]
    }
}

/// The same for a user of a cluster.
///
/// # Panics
///
/// If the documentation does not show them.
#[must_use]
pub fn documented_cluster_user() -> Vec<&'static str> {
    users(STORE_DOCS).nth(2).expect("the docs show the permissions on a cluster")
}

/// The same for a user of the sentinels.
///
/// # Panics
///
/// If the documentation does not show them.
#[must_use]
pub fn documented_sentinel_user() -> Vec<&'static str> {
    users(STORE_DOCS).nth(1).expect("the docs show the permissions on sentinels")
}

/// The arguments of each `ACL SETUSER`.
fn users(docs: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    docs.split("/// ACL SETUSER ").skip(1).map(arguments)
}

fn arguments(docs: &'static str) -> Vec<&'static str> {
    let command = docs.split("```").next().unwrap_or_default();
    // It goes on over several lines.
    command.split_whitespace().filter(|word| !matches!(*word, "\\" | "///")).collect()
}
