//! The slot map: which node has which slot, as far as is known.
//!
//! A map is a guess. A node that does not have a slot says which one has it, and that is entered at
//! once. A whole map is fetched as well, at intervals and when something is wrong; what it leaves
//! open stays as it was, so that one node with a gap in its view takes away nothing.

use std::fmt;
use std::sync::Arc;

use redis::Value;

use super::slot::{SLOTS, Slot};

/// Where a node listens.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

/// Which node has which slot.
pub(super) struct SlotMap {
    /// For each slot one more than the index of its owner; 0: no node is known to have it.
    owners: Vec<u16>,
    masters: Vec<Address>,
    replicas: Vec<Address>,
}

/// The reply of one node to `CLUSTER SLOTS`.
#[derive(Debug, Default)]
pub(super) struct Answer {
    ranges: Vec<(Slot, Slot, Address)>,
    replicas: Vec<Address>,
    /// How many changes of the cluster the node knew of, if it told: failovers and slots that
    /// moved.
    pub(super) epoch: Option<u64>,
}

impl Address {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl SlotMap {
    pub(super) fn new() -> Self {
        Self { owners: vec![0; SLOTS], masters: Vec::new(), replicas: Vec::new() }
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<&Address> {
        let index = usize::from(self.owners[slot.index()]).checked_sub(1)?;
        self.masters.get(index)
    }

    /// A node said that `owner` has the slot.
    pub(super) fn set(&mut self, slot: Slot, owner: &Address) {
        let index = self.index(owner);
        self.owners[slot.index()] = index;
    }

    /// Enters what a node answered. Slots that the answer leaves open stay as they were.
    pub(super) fn merge(&mut self, answer: &Answer) {
        for (first, last, owner) in &answer.ranges {
            let index = self.index(owner);
            self.owners[first.index()..=last.index()].fill(index);
        }
        self.replicas.clone_from(&answer.replicas);
        self.forget_unused();
    }

    /// The nodes that have slots.
    pub(super) fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// One of the slots that a node has.
    pub(super) fn slot_of(&self, master: &Address) -> Option<Slot> {
        let index = self.masters.iter().position(|known| known == master)?;
        let slot = self.owners.iter().position(|owner| usize::from(*owner) == index + 1)?;
        Slot::numbered(u16::try_from(slot).ok()?)
    }

    pub(super) fn replicas(&self) -> &[Address] {
        &self.replicas
    }

    /// How many slots no node is known to have.
    pub(super) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| **owner == 0).count()
    }

    /// One more than the index of `owner`, which is added if need be.
    fn index(&mut self, owner: &Address) -> u16 {
        let index = self.masters.iter().position(|known| known == owner).unwrap_or_else(|| {
            self.masters.push(owner.clone());
            self.masters.len() - 1
        });
        // There are no more owners than slots.
        u16::try_from(index + 1).unwrap_or(0)
    }

    /// Forgets the nodes that have no slot any more.
    fn forget_unused(&mut self) {
        let mut renumbered = vec![0_u16; self.masters.len() + 1];
        for owner in &self.owners {
            renumbered[usize::from(*owner)] = 1;
        }
        renumbered[0] = 0;
        let mut used = 0;
        let mut kept = Vec::new();
        for (new, master) in renumbered[1..].iter_mut().zip(std::mem::take(&mut self.masters)) {
            if *new == 1 {
                used += 1;
                *new = used;
                kept.push(master);
            }
        }
        self.masters = kept;
        for owner in &mut self.owners {
            *owner = renumbered[usize::from(*owner)];
        }
    }
}

impl Answer {
    /// The same, by a node that told this epoch.
    pub(super) fn of(self, epoch: Option<u64>) -> Self {
        Self { epoch, ..self }
    }

    /// Whether it names no owner of any slot.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Reads the reply of the node at `asked`. `named` is the address at which a node is dialled
    /// that calls itself by a host and a port.
    pub(super) fn read(
        reply: &Value,
        asked: &Address,
        named: impl Fn(&str, u16) -> Address,
    ) -> Option<Self> {
        let Value::Array(entries) = reply else { return None };
        let mut answer = Self::default();
        for entry in entries {
            let Value::Array(parts) = entry else { return None };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else {
                return None;
            };
            let (first, last) = (read_slot(*first)?, read_slot(*last)?);
            let mut nodes = nodes.iter().map(|node| read_node(node, asked, &named));
            if first > last {
                return None;
            }
            // A node that does not know its own name, or a range that was just left, is no owner.
            if let Some(Some(owner)) = nodes.next() {
                answer.ranges.push((first, last, owner));
            }
            for replica in nodes.flatten() {
                if !answer.replicas.contains(&replica) {
                    answer.replicas.push(replica);
                }
            }
        }
        Some(answer)
    }
}

fn read_slot(number: i64) -> Option<Slot> {
    u16::try_from(number).ok().and_then(Slot::numbered)
}

