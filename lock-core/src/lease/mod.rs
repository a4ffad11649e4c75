//! The accounting of one lease: no I/O, no clock, no randomness. Time is an argument.
//!
//! ```text
//! Held ⇄ InDoubt → Lost(reason)        Released from any of them
//! ```
//!
//! Before a [`LeaseState`] exists, the lock is being acquired. Lost is final: a lost lease is never
//! valid again, whatever replies still arrive.

mod hand_off;
mod release;
mod state;
mod validity;

pub(crate) use self::hand_off::{HandOffChain, enough_to_hand_on, is_short, lift_due};
pub use self::release::Released;
pub(crate) use self::release::{LeaseEnd, repeated_release};
pub(crate) use self::state::{LeaseState, TooLate};
#[cfg(feature = "redis")]
pub(crate) use self::validity::{deadline, min_remaining};
pub(crate) use self::validity::{renewal_due, renewal_patience, retry_due, ttl_until};
