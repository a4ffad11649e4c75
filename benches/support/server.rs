//! The redis-server of a run.

use std::collections::BTreeMap;
use std::env::current_exe;
use std::time::Duration;

use lock_testkit::RedisServer;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::machine::{self, Cores};

/// How long the server may be busy with the peers' commands before it must answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A redis-server without persistence, on a free port of the loopback. It ends on drop, and with
/// this process.
pub(crate) struct Server {
    _process: RedisServer,
    pub(crate) url: String,
    admin: MultiplexedConnection,
    pub(crate) version: String,
}

impl Server {
    pub(crate) async fn start(cores: Cores) -> Self {
        let program = current_exe().unwrap().into_os_string();
        let core = cores.server().map_or_else(|| "-".to_owned(), |core| core.to_string());
        let command = [program, machine::HIDDEN_OPTION.into(), core.into(), "redis-server".into()];
        let process = RedisServer::builder().command(command).start();
        let url = process.url();
        let client = redis::Client::open(url.as_str()).unwrap();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let mut admin = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut admin).await.unwrap();
        let version = field(&info, "redis_version").to_owned();
        Self { _process: process, url, admin, version }
    }

    /// What the server has done up to now.
    pub(crate) async fn usage(&self) -> Usage {
        let mut admin = self.admin.clone();
        let ask = redis::cmd("INFO").arg("cpu").arg("commandstats").to_owned();
        let info: String = ask.query_async(&mut admin).await.unwrap();
        let seconds = |name| field(&info, name).parse::<f64>().unwrap();
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Usage { calls: calls.collect(), cpu: seconds("used_cpu_user") + seconds("used_cpu_sys") }
    }

    pub(crate) async fn flush(&self) {
        let mut admin = self.admin.clone();
        redis::cmd("FLUSHALL").exec_async(&mut admin).await.unwrap();
    }

    /// The shortest time to live, in milliseconds, of the keys that have one, and how many have.
    pub(crate) async fn shortest_ttl(&self) -> (i64, usize) {
        let mut admin = self.admin.clone();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
        let mut ask = redis::pipe();
        for key in &keys {
            ask.cmd("PTTL").arg(key);
        }
        let mut left: Vec<i64> = ask.query_async(&mut admin).await.unwrap();
        left.retain(|left| *left > 0);
        (left.iter().copied().min().unwrap_or(0), left.len())
    }

    /// When the one lock that is held expires, as a stamp of our clock.
    pub(crate) async fn expiry_of_lock(&self) -> u64 {
        let mut admin = self.admin.clone();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
        let mut expiry = None;
        for key in &keys {
            let mut ask = redis::pipe();
            ask.cmd("TYPE").arg(key).cmd("PEXPIRETIME").arg(key).cmd("TIME");
            let (kind, at_ms, (seconds, micros)): (String, i64, (i64, i64)) =
                ask.query_async(&mut admin).await.unwrap();
            // Locks are strings, with one peer hashes; what else expires are queues.
            if matches!(kind.as_str(), "string" | "hash") && at_ms > 0 {
                let left_us = at_ms * 1000 - (seconds * 1_000_000 + micros);
                assert!(expiry.is_none(), "more than one key could be the lock");
                expiry = Some(super::clock::now().saturating_add_signed(left_us * 1000));
            }
        }
        expiry.expect("the lock is held")
    }

    /// The round trip of a PING on a bare connection, one task: nanoseconds of each.
    pub(crate) async fn pings(&self, count: usize) -> Vec<u64> {
        let mut admin = self.admin.clone();
        let mut took = Vec::with_capacity(count);
        for _ in 0..count {
            let sent = super::clock::now();
            redis::cmd("PING").exec_async(&mut admin).await.unwrap();
            took.push(super::clock::now() - sent);
        }
        took
    }
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("0").trim()
}

/// Counters of the server; the difference of two says what happened between.
pub(crate) struct Usage {
    calls: BTreeMap<String, u64>,
    /// Seconds.
    pub(crate) cpu: f64,
}

/// Commands that no script calls.
const NEVER_IN_SCRIPTS: [&str; 7] =
    ["eval", "evalsha", "fcall", "hello", "script|load", "subscribe", "unsubscribe"];

impl Usage {
    /// The commands that clients sent since `before`.
    ///
    /// `INFO commandstats` adds up the commands of clients and those called by scripts. This
    /// therefore counts commands that scripts never call, and those in `plain`, which the peer
    /// sends itself.
    pub(crate) fn commands_since(&self, before: &Self, plain: &[&str]) -> u64 {
        let sent = |name: &str| NEVER_IN_SCRIPTS.contains(&name) || plain.contains(&name);
        let calls = self.calls.iter().filter(|(name, _)| sent(name));
        calls.map(|(name, calls)| calls - before.calls.get(name).unwrap_or(&0)).sum()
    }
}
