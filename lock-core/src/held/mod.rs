//! Leases that are held: what guard, renewer and watchers share.

mod inner;
mod lease;
mod renewal;
mod scope;
mod watch;
mod watchers;

pub(crate) use self::inner::{Ended, Granted, LeaseInner, ScopeEntry};
pub use self::lease::Lease;
pub(crate) use self::scope::{Scoped, find};
pub use self::scope::{assert_locked, current};
pub(crate) use self::watch::LostWatch;
