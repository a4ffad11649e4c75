//! The names of this crate's records in Redis.
//!
//! Beside a lock `<namespace>:<key>` there are companion records,
//! `<namespace>:{<tag>}:<kind>..`. A key never begins with `{`, so no lock has the name of a
//! companion. Those of a lock without a namespace are `lock:{<tag>}:<kind>:{}<key>`, so that they
//! are not those of `lock:<key>`.

use std::fmt;

use crate::store::Name;

/// The hash tag of companion records. On a cluster it puts them into the slot of their lock;
/// scripts may only touch keys of one slot.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Tag(&'static str);

impl Tag {
    /// A single server has no slots, so all companions share one tag.
    pub(crate) const SINGLE: Self = Self("0");

    /// A tag of this text.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn of(text: &'static str) -> Self {
        Self(text)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Room for a name.
const TYPICAL_LEN: usize = 128;

/// The counter that numbers grants and tickets: one for each namespace and tag.
pub(crate) fn counter<'b>(namespace: &str, tag: Tag, buffer: &'b mut String) -> &'b str {
    join(buffer, &[namespace, ":{", tag.0, "}:fence"])
}

/// A companion that each lock has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Companion {
    /// The queue of the lock: its waiters by ticket.
    Queue,
    /// The same waiters by the expiry of their tickets.
    Alive,
}

/// The names of one companion of locks that share their namespace and tag.
pub(crate) struct CompanionNames {
    /// Begins with what all of the names begin with.
    text: String,
    shared: usize,
}

impl Companion {
    pub(crate) fn names(self, namespace: &str, tag: Tag) -> CompanionNames {
        let kind = match self {
            Self::Queue => "}:q:",
            Self::Alive => "}:a:",
        };
        let mut text = String::with_capacity(TYPICAL_LEN);
        let shared = join(&mut text, &[namespace, ":{", tag.0, kind]).len();
        CompanionNames { text, shared }
    }
}

impl CompanionNames {
    /// The name of the companion of `name`.
    pub(crate) fn of(&mut self, name: &Name) -> &str {
        self.text.truncate(self.shared);
        if !name.has_namespace() {
            // No key begins with a brace.
            self.text.push_str("{}");
        }
        self.text.push_str(name.key());
        &self.text
    }
}

/// On a member of a quorum: since when the server remembers its locks, and in which process.
#[cfg(feature = "redis-quorum")]
pub(crate) fn birth_mark<'b>(namespace: &str, tag: Tag, buffer: &'b mut String) -> &'b str {
    join(buffer, &[namespace, ":{", tag.0, "}:born"])
}

/// On a member of a quorum: the last number that it accepted for a lock. Locks share a number by
/// the hash of their whole names, so that there are never more numbers than a cluster has slots,
/// and claims of different locks seldom meet.
#[cfg(feature = "redis-quorum")]
pub(crate) fn number<'b>(name: &Name, tag: Tag, buffer: &'b mut String) -> &'b str {
    let slot = slot(name.as_str().as_bytes()).to_string();
    join(buffer, &[name.namespace(), ":{", tag.0, "}:n:", &slot])
}

/// How many slots a cluster has.
#[cfg(any(feature = "redis-cluster", feature = "redis-quorum"))]
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a cluster to which these bytes are hashed, by CRC-16/XMODEM.
#[cfg(any(feature = "redis-cluster", feature = "redis-quorum"))]
pub(crate) fn slot(bytes: &[u8]) -> u16 {
    let next = |crc: u16, byte: &u8| (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)];
    bytes.iter().fold(0, next) % SLOTS
}

/// The channel on which a store receives its grants.
pub(crate) fn inbox(namespace: &str, tag: Tag, id: &str) -> String {
    format!("{namespace}:{{{tag}}}:inbox:{id}")
}

/// The channel on which clients learn that one of their locks was taken by force.
pub(crate) fn forced_releases(namespace: &str, tag: Tag) -> String {
    format!("{namespace}:{{{tag}}}:forced")
}

/// The namespace of the locks that the start-up check takes. The brace keeps it from being a
/// user's.
pub(crate) fn check_namespace(tag: Tag) -> String {
    format!("lock:{{{tag}}}:check")
}

/// A name on which permissions are tried. No record has it.
pub(crate) fn probe(namespace: &str, tag: Tag) -> String {
    format!("{namespace}:{{{tag}}}:probe")
}

fn join<'b>(buffer: &'b mut String, parts: &[&str]) -> &'b str {
    buffer.clear();
    for part in parts {
        buffer.push_str(part);
    }
    buffer
}

#[cfg(any(feature = "redis-cluster", feature = "redis-quorum"))]
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        // `as`: the conversions that cannot fail are not `const`.
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(all(test, any(feature = "redis-cluster", feature = "redis-quorum")))]
mod tests {
    use super::*;
    use crate::key::Key;

    /// No lock without a namespace has the name of one of these records.
    #[cfg(feature = "redis-quorum")]
    #[test]
    fn record_is_no_name_of_a_lock() {
        let buffer = &mut String::new();
        let name = Name::internal("shop", "k");
        let records = [
            counter("shop", Tag::SINGLE, buffer).to_owned(),
            Companion::Queue.names("shop", Tag::SINGLE).of(&name).to_owned(),
            Companion::Alive.names("shop", Tag::SINGLE).of(&name).to_owned(),
            birth_mark("shop", Tag::SINGLE, buffer).to_owned(),
            number(&name, Tag::SINGLE, buffer).to_owned(),
            inbox("shop", Tag::SINGLE, "id"),
            forced_releases("shop", Tag::SINGLE),
            check_namespace(Tag::SINGLE),
            format!("{}:k", check_namespace(Tag::SINGLE)),
            probe("shop", Tag::SINGLE),
        ];
        for record in records {
            assert!(Name::new(None, &Key::new(record.clone()).unwrap()).is_err(), "{record}");
        }
    }

    /// All versions of this crate must use the same numbers. The values are those of
    /// `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_a_cluster() {
        for (key, expected) in [("foo", 12_182), ("bar", 5_061), ("123456789", 12_739), ("", 0)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }
}
