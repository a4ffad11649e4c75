//! Hash slots: which slot a key has, and the tag that puts the companions of a lock into the slot
//! of the lock.
//!
//! A cluster hashes the bytes between the first `{` of a key and the next `}`, if there are any,
//! and else all of it. The tag of a slot is the smallest decimal number that has the slot. It is a
//! part of the names in Redis, so all versions of this crate have to agree on it.

use std::fmt;
use std::sync::LazyLock;

use crate::store::redis::keys::{self, Tag};

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = keys::SLOTS as usize;

/// The part of a cluster to which a key belongs.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Slot(u16);

impl Slot {
    /// The slot of a key.
    pub(crate) fn of(key: &str) -> Self {
        Self::of_tag(hashed_part(key).as_bytes())
    }

    /// The slot of this number, if there is one.
    pub(super) fn numbered(number: u16) -> Option<Self> {
        (usize::from(number) < SLOTS).then_some(Self(number))
    }

    fn of_tag(text: &[u8]) -> Self {
        Self(keys::slot(text))
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The hash tag for companions of locks in this slot.
    pub(crate) fn tag(self) -> Tag {
        Tag::of(TAGS.of(self))
    }
}

/// Finds the tags of all slots now, rather than while a command is under way.
pub(super) fn prepare() {
    LazyLock::force(&TAGS);
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn hashed_part(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The tags of all slots.
struct Tags {
    /// One after another.
    text: String,
    /// Of each slot, where its tag is in the text.
    ranges: Vec<(u32, u32)>,
}

/// 110,000 short hashes: some milliseconds, once in a process that uses a cluster.
static TAGS: LazyLock<Tags> = LazyLock::new(Tags::find);

impl Tags {
    fn find() -> Self {
        let (mut text, mut ranges) = (String::new(), vec![(0, 0); SLOTS]);
        let mut missing = SLOTS;
        for number in 0_u32.. {
            let tag = number.to_string();
            let range = &mut ranges[Slot::of_tag(tag.as_bytes()).index()];
            if *range != (0, 0) {
                continue;
            }
            let start = text.len();
            text.push_str(&tag);
            // 94 kB in all.
            let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            *range = (place(start), place(text.len()));
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
        Self { text, ranges }
    }

    fn of(&self, slot: Slot) -> &str {
        let (start, end) = self.ranges[slot.index()];
        self.text.get(start as usize..end as usize).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What every version of this crate has to write.
    #[test]
    fn tags_are_these_for_ever() {
        for (slot, tag) in [
            (0, "3560"),
            (1, "22179"),
            (5_460, "41402"),
            (5_461, "18403"),
            (8_191, "42163"),
            (10_922, "5405"),
            (13_907, "0"),
            (16_383, "39296"),
        ] {
            assert_eq!(Slot(slot).tag().to_string(), tag, "{slot}");
        }
        assert_eq!(Slot::of("0").tag(), Tag::SINGLE);
    }

    #[test]
    fn each_slot_has_a_tag_of_its_own_that_lies_in_it() {
        let tags: HashSet<String> = (0..SLOTS)
            .map(|slot| {
                let slot = Slot(u16::try_from(slot).unwrap());
                let tag = slot.tag().to_string();
                assert_eq!(Slot::of(&tag), slot);
                assert_eq!(Slot::of(&format!("lock:{{{tag}}}:q:a{{b}}")), slot);
                assert!(tag.len() <= 6);
                tag
            })
            .collect();
        assert_eq!(tags.len(), SLOTS);
    }

    /// As the specification of Redis Cluster gives them.
    #[test]
    fn slot_is_that_of_the_first_hash_tag_unless_it_is_empty() {
        assert_eq!(Slot::of("123456789"), Slot(0x31c3));
        assert_eq!(Slot::of("foo"), Slot(12_182));
        assert_eq!(Slot::of("{user1000}.following"), Slot::of("{user1000}.followers"));
        assert_eq!(Slot::of("foo{bar}{zap}"), Slot::of("bar"));
        assert_eq!(Slot::of("foo{{bar}}zap"), Slot::of("{bar"));
        for whole in ["foo{}{bar}", "foo{bar", "foo}bar{", "{}"] {
            assert_eq!(Slot::of(whole), Slot::of_tag(whole.as_bytes()), "{whole}");
        }
    }
}
