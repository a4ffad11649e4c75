//! A node of a cluster: which slots it has as far as it knows, what it replies about those of
//! others, and slots that are on their way.

use std::fmt;
use std::ops::RangeInclusive;

use tokio::time::Instant;

use super::resp::Reply;

/// What a node knows of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// How many changes there were.
    pub(crate) epoch: u64,
    /// The names of the nodes of each shard, the master first.
    pub(crate) shards: Vec<[String; 2]>,
    /// All slots in their order, and the shard that has them.
    pub(crate) ranges: Vec<(RangeInclusive<u16>, usize)>,
}

/// A server as a node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) view: View,
    /// A slot that leaves, and where it goes.
    pub(super) leaving: Option<(u16, String)>,
    /// A slot that comes.
    pub(super) coming: Option<u16>,
    /// Since when it does not see the others, and serves no key.
    pub(super) down_since: Option<Instant>,
}

/// What nodes replied instead of executing a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    pub(crate) moved: usize,
    pub(crate) ask: usize,
    pub(crate) try_again: usize,
    pub(crate) down: usize,
}

/// What a command is about.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) keys: &'a [Vec<u8>],
    /// They are no keys, but a sharded channel.
    pub(super) is_channel: bool,
}

/// Why a node does not execute a command.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    Moved(u16, String),
    Ask(u16, String),
    TryAgain,
    CrossSlot,
    Down,
}

const PORT: i64 = 6_379;
const SLOTS: u16 = 16_384;

/// The slot of a key or of a channel, by the specification of Redis Cluster.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let next = |crc: u16, byte: &u8| (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| shift(crc));
    tag.unwrap_or(key).iter().fold(0, next) % SLOTS
}

impl View {
    /// The shard that has a slot.
    pub(crate) fn shard(&self, slot: u16) -> usize {
        let range = self.ranges.iter().find(|(range, _)| range.contains(&slot));
        range.expect("all slots have a shard").1
    }

    /// The node that has a slot.
    fn owner(&self, slot: u16) -> &str {
        &self.shards[self.shard(slot)][0]
    }
}

impl<'a> Subject<'a> {
    pub(super) fn of(args: &'a [Vec<u8>]) -> Self {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        let (keys, is_channel) = match name.as_str() {
            "EVAL" | "EVALSHA" => {
                let count: usize = std::str::from_utf8(&args[2]).unwrap().parse().unwrap();
                (&args[3..3 + count], false)
            }
            "MGET" | "DEL" | "EXISTS" => (&args[1..], false),
            "GET" | "SET" | "PTTL" | "PEXPIRE" | "ZADD" | "ZREM" | "ZCARD" | "ZCOUNT"
            | "ZSCORE" | "ZRANK" | "ZRANGE" | "ZRANGEBYSCORE" | "ZPOPMIN" => (&args[1..2], false),
            "SSUBSCRIBE" | "SPUBLISH" => (&args[1..2], true),
            _ => (&args[..0], false),
        };
        Self { keys, is_channel }
    }
}

impl Node {
    fn is_down(&self) -> bool {
        self.down_since.is_some_and(|since| since <= Instant::now())
    }

    /// Learns what is new in the cluster. Returns what it knew before.
    pub(super) fn learn(&mut self, view: View) -> View {
        if view.epoch < self.view.epoch {
            return self.view.clone();
        }
        let before = std::mem::replace(&mut self.view, view);
        let owns = |slot: u16| self.view.owner(slot) == self.name;
        self.leaving.take_if(|(slot, _)| !owns(*slot));
        self.coming.take_if(|slot| owns(*slot));
        before
    }

    /// Whether the slot of a channel has the node that it had, too.
    pub(super) fn agrees(&self, before: &View, channel: &[u8]) -> bool {
        let slot = slot(channel);
        self.view.owner(slot) == before.owner(slot)
    }

    /// A slot is about to leave it for another node, or is about to come.
    pub(super) fn moves(&mut self, slot: u16, to: &str) {
        if to == self.name {
            self.coming = Some(slot);
        } else {
            self.leaving = Some((slot, to.to_owned()));
        }
    }

    /// Why it does not execute a command about `subject`; `None` if it does. `is_there` tells which
    /// keys there are.
    pub(super) fn refusal(
        &self,
        subject: &Subject<'_>,
        is_asking: bool,
        is_there: impl Fn(&[u8]) -> bool,
    ) -> Option<Refusal> {
        let slots: Vec<_> = subject.keys.iter().map(|key| slot(key)).collect();
        let of = *slots.first()?;
        if slots.iter().any(|slot| *slot != of) {
            return Some(Refusal::CrossSlot);
        }
        if self.is_down() {
            return Some(Refusal::Down);
        }
        let owner = self.view.owner(of);
        if subject.is_channel {
            // A replica accepts those of its master.
            let is_here = self.view.shards[self.view.shard(of)].contains(&self.name);
            return (!is_here).then(|| Refusal::Moved(of, owner.to_owned()));
        }
        let there = subject.keys.iter().filter(|key| is_there(key)).count();
        let missing = subject.keys.len() - there;
        if owner == self.name {
            return match &self.leaving {
                Some((slot, to)) if *slot == of && missing > 0 => Some(match there {
                    0 => Refusal::Ask(of, to.clone()),
                    _ => Refusal::TryAgain,
                }),
                _ => None,
            };
        }
        if is_asking && self.coming == Some(of) {
            return (subject.keys.len() > 1 && missing > 0).then_some(Refusal::TryAgain);
        }
        Some(Refusal::Moved(of, owner.to_owned()))
    }

    /// The reply to `CLUSTER ..`.
    pub(super) fn tell(&self, what: &[u8]) -> Reply {
        match what {
            b"SLOTS" => {
                let ranges = self.view.ranges.iter().map(|(slots, shard)| {
                    let node = |name: &String| {
                        let id = Reply::bulk(format!("{name:0>40}"));
                        let place = [Reply::bulk(name.clone()), Reply::Int(PORT), id];
                        Reply::Array([place.as_slice(), &[Reply::Array(Vec::new())]].concat())
                    };
                    let [first, last] =
                        [slots.start(), slots.end()].map(|at| Reply::Int((*at).into()));
                    let [master, replica] = &self.view.shards[*shard];
                    Reply::Array(vec![first, last, node(master), node(replica)])
                });
                Reply::Array(ranges.collect())
            }
            b"INFO" => {
                let state = if self.is_down() { "fail" } else { "ok" };
                let epoch = self.view.epoch;
                Reply::bulk(format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n"))
            }
            what => panic!("not needed here: {what:?}"),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Refusals {
    pub(super) fn count(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::Moved(..) => self.moved += 1,
            Refusal::Ask(..) => self.ask += 1,
            Refusal::TryAgain => self.try_again += 1,
            Refusal::Down => self.down += 1,
            Refusal::CrossSlot => {}
        }
    }
}

impl Refusal {
    pub(super) fn reply(&self) -> Reply {
        Reply::error(match self {
            Self::Moved(slot, to) => format!("MOVED {slot} {to}:{PORT}"),
            Self::Ask(slot, to) => format!("ASK {slot} {to}:{PORT}"),
            Self::TryAgain => "TRYAGAIN Multiple keys request during rehashing of slot".to_owned(),
            Self::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot".to_owned(),
            Self::Down => "CLUSTERDOWN The cluster is down".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the specification gives them.
    #[test]
    fn slot_is_that_of_the_first_tag() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }
}
