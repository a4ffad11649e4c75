//! The names of our records in Redis.

use crate::store::Name;

/// The counter that numbers grants: one for the namespace. A lock's name never begins with `{`, so none
/// can be called like this.
pub(super) fn fence(name: &Name) -> String {
    format!("{}:{{0}}:fence", name.namespace())
}
