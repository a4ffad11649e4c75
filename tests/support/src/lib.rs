//! What tests on real servers share: a Redis server, a proxy that injects faults, processes, checks
//! of who held a lock when, and ways to wait for a condition instead of a time.
//!
//! ```no_run
//! use lock_testkit::{Action, Op, Proxy, RedisServer};
//!
//! # async fn test() {
//! let server = RedisServer::start();
//! let proxy = Proxy::to(&server);
//! let lost = proxy.rule(Op::Release, Action::LoseReply).once();
//! let client = lock_testkit::client(&proxy.url()).await;
//! client.mutex("k").lock().await.unwrap().release().await.unwrap();
//! assert_eq!(lost.hits(), 1);
//! # }
//! ```
// The kit is not published and fails by panicking. Its threads and clocks are not those of a lock.
// What it tears down may be gone already.
#![allow(
    clippy::exhaustive_enums,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    let_underscore_drop
)]

mod alone;
mod causes;
#[cfg(feature = "certificates")]
mod certificates;
mod child;
mod experiment;
mod fencing;
pub mod history;
mod log_capture;
mod op;
mod port;
mod process;
mod proxy;
mod redis;
mod rng;
mod scale;
mod skip;
mod wait;

pub use self::alone::alone;
pub use self::causes::with_causes;
#[cfg(feature = "certificates")]
pub use self::certificates::Certificates;
pub use self::child::{ChildProcess, Line, NotReady};
pub use self::experiment::{Experiment, REPORT, is_due};
pub use self::fencing::set_if_newer;
pub use self::log_capture::LogCapture;
pub use self::op::Op;
pub use self::port::free_port;
pub use self::process::{Signal, send_signal, stdin_closed};
pub use self::proxy::{Action, Gate, Message, Proxy, Rule, RuleBuilder};
pub use self::redis::{
    Cli, DAMAGE, DAMAGED, FailOver, Migration, Monitor, Quorum, REDIS_SERVER, RedisBuilder,
    RedisCluster, RedisServer, ScriptCall, Sentinels, SentinelsBuilder, StartError, classify,
    client, client_with, documented_cluster_user, documented_sentinel_user, documented_user,
    redis_server, refusal, run_cluster, run_quorum, run_sentinels, run_standalone,
};
pub use self::rng::Rng;
pub use self::scale::{number, scale};
pub use self::skip::skip;
pub use self::wait::{eventually, eventually_some, within};

use std::time::Duration;

use tempfile::TempDir;

/// Milliseconds, which most tests count in.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A directory for what a test writes, removed on drop.
#[must_use]
pub fn temp_dir(name: &str) -> TempDir {
    tempfile::Builder::new().prefix(&format!("lock-tests-{name}-")).tempdir().unwrap()
}
