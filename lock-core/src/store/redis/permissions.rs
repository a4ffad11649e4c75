//! Which permissions the user of the connection lacks.
//!
//! When a command of a script is refused, some servers name neither the command nor the key. So
//! each command that the scripts use is sent by itself, in a form that changes nothing: a refusal
//! of that names the command, and says whether the command, the key or the channel was the reason.

use futures_util::future::join_all;
use redis::Cmd;

use super::RedisStore;
use super::error::{Fault, code, is_unknown_command};
use super::keys;
use super::servers::Servers;
use crate::error::Error;
use crate::store::MissingPermissions;

/// What the scripts use, with arguments behind the key that change nothing.
const ON_A_KEY: [(&str, &[&str]); 15] = [
    ("get", &[]),
    ("mget", &[]),
    ("set", &["x", "XX", "PX", "1"]),
    ("del", &[]),
    ("exists", &[]),
    ("pttl", &[]),
    ("pexpire", &["1"]),
    ("zadd", &["XX", "0", "x"]),
    ("zrem", &["x"]),
    ("zscore", &["x"]),
    ("zrank", &["x"]),
    ("zrange", &["0", "0"]),
    ("zrangebyscore", &["0", "0"]),
    ("zpopmin", &[]),
    ("zcount", &["0", "0"]),
];
/// What needs no key.
const WITHOUT_A_KEY: [(&str, &[&str]); 3] = [
    ("eval", &["return 0", "0"]),
    // No script has this digest.
    ("evalsha", &["0000000000000000000000000000000000000000", "0"]),
    ("time", &[]),
];

impl RedisStore {
    /// What the user may not do of what locks under `namespace` need, as rules of Redis.
    pub(super) async fn find_missing(&self, namespace: &str) -> Result<MissingPermissions, Error> {
        let servers = self.server.servers();
        // Of a cluster, one node is asked: users are meant to be the same on all.
        let (live, tag) = servers.any().await?;
        let (probe, mut found) = (keys::probe(namespace, tag), MissingPermissions::default());
        let publish = if matches!(servers, Servers::One(_)) { "publish" } else { "spublish" };
        let on_a_key = ON_A_KEY.map(|(name, rest)| (name, Some(&*probe), rest));
        let without = WITHOUT_A_KEY.map(|(name, rest)| (name, None, rest));
        let publish = (publish, Some(&*probe), &[""][..]);
        let tried = without.into_iter().chain(on_a_key).chain([publish]);
        // At the same time, so that all of them take one request timeout at most.
        let outcomes = join_all(tried.map(async |(name, first, rest)| {
            let mut cmd = Cmd::new();
            cmd.arg(name).arg(first).arg(rest);
            (name, live.send(&cmd).await)
        }));
        for (name, outcome) in outcomes.await {
            match outcome {
                Ok(_) => {}
                Err(Fault::Refused(error)) if is_unknown_command(&error) => {
                    found.unknown_commands.push(name.to_owned());
                }
                Err(Fault::Refused(error)) => {
                    let rule = lacking(&error, name, namespace);
                    found.rules.extend(rule.filter(|rule| !found.rules.contains(rule)));
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(found)
    }
}

/// The rule that would have permitted the command `name`, if a rule was missing.
fn lacking(error: &redis::RedisError, name: &str, namespace: &str) -> Option<String> {
    if code(error) != Some("NOPERM") {
        return None;
    }
    // "no permissions to .." follows the user's name, or begins the sentence. The names of
    // commands and keys are of no use here: they could be of any words.
    let detail = error.detail()?.to_lowercase();
    let what = detail.split_once("no permissions to ")?.1;
    Some(match what {
        access if !access.starts_with("access ") => format!("+{name}"),
        access if access.contains(" channel") => format!("&{namespace}:*"),
        _ => format!("~{namespace}:*"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_permissions_are_those_that_are_tried() {
        // What every connection does when it is opened and kept, or waits for messages, would have
        // failed before.
        let by_the_connection = ["subscribe", "info", "ping", "hello", "client|setname"];
        let tried = ON_A_KEY.iter().chain(&WITHOUT_A_KEY).map(|(name, _)| *name);
        let mut tried: Vec<_> = tried.chain(["publish"]).chain(by_the_connection).collect();
        let docs = include_str!("mod.rs");
        let (_, line) = docs.split_once("ACL SETUSER locker").unwrap();
        let (line, _) = line.split_once("```").unwrap();
        let mut documented: Vec<_> =
            line.split_whitespace().filter_map(|word| word.strip_prefix('+')).collect();
        tried.sort_unstable();
        documented.sort_unstable();
        assert_eq!(tried, documented);
    }

    #[test]
    fn refusal_is_read_as_the_rule_that_is_missing_on_each_version() {
        let refused = |code: &str, detail: &str| {
            let error = redis::make_extension_error(code.into(), Some(detail.into()));
            lacking(&error, "zadd", "shop")
        };
        for (detail, rule) in [
            // Redis 6.2.
            ("this user has no permissions to run the 'zadd' command", "+zadd"),
            ("this user has no permissions to run the 'zadd' command or its subcommand", "+zadd"),
            ("this user has no permissions to access one of the keys used as arguments", "~shop:*"),
            (
                "this user has no permissions to access one of the channels used as arguments",
                "&shop:*",
            ),
            // Redis 7.0.
            ("User jo has no permissions to run the 'zadd' command", "+zadd"),
            ("User jo has no permissions to access the 'shop:channel' key", "~shop:*"),
            ("User jo has no permissions to access the 'shop:x' channel", "&shop:*"),
            // Redis 7.2 and later, and Valkey, which word the first of these as 7.0.
            ("No permissions to access a key", "~shop:*"),
            ("No permissions to access a channel", "&shop:*"),
        ] {
            assert_eq!(refused("NOPERM", detail).as_deref(), Some(rule), "{detail}");
        }
        for code in ["WRONGTYPE", "NOSCRIPT", "OOM"] {
            assert_eq!(refused(code, "no permissions to"), None);
        }
    }
}
