//! The scripts: one file per operation, constant text, every variable through KEYS and ARGV.

use std::sync::LazyLock;

use redis::{Cmd, Script as Digest};

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    digest: String,
}

pub(super) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua")));
pub(super) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
pub(super) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// Room for a digest, a name, a token and numbers.
const TYPICAL_COMMAND_LEN: usize = 256;

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: Digest::new(text).get_hash().to_owned() }
    }

    /// The call of a script that the server knows.
    pub(super) fn by_digest(&self, keys: &[&str], args: &[&str]) -> Cmd {
        Self::call("EVALSHA", &self.digest, keys, args)
    }

    /// The call that brings the text along. `SCRIPT LOAD` would need another permission, and
    /// a restart in between would undo it.
    pub(super) fn by_text(&self, keys: &[&str], args: &[&str]) -> Cmd {
        Self::call("EVAL", self.text, keys, args)
    }

    fn call(verb: &str, script: &str, keys: &[&str], args: &[&str]) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + keys.len() + args.len(), TYPICAL_COMMAND_LEN);
        cmd.arg(verb).arg(script).arg(keys.len());
        for key in keys {
            cmd.arg(key);
        }
        for arg in args {
            cmd.arg(arg);
        }
        cmd
    }
}
