//! The arguments by name: unknown ones, doubled ones, ones without a name.

use proc_macro2::{Ident, Span};
use syn::{Error, Expr};

use super::{Mistakes, at, list, word};
use crate::args::{Arg, Args};
use crate::nearest;

/// The values by name.
#[derive(Default)]
pub(super) struct Values<'a> {
    pub(super) key: Option<&'a Expr>,
    pub(super) client: Option<&'a Expr>,
    pub(super) lease: Option<&'a Expr>,
    pub(super) on_busy: Option<&'a Expr>,
    pub(super) on_error: Option<&'a Expr>,
    pub(super) on_lost: Option<&'a Expr>,
    pub(super) root: Option<&'a Expr>,
    pub(super) settings: Vec<(&'a Ident, &'a Expr)>,
}

/// Every argument there is, as the message lists them.
const ARGUMENTS: [&str; 12] = [
    "key", "ttl", "wait", "max_hold", "min_hold", "renew", "client", "lease", "on_busy",
    "on_error", "on_lost", "crate",
];

/// What other libraries call our arguments.
const SYNONYMS: [(&str, &[&str]); 9] = [
    ("key", &["name", "prefix", "id", "resource", "lock"]),
    ("ttl", &["expire", "expires", "expiry", "expiration", "lease_time", "duration", "ex", "px"]),
    ("wait", &["timeout", "wait_time", "wait_timeout", "acquire_timeout", "blocking", "retry"]),
    ("max_hold", &["lock_at_most_for", "at_most", "max"]),
    ("min_hold", &["lock_at_least_for", "at_least", "min"]),
    ("renew", &["renewal", "auto_renew", "watchdog", "extend", "auto_extend"]),
    ("client", &["store", "backend", "pool", "redis", "connection"]),
    ("lease", &["guard", "bind"]),
    ("on_busy", &["busy", "on_locked", "on_conflict", "on_timeout", "fallback"]),
];

impl<'a> Values<'a> {
    pub(super) fn read(args: &'a Args, mistakes: &mut Mistakes) -> Self {
        let mut values = Self::default();
        let mut seen: Vec<&Ident> = Vec::new();
        for arg in &args.list {
            let (name, value) = match arg {
                Arg::Named { name, value } => (name, value),
                Arg::Bare(value) => {
                    mistakes.push(bare(value));
                    // It was meant as the key, most likely: no second complaint about a missing one.
                    values.key.get_or_insert(value);
                    continue;
                }
            };
            if seen.contains(&name) {
                mistakes.push(at(name, format!("`{name}` is given twice: remove one of them")));
                continue;
            }
            seen.push(name);
            match name.to_string().as_str() {
                "key" => values.key = Some(value),
                "client" => values.client = Some(value),
                "lease" => values.lease = Some(value),
                "on_busy" => values.on_busy = Some(value),
                "on_error" => values.on_error = Some(value),
                "on_lost" => values.on_lost = Some(value),
                "crate" => values.root = Some(value),
                "ttl" | "wait" | "max_hold" | "min_hold" | "renew" => {
                    values.settings.push((name, value));
                }
                unknown => {
                    mistakes.push(unknown_argument(name, unknown));
                    if nearest_argument(unknown) == Some("key") {
                        values.key.get_or_insert(value);
                    }
                }
            }
        }
        values
    }
}

fn unknown_argument(name: &Ident, text: &str) -> Error {
    let hint = match nearest_argument(text) {
        Some(argument) => format!("did you mean `{argument}`?"),
        None => format!("the arguments are {}", list(ARGUMENTS)),
    };
    at(name, format!("unknown argument `{text}`; {hint}"))
}

fn nearest_argument(text: &str) -> Option<&'static str> {
    SYNONYMS
        .iter()
        .find(|(_, synonyms)| synonyms.contains(&text))
        .map(|(argument, _)| *argument)
        .or_else(|| nearest::nearest(text, ARGUMENTS))
}

fn bare(value: &Expr) -> Error {
    if let Some(name) = word(value).filter(|name| ARGUMENTS.iter().any(|known| name == known)) {
        return at(value, format!("`{name}` needs a value: `{name} = ..`"));
    }
    at(value, "this argument has no name: write `key = ..`")
}

/// `key: ".."` for `key = ".."`.
pub(crate) fn colon_for_equals(span: Span, name: &Ident) -> Error {
    Error::new(span, format!("arguments are given with `=`: write `{name} = ..`"))
}
