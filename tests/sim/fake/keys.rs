//! Keys in memory, and the commands on them that the lock scripts and their clients use.
//!
//! Answers are those of Redis 7.0 to the letter; the differential test compares them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::resp::Reply;

#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// How often a command changed them.
    changes: u64,
    entries: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In milliseconds of the server's clock.
    expires_at: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    Sorted(BTreeMap<Vec<u8>, f64>),
}

type Answer = Result<Reply, String>;
type Args<'a> = &'a [Vec<u8>];

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

impl Entry {
    fn is_there(&self, now_ms: u64) -> bool {
        self.expires_at.is_none_or(|at| now_ms <= at)
    }
}

impl Keys {
    /// Executes a command at `now_ms`; `None` if there is none of that name here.
    pub(crate) fn run(&mut self, args: Args<'_>, now_ms: u64) -> Option<Reply> {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        // The least number of arguments, and whether there may be more.
        let (least, more) = match name.as_str() {
            "GET" | "PTTL" | "ZCARD" => (2, false),
            "MGET" | "DEL" | "EXISTS" | "ZPOPMIN" => (2, true),
            "SET" | "ZREM" | "PEXPIRE" => (3, true),
            "ZSCORE" | "ZRANK" => (3, false),
            "ZADD" | "ZRANGE" | "ZRANGEBYSCORE" => (4, true),
            "ZCOUNT" => (4, false),
            _ => return None,
        };
        if args.len() < least || args.len() > least && !more {
            let name = name.to_ascii_lowercase();
            return Some(Reply::error(format!(
                "ERR wrong number of arguments for '{name}' command"
            )));
        }
        self.forget_expired(now_ms);
        let answer = match name.as_str() {
            "GET" => self.get(&args[1]),
            "MGET" => Ok(self.mget(&args[1..])),
            "SET" => self.set(args, now_ms),
            "DEL" => {
                let removed = count(&args[1..], |key| self.entries.remove(key).is_some());
                Ok(self.changed_by(removed))
            }
            "EXISTS" => Ok(count(&args[1..], |key| self.entries.contains_key(key))),
            "PTTL" => Ok(self.pttl(&args[1], now_ms)),
            "PEXPIRE" => self.pexpire(args, now_ms),
            "ZADD" => self.zadd(args),
            "ZREM" => self.zrem(args),
            "ZCOUNT" => self.zcount(args),
            "ZCARD" => self.sorted(&args[1]).map(|all| Reply::Int(all.len() as i64)),
            "ZSCORE" => self.find(args).map(|found| match found {
                Some((_, score)) => Reply::bulk(number(score)),
                None => Reply::Nil,
            }),
            "ZRANK" => self.find(args).map(|found| match found {
                Some((rank, _)) => Reply::Int(rank as i64),
                None => Reply::Nil,
            }),
            "ZRANGE" => self.zrange(args),
            "ZRANGEBYSCORE" => self.zrangebyscore(args),
            "ZPOPMIN" => self.zpopmin(&args[1]),
            _ => unreachable!("listed above"),
        };
        Some(answer.unwrap_or_else(Reply::Error))
    }

