//! The names of our records in Redis.
//!
//! Beside a lock `<namespace>:<key>` stand records of ours, `<namespace>:{0}:<kind>..`. A key never begins with `{`, so no
//! lock can be called like one of them.

use std::fmt::Write;

use crate::store::Name;

/// The counter that numbers grants and tickets: one for the namespace.
pub(super) fn counter<'b>(namespace: &str, buffer: &'b mut String) -> &'b str {
    write(buffer, format_args!("{namespace}:{{0}}:fence"))
}

/// The waiters for a lock, by ticket. The scripts know those that stand beside it by the time until which their
/// tickets are good: `a` for `q`.
pub(super) fn queue<'b>(name: &Name, buffer: &'b mut String) -> &'b str {
    write(buffer, format_args!("{}:{{0}}:q:{}", name.namespace(), name.key()))
}

/// The channel on which a store is told of grants.
pub(super) fn inbox(namespace: &str, id: &str) -> String {
    format!("{namespace}:{{0}}:inbox:{id}")
}

fn write<'b>(buffer: &'b mut String, text: std::fmt::Arguments<'_>) -> &'b str {
    buffer.clear();
    // Writing into a string cannot fail.
    let _ = buffer.write_fmt(text);
    buffer
}
