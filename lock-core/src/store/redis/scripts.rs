//! The scripts: one file per operation, constant text, every variable through KEYS and ARGV.

use std::sync::LazyLock;

use redis::Script as Digest;

/// A script and its digest.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) digest: String,
}

pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/queue.lua"), include_str!("scripts/acquire.lua")))
});
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("scripts/queue.lua"), include_str!("scripts/release.lua")))
});
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: Digest::new(text).get_hash().to_owned() }
    }
}