    /// The keys that there are at `now_ms`, without locks that are kept for a while after their
    /// release.
    pub(crate) fn names(&mut self, now_ms: u64) -> Vec<String> {
        self.forget_expired(now_ms);
        let is_kept =
            |entry: &Entry| matches!(&entry.value, Value::Text(text) if text.starts_with(b"="));
        let names = self.entries.iter().filter(|(_, entry)| !is_kept(entry));
        names.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Whether there is such a key at `now_ms`.
    pub(super) fn has(&self, key: &[u8], now_ms: u64) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_there(now_ms))
    }

    /// The keys that there are at `now_ms`.
    pub(super) fn all(&self, now_ms: u64) -> impl Iterator<Item = &Vec<u8>> {
        self.entries.iter().filter(move |(_, entry)| entry.is_there(now_ms)).map(|(key, _)| key)
    }

    /// Moves a key from a server at `now_ms` to these, at `there_ms` by their clock. It keeps what
    /// is left of its life, as `MIGRATE` does.
    pub(super) fn take_over(&mut self, key: &[u8], from: &mut Self, now_ms: u64, there_ms: u64) {
        self.forget_expired(there_ms);
        let Some(entry) = from.entries.remove(key) else { return };
        from.changes += 1;
        self.changes += 1;
        let left = entry.expires_at.map(|at| at.saturating_sub(now_ms).max(1));
        let entry = Entry { expires_at: left.map(|left| there_ms + left), ..entry };
        let before = self.entries.insert(key.to_vec(), entry);
        assert!(before.is_none(), "BUSYKEY {}", String::from_utf8_lossy(key));
    }

    /// Until when there is such a key, in milliseconds of the server's clock.
    pub(crate) fn expires_at(&self, key: &str) -> Option<u64> {
        self.entries.get(key.as_bytes())?.expires_at
    }

    /// How often a command changed them.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts a change, if this says that there was one.
    fn changed_by(&mut self, count: Reply) -> Reply {
        self.changes += u64::from(count != Reply::Int(0));
        count
    }

    fn forget_expired(&mut self, now_ms: u64) {
        self.entries.retain(|_, entry| entry.is_there(now_ms));
    }

    fn text(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, String> {
        match self.entries.get(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Sorted(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// The members of a sorted set in their order.
    fn sorted(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, f64)>, String> {
        let mut all: Vec<_> = match self.entries.get(key).map(|entry| &entry.value) {
            None => Vec::new(),
            Some(Value::Sorted(set)) => set.iter().map(|(m, score)| (m.clone(), *score)).collect(),
            Some(Value::Text(_)) => return Err(WRONG_TYPE.to_owned()),
        };
        // Stable, and they are in the order of their bytes.
        all.sort_by(|(_, one), (_, two)| one.partial_cmp(two).unwrap_or(Ordering::Equal));
        Ok(all)
    }

    fn set_of(&mut self, key: &[u8]) -> Result<&mut BTreeMap<Vec<u8>, f64>, String> {
        let entry = self
            .entries
            .entry(key.to_vec())
            .or_insert_with(|| Entry { value: Value::Sorted(BTreeMap::new()), expires_at: None });
        match &mut entry.value {
            Value::Sorted(set) => Ok(set),
            Value::Text(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn drop_if_empty(&mut self, key: &[u8]) {
        if let Some(Entry { value: Value::Sorted(set), .. }) = self.entries.get(key)
            && set.is_empty()
        {
            self.entries.remove(key);
        }
    }

    fn get(&self, key: &[u8]) -> Answer {
        Ok(self.text(key)?.map_or(Reply::Nil, |text| Reply::Bulk(text.clone())))
    }

    fn mget(&self, keys: Args<'_>) -> Reply {
        let text = |key: &Vec<u8>| match self.text(key) {
            Ok(Some(text)) => Reply::Bulk(text.clone()),
            _ => Reply::Nil,
        };
        Reply::Array(keys.iter().map(text).collect())
    }

    fn set(&mut self, args: Args<'_>, now_ms: u64) -> Answer {
        let (mut only_new, mut get, mut life) = (false, false, None);
        let mut options = args[3..].iter();
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => only_new = true,
                b"GET" => get = true,
                b"PX" if life.is_none() => life = Some(options.next().ok_or(SYNTAX)?),
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let expires_at = match life {
            None => None,
            Some(life) => {
                let life = integer(life)?;
                if life <= 0 {
                    return Err("ERR invalid expire time in 'set' command".to_owned());
                }
                Some(now_ms + life.unsigned_abs())
            }
        };
        let old = if get { Some(self.get(&args[1])?) } else { None };
        if only_new && self.entries.contains_key(&args[1]) {
            return Ok(old.unwrap_or(Reply::Nil));
        }
        let value = Value::Text(args[2].clone());
        self.changes += 1;
        self.entries.insert(args[1].clone(), Entry { value, expires_at });
        Ok(old.unwrap_or(Reply::OK))
    }

    fn pttl(&self, key: &[u8], now_ms: u64) -> Reply {
        Reply::Int(match self.entries.get(key) {
            None => -2,
            Some(Entry { expires_at: None, .. }) => -1,
            Some(Entry { expires_at: Some(at), .. }) => at.saturating_sub(now_ms) as i64,
        })
    }

    fn pexpire(&mut self, args: Args<'_>, now_ms: u64) -> Answer {
        let life = integer(&args[2])?;
        let Some(entry) = self.entries.get_mut(&args[1]) else { return Ok(Reply::Int(0)) };
        self.changes += 1;
        if life <= 0 {
            self.entries.remove(&args[1]);
        } else {
            entry.expires_at = Some(now_ms + life.unsigned_abs());
        }
        Ok(Reply::Int(1))
    }

    fn zadd(&mut self, args: Args<'_>) -> Answer {
        let only_new = args[2].eq_ignore_ascii_case(b"NX");
        let pairs = &args[if only_new { 3 } else { 2 }..];
        if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
            return Err(SYNTAX.to_owned());
        }
        let mut scores = Vec::new();
        for pair in pairs.chunks(2) {
            scores.push((float(&pair[0]).ok_or("ERR value is not a valid float")?, &pair[1]));
        }
        let set = self.set_of(&args[1])?;
        let (mut added, mut changes) = (0, 0);
        for (score, member) in scores {
            let known = set.contains_key(member);
            if !(known && only_new) {
                changes += u64::from(set.insert(member.clone(), score) != Some(score));
            }
            added += i64::from(!known);
        }
        self.changes += changes;
        Ok(Reply::Int(added))
    }

    fn zrem(&mut self, args: Args<'_>) -> Answer {
        if !self.entries.contains_key(&args[1]) {
            return Ok(Reply::Int(0));
        }
        let set = self.set_of(&args[1])?;
        let removed = count(&args[2..], |member| set.remove(member).is_some());
        self.drop_if_empty(&args[1]);
        Ok(self.changed_by(removed))
    }

    /// The rank and the score of a member.
    fn find(&self, args: Args<'_>) -> Result<Option<(usize, f64)>, String> {
        let all = self.sorted(&args[1])?;
        let rank = all.iter().position(|(member, _)| *member == args[2]);
        Ok(rank.map(|rank| (rank, all[rank].1)))
    }

    fn zrange(&self, args: Args<'_>) -> Answer {
        let (first, last) = (integer(&args[2])?, integer(&args[3])?);
        if args.len() > 4 {
            return Err(SYNTAX.to_owned());
        }
        let all = self.sorted(&args[1])?;
        let place = |index: i64| if index < 0 { all.len() as i64 + index } else { index };
        let (first, last) = (place(first).max(0), place(last));
        let chosen =
            all.iter().enumerate().filter(|(at, _)| (first..=last).contains(&(*at as i64)));
        Ok(Reply::Array(chosen.map(|(_, (member, _))| Reply::Bulk(member.clone())).collect()))
    }

    fn zrangebyscore(&self, args: Args<'_>) -> Answer {
        const BOUNDS: &str = "ERR min or max is not a float";
        let (least, most) = (float(&args[2]).ok_or(BOUNDS)?, float(&args[3]).ok_or(BOUNDS)?);
        let (skip, limit) = match &args[4..] {
            [] => (0, i64::MAX),
            [word, skip, limit] if word.eq_ignore_ascii_case(b"LIMIT") => {
                (integer(skip)?, integer(limit)?)
            }
            _ => return Err(SYNTAX.to_owned()),
        };
        let all = self.sorted(&args[1])?;
        let chosen = all.into_iter().filter(|(_, score)| (least..=most).contains(score));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let chosen = chosen.skip(usize::try_from(skip).unwrap_or(usize::MAX)).take(limit);
        Ok(Reply::Array(chosen.map(|(member, _)| Reply::Bulk(member)).collect()))
    }

    fn zcount(&self, args: Args<'_>) -> Answer {
        const BOUNDS: &str = "ERR min or max is not a float";
        let least = args[2].strip_prefix(b"(");
        let is_beyond = least.is_some();
        let least = float(least.unwrap_or(&args[2])).ok_or(BOUNDS)?;
        let most = float(&args[3]).ok_or(BOUNDS)?;
        let all = self.sorted(&args[1])?;
        let counts = |score: f64| score <= most && score >= least && !(is_beyond && score <= least);
        Ok(Reply::Int(all.iter().filter(|(_, score)| counts(*score)).count() as i64))
    }

    fn zpopmin(&mut self, key: &[u8]) -> Answer {
        let Some((member, score)) = self.sorted(key)?.into_iter().next() else {
            return Ok(Reply::Array(Vec::new()));
        };
        self.set_of(key)?.remove(&member);
        self.changes += 1;
        self.drop_if_empty(key);
        Ok(Reply::Array(vec![Reply::Bulk(member), Reply::bulk(number(score))]))
    }
}

fn count(names: Args<'_>, mut counts: impl FnMut(&Vec<u8>) -> bool) -> Reply {
    let mut sum = 0;
    for name in names {
        sum += i64::from(counts(name));
    }
    Reply::Int(sum)
}

fn integer(bytes: &[u8]) -> Result<i64, String> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

fn float(bytes: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// A score as Redis writes it.
fn number(score: f64) -> String {
    if score.is_infinite() {
        return (if score > 0.0 { "inf" } else { "-inf" }).to_owned();
    }
    format!("{score}")
}
