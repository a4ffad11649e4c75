//! What operators ask of the server.
//!
//! These calls are rare, so each goes alone and by the text of its script.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Cmd, Value};

use super::RedisStore;
use super::error::{Fault, discreet};
use super::info::Info;
use super::keys;
use super::scripts::{FORCE_RELEASE, INSPECT};
use crate::error::Error;
use crate::store::{BoxFuture, Inspect, LockRecord, Name, Owner, StoreHealth, Token};

impl Inspect for RedisStore {
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<LockRecord, Error>> {
        Box::pin(async move {
            let reply = self.ask(INSPECT, name, keys::alive, &[]).await?;
            Ok(read_record(&reply)?)
        })
    }

    fn force_release<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            match self.ask(FORCE_RELEASE, name, keys::queue, &value_of(owner)).await? {
                Value::Int(1) => Ok(true),
                Value::Int(0) => Ok(false),
                _ => Err(Fault::Garbled.into()),
            }
        })
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Name>, Error>> {
        Box::pin(async move {
            // A scan may return a key twice.
            let (mut names, mut cursor) = (HashSet::new(), "0".to_owned());
            let pattern = format!("{}:*", escaped(namespace));
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
                scan.arg("TYPE").arg("string");
                let reply = self.server.connection().live(None).await?.send(&scan).await?;
                let (next, keys) = redis::from_redis_value::<(String, Vec<Vec<u8>>)>(reply)
                    .map_err(|_| Fault::Garbled)?;
                let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let keys = keys.filter(|key| !is_companion(key, namespace));
                names.extend(keys.filter_map(Name::from_store).take(most - names.len()));
                if names.len() >= most || next == "0" {
                    return Ok(names.into_iter().collect());
                }
                cursor = next;
            }
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<StoreHealth, Error>> {
        Box::pin(async {
            let live = self.server.connection().live(None).await?;
            match live.send(&redis::cmd("INFO")).await {
                Ok(reply) => {
                    let info = Info::read(reply);
                    Ok(StoreHealth::new(info.server(), info.problems()))
                }
                // It answers, so it may well keep locks.
                Err(Fault::Refused(error)) => {
                    let why = discreet(error);
                    let problem = format!("does not tell how it is: permit `+info` ({why})");
                    Ok(StoreHealth::new(Info::unknown().server(), vec![problem]))
                }
                Err(fault) => Err(fault.into()),
            }
        })
    }
}

/// How many keys the server looks at in one step, in which it serves no other client.
const SCANNED: usize = 1_000;

/// `text` as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '^' | '\\');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// Whether `key` is a record of this crate beside the locks: no lock's key begins with a brace.
fn is_companion(key: &str, namespace: &str) -> bool {
    key.get(namespace.len() + 1..).is_none_or(|name| name.starts_with('{'))
}

/// Names a companion of a lock.
type Companion = for<'b> fn(&Name, keys::Tag, &'b mut String) -> &'b str;

impl RedisStore {
    /// Runs `script` on the counter, the lock and one companion of it.
    async fn ask(
        &self,
        script: &str,
        name: &Name,
        third: Companion,
        argument: &[u8],
    ) -> Result<Value, Fault> {
        let (tag, mut buffer) = (self.server.tag(), String::new());
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(script).arg(3);
        cmd.arg(keys::counter(name.namespace(), tag, &mut buffer));
        cmd.arg(name.as_str()).arg(third(name, tag, &mut buffer)).arg(argument);
        self.server.connection().live(None).await?.send(&cmd).await
    }
}

/// Reads `{value, pttl, waiting, counter}`.
fn read_record(reply: &Value) -> Result<LockRecord, Fault> {
    let Value::Array(items) = reply else { return Err(Fault::Garbled) };
    let [value, Value::Int(left), waiting, Value::BulkString(counter)] = items.as_slice() else {
        return Err(Fault::Garbled);
    };
    let waiting = match waiting {
        Value::Int(waiting) => u64::try_from(*waiting).ok(),
        _ => None,
    };
    let latest = std::str::from_utf8(counter).ok().and_then(|text| text.parse().ok());
    Ok(LockRecord::new(read_owner(value, *left)?, waiting, latest.unwrap_or(0)))
}

/// The value that the server keeps for `owner`.
fn value_of(owner: &Owner) -> Vec<u8> {
    let Some(token) = owner.token else { return owner.foreign_value().to_vec() };
    let mut text = [0; Token::TEXT_LEN];
    let text = token.encode(&mut text);
    if owner.is_released { format!("={text}").into() } else { text.into() }
}

fn read_owner(value: &Value, left: i64) -> Result<Option<Owner>, Fault> {
    let value = match value {
        Value::Nil => return Ok(None),
        Value::BulkString(value) => value.as_slice(),
        _ => return Err(Fault::Garbled),
    };
    let left = u64::try_from(left).ok().map(Duration::from_millis);
    let (rest, is_released) = match value.strip_prefix(b"=") {
        Some(rest) => (rest, true),
        None => (value, false),
    };
    let token = std::str::from_utf8(rest).ok().and_then(Token::parse);
    let ours = token.map(|token| Owner::new(token, left, is_released));
    // Only the form in which this crate writes tokens, of the several that a UUID may have.
    let ours = ours.filter(|owner| value_of(owner) == value);
    Ok(Some(ours.unwrap_or_else(|| Owner::foreign(value, left))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn owner_is_read_from_the_value_of_the_lock() {
        let token = Token::fresh().unwrap();
        let mut buffer = [0; Token::TEXT_LEN];
        let text = token.encode(&mut buffer).to_owned();
        let owner = |value: &str, left| read_owner(&bulk(value), left).unwrap().unwrap();
        let ours = owner(&text, 1_500);
        assert_eq!((ours.token, ours.left), (Some(token), Some(Duration::from_millis(1_500))));
        assert!(!ours.is_released);
        assert!(owner(&format!("={text}"), 1).is_released);
        let upper = text.to_uppercase();
        for foreign in ["", "1", "=x", &text[1..], &upper, &text.replace('-', ""), "jo"] {
            let owner = owner(foreign, -1);
            assert!(owner.token.is_none() && !owner.is_released && owner.left.is_none());
            assert_eq!(value_of(&owner), foreign.as_bytes());
            assert!(!format!("{owner:?}").contains("jo"));
        }
        assert!(read_owner(&Value::Nil, -2).unwrap().is_none());
        assert!(matches!(read_owner(&Value::Int(1), 1), Err(Fault::Garbled)));
    }

    #[test]
    fn pattern_of_a_namespace_matches_no_other() {
        assert_eq!(escaped("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
        assert!(is_companion("lock:{0}:q:k", "lock") && !is_companion("lock:k{0}", "lock"));
    }

    #[test]
    fn replies_of_another_shape_are_refused() {
        for garbage in [Value::Nil, Value::Array(vec![bulk("x")]), bulk("x")] {
            assert!(matches!(read_record(&garbage), Err(Fault::Garbled)));
        }
    }
}
