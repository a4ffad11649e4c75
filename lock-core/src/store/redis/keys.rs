//! The names of our records in Redis.
//!
//! Beside a lock `<namespace>:<key>` stand records of ours, `<namespace>:{0}:<kind>..`. A key never begins with `{`, so no
//! lock can be called like one of them.

use crate::store::Name;

/// The counter that numbers grants and tickets: one for the namespace.
pub(super) fn counter<'b>(namespace: &str, buffer: &'b mut String) -> &'b str {
    join(buffer, &[namespace, ":{0}:fence"])
}

/// The waiters for a lock, by ticket. The scripts know those that stand beside it by the time until which their
/// tickets are good: `a` for `q`.
pub(super) fn queue<'b>(name: &Name, buffer: &'b mut String) -> &'b str {
    join(buffer, &[name.namespace(), ":{0}:q:", name.key()])
}

/// The channel on which a store is told of grants.
pub(super) fn inbox(namespace: &str, id: &str) -> String {
    format!("{namespace}:{{0}}:inbox:{id}")
}

fn join<'b>(buffer: &'b mut String, parts: &[&str]) -> &'b str {
    buffer.clear();
    for part in parts {
        buffer.push_str(part);
    }
    buffer
}
