//! The values by name. Rejects unknown names, names given twice, and values without a name.

use proc_macro2::Ident;
use syn::Expr;

use crate::args::{Arg, Args, word};
use crate::messages::{self, Mistakes};
use crate::nearest;

/// The values that were given, by name, in the order in which they were written.
#[derive(Default)]
pub(super) struct Values<'a> {
    named: Vec<(&'a Ident, &'a Expr)>,
    /// What was probably meant as the key. A second message about a missing key would be noise.
    maybe_key: Option<&'a Expr>,
}

/// All arguments, in the order in which the message lists them.
const ARGUMENTS: [&str; 15] = [
    "key",
    "ttl",
    "wait",
    "max_hold",
    "min_hold",
    "renew",
    "fencing",
    "turns_for_others",
    "options",
    "client",
    "lease",
    "on_busy",
    "on_error",
    "on_lost",
    "crate",
];

/// The names that other libraries use for these arguments.
const SYNONYMS: [(&str, &[&str]); 11] = [
    ("key", &["name", "prefix", "id", "resource", "lock"]),
    ("ttl", &["expire", "expires", "expiry", "expiration", "lease_time", "duration", "ex", "px"]),
    ("wait", &["timeout", "wait_time", "wait_timeout", "acquire_timeout", "blocking", "retry"]),
    ("max_hold", &["lock_at_most_for", "at_most", "max"]),
    ("min_hold", &["lock_at_least_for", "at_least", "min"]),
    ("renew", &["renewal", "auto_renew", "watchdog", "extend", "auto_extend"]),
    ("fencing", &["fence", "fenced", "fencing_token"]),
    ("options", &["config", "defaults", "opts", "settings"]),
    ("client", &["store", "backend", "pool", "redis", "connection"]),
    ("lease", &["guard", "bind"]),
    ("on_busy", &["busy", "on_locked", "on_conflict", "on_timeout", "fallback"]),
];

impl<'a> Values<'a> {
    pub(super) fn read(args: &'a Args, mistakes: &mut Mistakes) -> Self {
        let mut values = Self::default();
        for arg in &args.list {
            let (name, value) = match arg {
                Arg::Named { name, value } => (name, value),
                Arg::Bare(value) => {
                    mistakes.push(match word(value).filter(|name| is_argument(name)) {
                        Some(name) => messages::no_value(name),
                        None => messages::no_name(value),
                    });
                    values.maybe_key.get_or_insert(value);
                    continue;
                }
            };
            if values.named.iter().any(|(seen, _)| *seen == name) {
                mistakes.push(messages::argument_twice(name));
                continue;
            }
            values.named.push((name, value));
            if !is_argument(name) {
                let nearest = nearest_argument(&name.to_string());
                mistakes.push(messages::unknown_argument(name, nearest, &ARGUMENTS));
                if nearest == Some("key") {
                    values.maybe_key.get_or_insert(value);
                }
            }
        }
        values
    }

    pub(super) fn key(&self) -> Option<&'a Expr> {
        self.get("key").or(self.maybe_key)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Expr> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a Ident, &'a Expr)> {
        self.named.iter().copied()
    }
}

fn is_argument(name: &Ident) -> bool {
    ARGUMENTS.iter().any(|known| name == known)
}

fn nearest_argument(text: &str) -> Option<&'static str> {
    SYNONYMS
        .iter()
        .find(|(_, synonyms)| synonyms.contains(&text))
        .map(|(argument, _)| *argument)
        .or_else(|| nearest::nearest(text, ARGUMENTS))
}