/// Reads `[host, port, ..]`. A node without a host is at the host that was asked.
fn read_node(
    node: &Value,
    asked: &Address,
    named: &impl Fn(&str, u16) -> Address,
) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let port = u16::try_from(*port).ok().filter(|port| *port != 0)?;
    let host = match host {
        Value::Nil => "",
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => return None,
    };
    match host {
        "" => Some(Address { host: Arc::clone(&asked.host), port }),
        "?" => None,
        host => Some(named(host, port)),
    }
}

/// Reads the words behind `MOVED` and `ASK`: a slot and where it is, `3999 127.0.0.1:6381`.
pub(super) fn read_redirection(
    words: &str,
    asked: &Address,
    named: impl Fn(&str, u16) -> Address,
) -> Option<(Slot, Address)> {
    let (slot, place) = words.split_once(' ')?;
    let (host, port) = place.rsplit_once(':')?;
    let slot = Slot::numbered(slot.parse().ok()?)?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let address = match host {
        // The node does not tell, or does not know, by what name the other is reached.
        "" | "?" => Address { host: Arc::clone(&asked.host), port },
        host => named(host, port),
    };
    Some((slot, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![bulk(host), Value::Int(port), bulk("id"), Value::Array(Vec::new())])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
    }

    fn asked() -> Address {
        Address::new("asked", 7)
    }

    fn read(entries: &[Value]) -> Option<Answer> {
        Answer::read(&Value::Array(entries.to_vec()), &asked(), Address::new)
    }

    fn owner(map: &SlotMap, slot: u16) -> Option<String> {
        map.owner(Slot::numbered(slot).unwrap()).map(ToString::to_string)
    }

    #[test]
    fn later_answer_replaces_what_it_names_and_leaves_the_rest() {
        let mut map = SlotMap::new();
        assert_eq!((owner(&map, 0), map.uncovered()), (None, SLOTS));
        let all =
            [range(0, 8_191, &[node("a", 1), node("c", 3)]), range(8_192, 16_383, &[node("b", 2)])];
        map.merge(&read(&all).unwrap());
        assert_eq!(
            (owner(&map, 8_191), owner(&map, 8_192)),
            (Some("a:1".into()), Some("b:2".into()))
        );
        assert_eq!((map.uncovered(), map.replicas()), (0, &[Address::new("c", 3)][..]));
        // The replica took over, and the answer has a gap.
        map.merge(&read(&[range(0, 8_191, &[node("c", 3)])]).unwrap());
        assert_eq!((owner(&map, 0), owner(&map, 9_000)), (Some("c:3".into()), Some("b:2".into())));
        assert_eq!(map.masters(), [Address::new("b", 2), Address::new("c", 3)]);
        map.set(Slot::numbered(5).unwrap(), &Address::new("b", 2));
        assert_eq!((owner(&map, 5), owner(&map, 6)), (Some("b:2".into()), Some("c:3".into())));
    }

    #[test]
    fn node_without_a_host_is_at_the_host_that_was_asked() {
        let unnamed = Value::Array(vec![Value::Nil, Value::Int(9)]);
        let mut map = SlotMap::new();
        map.merge(&read(&[range(0, 0, &[unnamed]), range(1, 1, &[node("", 8)])]).unwrap());
        assert_eq!(
            (owner(&map, 0), owner(&map, 1)),
            (Some("asked:9".into()), Some("asked:8".into()))
        );
        map.merge(&read(&[range(0, 0, &[node("?", 1)]), range(1, 1, &[])]).unwrap());
        assert_eq!(
            (owner(&map, 0), owner(&map, 1)),
            (Some("asked:9".into()), Some("asked:8".into()))
        );
    }

    #[test]
    fn answers_of_another_shape_are_refused() {
        assert!(Answer::read(&Value::Okay, &asked(), Address::new).is_none());
        for garbage in [
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            range(2, 1, &[node("a", 1)]),
            range(0, 16_384, &[node("a", 1)]),
            range(-1, 1, &[node("a", 1)]),
        ] {
            assert!(read(&[garbage]).is_none());
        }
    }

    #[test]
    fn redirections_are_read() {
        let read = |words| {
            let read = read_redirection(words, &asked(), Address::new);
            read.map(|(slot, address)| format!("{slot} {address}"))
        };
        assert_eq!(read("3999 127.0.0.1:6381").unwrap(), "3999 127.0.0.1:6381");
        assert_eq!(read("3999 ::1:6381").unwrap(), "3999 [::1]:6381");
        assert_eq!(read("3999 :6381").unwrap(), "3999 asked:6381");
        assert_eq!(read("3999 ?:6381").unwrap(), "3999 asked:6381");
        for garbage in ["", "3999", "x 1:1", "16384 a:1", "1 a", "1 a:0", "1 a:99999"] {
            assert!(read(garbage).is_none(), "{garbage}");
        }
    }
}
