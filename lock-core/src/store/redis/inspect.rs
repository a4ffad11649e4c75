//! What operators ask of the server.
//!
//! These calls are rare, so each goes alone and by the text of its script.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::RedisStore;
use super::error::{Fault, discreet};
use super::info::Info;
use super::keys::{self, Companion};
use super::scripts::{FORCE_RELEASE, INSPECT};
use super::servers::{Route, Servers};
use super::transport::{Connection, is_far};
use crate::error::{Error, ErrorKind};
use crate::store::{
    BoxFuture, ForceReleaseListener, Inspect, LockRecord, MissingPermissions, Name, Owner,
    StoreHealth, Token,
};

impl Inspect for RedisStore {
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<LockRecord, Error>> {
        Box::pin(async move {
            let route = self.server.servers().route_once(name);
            let reply = self.ask(route, INSPECT, name, &[Companion::Alive], &[]).await?;
            Ok(read_record(&reply)?)
        })
    }

    fn force_release<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let companions = [Companion::Queue, Companion::Alive];
            let (route, value) = (self.server.servers().route_once(name), value_of(owner));
            let channel = self.channel_to(name, owner);
            let arguments = [value.as_slice(), channel.as_bytes()];
            match self.ask(route, FORCE_RELEASE, name, &companions, &arguments).await? {
                Value::Int(1) => Ok(true),
                Value::Int(0) => Ok(false),
                _ => Err(Fault::Garbled.into()),
            }
        })
    }

    fn report_forced_releases(&self, listener: Weak<dyn ForceReleaseListener>) {
        self.waits.report_forced_releases(listener);
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Name>, Error>> {
        Box::pin(async move {
            let each = self.each().await?;
            let scans = each.iter().map(|connection| scan(connection, namespace, most));
            // A scan may return a key twice, and so may two nodes while its slot is on its way.
            let (mut names, mut failed) = (HashSet::new(), Vec::new());
            for (connection, found) in each.iter().zip(join_all(scans).await) {
                match found {
                    Ok(found) => names.extend(found),
                    Err(fault) => failed.push((connection.label(), fault)),
                }
            }
            if failed.is_empty() || names.len() >= most {
                return Ok(names.into_iter().take(most).collect());
            }
            Err(incomplete(failed, each.len()))
        })
    }

    fn missing_permissions<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<MissingPermissions, Error>> {
        Box::pin(self.find_missing(namespace))
    }

    fn health(&self) -> BoxFuture<'_, Result<StoreHealth, Error>> {
        Box::pin(async {
            let cluster = match self.server.servers() {
                Servers::One(connection) => return Ok(health_of(connection).await?),
                Servers::Cluster(cluster) => cluster,
            };
            let masters = self.each().await?;
            let each = join_all(masters.iter().map(health_of)).await;
            let (mut servers, mut problems, mut notes) = (Vec::new(), Vec::new(), Vec::new());
            for (connection, health) in masters.iter().zip(each) {
                let named = |text: String| format!("{}: {text}", connection.label());
                match health {
                    Ok(health) => {
                        servers.push(health.server);
                        problems.extend(health.problems.into_iter().map(named));
                        notes.extend(health.notes.into_iter().map(named));
                    }
                    Err(fault) => problems.push(named(Error::from(fault).to_string())),
                }
            }
            if servers.is_empty() {
                let what = format!("no node of {} answers", cluster.label());
                return Err(Error::plain(ErrorKind::Unavailable, what));
            }
            match cluster.uncovered() {
                0 => {}
                count => problems.push(format!("no node is known to serve {count} of the slots")),
            }
            servers.sort();
            servers.dedup();
            Ok(StoreHealth::new(servers.join(", "), problems).with_notes(notes))
        })
    }
}

