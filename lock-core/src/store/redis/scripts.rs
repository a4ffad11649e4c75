//! The scripts: one file for each operation, constant text, every variable in KEYS and ARGV.

use std::sync::LazyLock;

use redis::Script as Digest;

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) digest: String,
}

pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/shared.lua"), include_str!("scripts/acquire.lua")))
});
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/shared.lua"), include_str!("scripts/release.lua")))
});
pub(crate) static FREE: &str = include_str!("scripts/free.lua");
pub(crate) static INSPECT: &str = include_str!("scripts/inspect.lua");
pub(crate) static FORCE_RELEASE: &str =
    concat!(include_str!("scripts/shared.lua"), include_str!("scripts/force_release.lua"));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));

#[cfg(feature = "redis-quorum")]
pub(crate) static VOTE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/vote.lua")));
/// Leaves a mark of its former owner in a lock that a quorum takes from that owner.
#[cfg(feature = "redis-quorum")]
pub(crate) static REVOKE: &str = include_str!("scripts/revoke.lua");

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: Digest::new(text).get_hash().to_owned() }
    }
}
