//! What the tests on real servers share: a Redis of their own, a proxy that injects faults, and ways
//! to wait for a condition instead of a time.
//!
//! ```no_run
//! use lock_tests::{Action, Op, Proxy, RedisServer};
//!
//! # async fn test() {
//! let server = RedisServer::start();
//! let proxy = Proxy::to(&server);
//! let lost = proxy.rule(Op::Release, Action::LoseReply).once();
//! let client = lock_tests::client(&proxy.url()).await;
//! client.mutex("k").lock().await.unwrap().release().await.unwrap();
//! assert_eq!(lost.hits(), 1);
//! # }
//! ```
// A harness is not published, fails by panicking, its threads and clocks are not those of a lock, and what it tears down may be
// gone already.
#![allow(
    clippy::exhaustive_enums,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    let_underscore_drop
)]

mod dice;
pub mod dropped;
mod experiment;
// The parser of templates would bring its own unit tests along.
#[cfg(not(test))]
#[path = "../fuzz/bodies/mod.rs"]
pub mod fuzz;
pub mod history;
mod process;
mod proxy;
mod remains;
mod resp;
mod scripts;
mod server;
mod trace;
mod wait;

pub use self::dice::Dice;
pub use self::experiment::{Experiment, REPORT};
pub use self::process::{Signal, send_signal};
pub use self::proxy::{Action, Gate, Message, Op, Proxy, Rule, RuleBuilder};
pub use self::scripts::classify;
pub use self::server::{Cli, RedisServer, documented_user, free_port};
pub use self::trace::Trace;
pub use self::wait::{eventually, eventually_some, within};

use std::str::FromStr;
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};

/// A client with the namespace `lock` on the server at `url`, whose locks inherit a ttl of 10 s and a wait of 5 s.
pub async fn client(url: &str) -> LockClient {
    client_with(url, LockOptions::new()).await
}

/// As [`client`], with other options to inherit.
pub async fn client_with(url: &str, defaults: LockOptions) -> LockClient {
    let store = RedisStore::connect(url).await.unwrap();
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}

/// How often a heavy test does what it does: `small` times, or as many times more as `LOCK_TESTS_DOSE` says.
///
/// # Panics
///
/// If that is no number, or nothing would be done.
#[must_use]
pub fn dose(small: usize) -> usize {
    let dose: usize = number("LOCK_TESTS_DOSE").unwrap_or(1);
    assert!(dose > 0, "LOCK_TESTS_DOSE=0: nothing is to be done");
    small * dose
}

/// What the environment says under this name, if it says something.
///
/// # Panics
///
/// If that is no such number.
#[must_use]
pub fn number<N: FromStr>(name: &str) -> Option<N> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name}={}: not such a number", text.to_string_lossy())))
}

/// Milliseconds, which most tests count in.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
