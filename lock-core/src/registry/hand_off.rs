//! What a local waiter may get from the task before it: a lease that is held, or a claim that was
//! sent and not granted yet. Whichever task owns one must use it, hand it on, or give it back to
//! the store. So neither can be copied.

use std::time::Duration;

use crate::lease::{HandOffChain, enough_to_hand_on};
use crate::options::ResolvedOptions;
use crate::store::Token;
use crate::time::Instant;

/// A lease that its holder ended while it was good.
#[derive(Debug)]
pub(crate) struct HandedLease {
    pub(crate) token: Token,
    /// As the last holder had it.
    pub(crate) chain: HandOffChain,
    /// Until when the store has confirmed the lease.
    pub(crate) confirmed_until: Instant,
    /// The last holder's name for the key, for logs.
    pub(crate) label: &'static str,
}

impl HandedLease {
    /// Whether a waiter with these `options` may have it.
    pub(super) fn suits(&self, options: &ResolvedOptions, now: Instant) -> bool {
        options.waits()
            && (self.chain.is_fenced() || !options.fencing)
            && self.chain.may_go_on(now)
            && self.is_good_for(options, now)
    }

    /// Whether enough is left of the lease.
    pub(super) fn is_good_for(&self, options: &ResolvedOptions, now: Instant) -> bool {
        enough_to_hand_on(now, self.confirmed_until, options.ttl)
    }
}

/// A claim whose task has given up. Its token may have a place in the store's queue. The place is
/// the process's rather than the task's, so the next local waiter goes on with the token.
#[derive(Debug)]
pub(crate) struct HandedClaim {
    pub(crate) token: Token,
    /// The longest ttl that was requested with the token.
    pub(crate) longest_ttl: Duration,
    /// The last claimant's name for the key, for logs.
    pub(crate) label: &'static str,
}
