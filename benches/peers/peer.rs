//! What every peer implements and describes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

pub(crate) const RAW: &str = "raw";
pub(crate) const FENCED: &str = "lock-core";
/// The same, whose grants a replica has confirmed.
pub(crate) const FENCED_WITH_ACKS: &str = "lock-core, 1 acknowledgement";
pub(crate) const RSLOCK: &str = "rslock";

/// The lease, unless a scenario needs a shorter one.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// The body of a critical section.
pub(crate) type Body<'a> = BoxFuture<'a, ()>;

/// A lock, used as its documentation recommends.
pub(crate) trait Peer: Send + Sync {
    /// Acquires `key`, waiting as long as it takes, runs `body` and releases `key`.
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()>;
}

/// The settings that every peer gets.
pub(crate) struct Config {
    /// One URL, or several with spaces between, for what takes them.
    pub(crate) url: String,
    pub(crate) ttl: Duration,
}

impl Config {
    /// The servers, if there are several.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.url.split_whitespace().collect()
    }

    pub(crate) fn new(url: &str, ttl_ms: u64) -> Self {
        Self { url: url.to_owned(), ttl: Duration::from_millis(ttl_ms) }
    }

    pub(crate) fn with_ttl(url: &str, ttl: Duration) -> Self {
        Self { url: url.to_owned(), ttl }
    }
}

/// The description of a peer, from which it is connected.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The package in Cargo.lock.
    pub(crate) package: &'static str,
    /// How it waits, and what else a reader needs to know to judge its figures.
    pub(crate) about: &'static str,
    /// The commands that it sends outside of scripts: see `Usage::commands_since`.
    pub(crate) plain: &'static [&'static str],
    /// Whether it can wait while another client holds the lock.
    pub(crate) waits: bool,
    /// Whether it renews held locks by itself.
    pub(crate) renews: bool,
    pub(crate) third_party: bool,
    /// The shortest lease that it accepts.
    pub(crate) least_ttl: Duration,
    pub(super) connect: for<'a> fn(&'a Config) -> BoxFuture<'a, Arc<dyn Peer>>,
}

impl Kind {
    pub(crate) async fn connect(&self, config: &Config) -> Arc<dyn Peer> {
        (self.connect)(config).await
    }
}
