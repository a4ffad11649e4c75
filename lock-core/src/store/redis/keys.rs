//! The names of this crate's records in Redis.
//!
//! Beside a lock `<namespace>:<key>` there are companion records,
//! `<namespace>:{<tag>}:<kind>..`. A key never begins with `{`, so no lock has the name of a
//! companion.

use std::fmt;

use crate::store::Name;

/// The hash tag of companion records. On a cluster it puts them into the slot of their lock;
/// scripts may only touch keys of one slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tag(&'static str);

impl Tag {
    /// A single server has no slots, so all companions share one tag.
    pub(crate) const SINGLE: Self = Self("0");
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The counter that numbers grants and tickets: one for each namespace and tag.
pub(crate) fn counter<'b>(namespace: &str, tag: Tag, buffer: &'b mut String) -> &'b str {
    join(buffer, &[namespace, ":{", tag.0, "}:fence"])
}

/// The queue of a lock: its waiters by ticket. The scripts derive from it the name of the set that
/// has the same waiters by the expiry of their tickets, with `a` in place of `q`.
pub(crate) fn queue<'b>(name: &Name, tag: Tag, buffer: &'b mut String) -> &'b str {
    join(buffer, &[name.namespace(), ":{", tag.0, "}:q:", name.key()])
}

/// The same waiters by the expiry of their tickets.
pub(crate) fn alive<'b>(name: &Name, tag: Tag, buffer: &'b mut String) -> &'b str {
    join(buffer, &[name.namespace(), ":{", tag.0, "}:a:", name.key()])
}

/// The channel on which a store receives its grants.
pub(crate) fn inbox(namespace: &str, tag: Tag, id: &str) -> String {
    format!("{namespace}:{{{tag}}}:inbox:{id}")
}

/// The namespace of the locks that the start-up check takes. The brace keeps it from being a
/// user's.
pub(crate) fn check_namespace(tag: Tag) -> String {
    format!("lock:{{{tag}}}:check")
}

fn join<'b>(buffer: &'b mut String, parts: &[&str]) -> &'b str {
    buffer.clear();
    for part in parts {
        buffer.push_str(part);
    }
    buffer
}
