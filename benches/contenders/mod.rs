//! Who is measured: one file each, all behind one trait.

mod ours;
mod raw;

#[cfg(feature = "peers")]
mod async_redis_lock;
#[cfg(feature = "peers")]
mod distkit;
#[cfg(feature = "peers")]
mod distributed_lock_redis;
#[cfg(feature = "peers")]
mod nadis;
#[cfg(feature = "peers")]
mod redlock;
#[cfg(feature = "peers")]
mod rlock;
#[cfg(feature = "peers")]
mod rslock;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::support::machine;

/// The lease, where a cell does not need a shorter one.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// What runs while the lock is held.
pub(crate) type Body<'a> = BoxFuture<'a, ()>;

/// A lock, used as its documentation says.
pub(crate) trait Contender: Send + Sync {
    /// Takes `key`, however long that takes, runs `body`, and gives the key back.
    fn section<'a>(&'a self, key: &'a str, body: Body<'a>) -> BoxFuture<'a, ()>;
}

/// What all contenders are given.
pub(crate) struct Terms {
    pub(crate) url: String,
    pub(crate) ttl: Duration,
}

impl Terms {
    pub(crate) fn new(url: &str, ttl_ms: u64) -> Self {
        Self { url: url.to_owned(), ttl: Duration::from_millis(ttl_ms) }
    }

    pub(crate) fn with_ttl(url: &str, ttl: Duration) -> Self {
        Self { url: url.to_owned(), ttl }
    }
}

/// A contender before it is connected.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The package in Cargo.lock.
    package: &'static str,
    /// How it waits, and what else a reader of its figures must know.
    pub(crate) about: &'static str,
    /// The commands that it sends outside of scripts: see `Usage::commands_since`.
    pub(crate) plain: &'static [&'static str],
    /// Whether it can wait for another holder at all.
    pub(crate) waits: bool,
    /// Whether it renews by itself what it holds.
    pub(crate) renews: bool,
    pub(crate) peer: bool,
    /// The shortest lease that it takes.
    pub(crate) least_ttl: Duration,
    connect: for<'a> fn(&'a Terms) -> BoxFuture<'a, Arc<dyn Contender>>,
}

impl Kind {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().copied().find(|kind| kind.name == name)
    }

    pub(crate) async fn connect(&self, terms: &Terms) -> Arc<dyn Contender> {
        (self.connect)(terms).await
    }

    pub(crate) fn version(&self) -> String {
        format!("{} {}", self.package, machine::version_of(self.package))
    }
}

pub(crate) static ALL: &[&Kind] = &[
    &raw::KIND,
    &ours::FENCED,
    &ours::UNFENCED,
    #[cfg(feature = "peers")]
    &rslock::KIND,
    #[cfg(feature = "peers")]
    &rlock::KIND,
    #[cfg(feature = "peers")]
    &async_redis_lock::KIND,
    #[cfg(feature = "peers")]
    &distkit::KIND,
    #[cfg(feature = "peers")]
    &distributed_lock_redis::KIND,
    #[cfg(feature = "peers")]
    &nadis::KIND,
    #[cfg(feature = "peers")]
    &redlock::KIND,
];

pub(crate) const RAW: &str = "raw";
pub(crate) const FENCED: &str = "lock-core";
pub(crate) const UNFENCED: &str = "lock-core unfenced";
pub(crate) const RSLOCK: &str = "rslock";