/// How one server is.
async fn health_of(connection: &Arc<Connection>) -> Result<StoreHealth, Fault> {
    let live = connection.live(None).await?;
    match live.send(&redis::cmd("INFO")).await {
        Ok(reply) => {
            let info = Info::read(reply);
            let mut problems = info.problems();
            problems.extend(connection.sentinel_problems(&info).await);
            let apart = connection.clock().apart();
            let clock = format!("its clock is {apart:.1?} from this machine's");
            let mut notes = info.notes();
            if is_far(apart) {
                problems.push(format!(
                    "{clock}: set whichever of the two is wrong, as fencing tokens follow the \
                     server's"
                ));
            } else {
                notes.push(clock);
            }
            Ok(StoreHealth::new(info.server(), problems).with_notes(notes))
        }
        // It answers, so it may well keep locks.
        Err(Fault::Refused(error)) => {
            let why = discreet(error);
            let problem = format!("does not tell how it is: permit `+info` ({why})");
            Ok(StoreHealth::new(Info::unknown().server(), vec![problem]))
        }
        Err(fault) => Err(fault),
    }
}

/// The error for a list to which these of all `count` servers contributed nothing.
fn incomplete(failed: Vec<(&str, Fault)>, count: usize) -> Error {
    let labels: Vec<_> = failed.iter().map(|(label, _)| *label).collect();
    let (labels, is_part) = (labels.join(", "), failed.len() < count);
    let worst = failed.into_iter().max_by_key(|(_, fault)| fault.is_permanent());
    let fault = worst.map_or(Fault::Garbled, |(_, fault)| fault);
    // A missing permission is the same on all.
    if !is_part || fault.is_permanent() {
        return fault.into();
    }
    let what = format!("the list would lack the locks on {labels}, which cannot be read");
    Error::unavailable(what, Error::from(fault))
}

/// The locks on a server, `most` at most.
async fn scan(
    connection: &Arc<Connection>,
    namespace: &str,
    most: usize,
) -> Result<HashSet<Name>, Fault> {
    let mut names = HashSet::new();
    let (mut cursor, pattern) = ("0".to_owned(), format!("{}:*", escaped(namespace)));
    while names.len() < most {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED);
        scan.arg("TYPE").arg("string");
        let reply = connection.live(None).await?.send(&scan).await?;
        let (next, keys) =
            redis::from_redis_value::<(String, Vec<Vec<u8>>)>(reply).map_err(|_| Fault::Garbled)?;
        let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
        let keys = keys.filter(|key| !is_companion(key, namespace));
        names.extend(keys.filter_map(Name::from_store).take(most - names.len()));
        if next == "0" {
            break;
        }
        cursor = next;
    }
    Ok(names)
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

impl RedisStore {
    /// Runs `script` on the counter, the lock and companions of it.
    async fn ask(
        &self,
        mut route: Route<'_>,
        script: &str,
        name: &Name,
        companions: &[Companion],
        arguments: &[&[u8]],
    ) -> Result<Value, Fault> {
        let (tag, mut buffer) = (self.server.servers().tag(name), String::new());
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(script).arg(2 + companions.len());
        cmd.arg(keys::counter(name.namespace(), tag, &mut buffer)).arg(name.as_str());
        for companion in companions {
            cmd.arg(companion.names(name.namespace(), tag).of(name));
        }
        cmd.arg(arguments);
        loop {
            let reply = match route.hop(None).await {
                Ok(hop) => hop.send(&cmd).await,
                Err(fault) => Err(fault),
            };
            match reply {
                Err(fault) => route.after(fault, None).await?,
                reply => return reply,
            }
        }
    }

    /// The channel on which the client of `owner` listens; empty if there is none.
    fn channel_to(&self, name: &Name, owner: &Owner) -> String {
        match self.server.servers() {
            Servers::One(_) if owner.token.is_some() && !owner.is_released => {
                keys::forced_releases(name.namespace(), keys::Tag::SINGLE)
            }
            _ => String::new(),
        }
    }

    /// A connection to each server that has locks.
    async fn each(&self) -> Result<Vec<Arc<Connection>>, Fault> {
        match self.server.servers() {
            Servers::One(connection) => Ok(vec![Arc::clone(connection)]),
            Servers::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                Ok(masters.into_iter().map(|(connection, _)| connection).collect())
            }
        }
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
pub(super) fn value_of(owner: &Owner) -> Vec<u8> {
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
