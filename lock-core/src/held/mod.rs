//! Leases that are held: what guard, renewer and watchers share.
//!
//! | type | is | owned by |
//! |---|---|---|
//! | [`Granted`] | a grant on its way from the store, or from the holder before, into a lease | the acquisition |
//! | [`LeaseInner`] | one held lease: what never changes, and its record behind a mutex | all handles; the renewer has a weak one |
//! | `LeaseRecord` | what does change: state, turn, watchers, entry in the renewer's schedule | the `LeaseInner` |
//! | [`LeaseState`](crate::lease::LeaseState) | the pure part of the record: phase and deadlines | the record |
//! | [`Lease`] | a user's handle, which watches and extends | the user |
//! | [`MutexGuard`](crate::MutexGuard) | the handle whose end releases the lock | the user |
//! | [`ScopeEntry`] | a lease that a task runs under | the task-local scope |
//! | [`LostWatch`] | a task that waits for the end of a lease | the future that waits |
//! | [`HandedLease`](crate::registry::HandedLease) | a lease between two holders of this process | the registry |
//!
//! The renewer knows a lease as [`Renewable`](crate::driver::Renewable), a store that shortens an
//! expiry as [`LeaseNeeds`](crate::store::LeaseNeeds), and a reader of the client's activity as
//! [`HeldLock`](crate::HeldLock): `renewal` has all three. `watch` waits for the end of a lease,
//! `scope` has the leases of the running task.

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
