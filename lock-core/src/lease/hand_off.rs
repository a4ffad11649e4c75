//! How far one grant of the store is handed on within this process.

use std::time::Duration;

use super::validity::{deadline, min_remaining};
use crate::fencing::FencingToken;
use crate::time::Instant;

/// Hand-offs per grant. The fencing token has six bits for their number, and 0 is the grant itself.
/// The bound also limits how long other processes wait. (Measured: 8 hand-offs reach nine tenths of
/// the throughput of 64.)
const MAX_HAND_OFFS: u8 = 63;
/// How long after its grant a lease may still be handed on: the share of one process while others
/// wait. Long enough for sections of a fraction of a millisecond to share a round trip, short
/// against the ttl. (Measured: 20 ms gain 2 to 4 %, and other processes wait four times as long.)
const TIME_BUDGET: Duration = Duration::from_millis(5);
/// A holder that is done within this time does not pay for lengthening a short lease.
const SHORT_SECTION: Duration = Duration::from_millis(50);
/// What must be left for a holder with a long ttl: enough time to lengthen the lease. A store hands
/// a lock between processes for 3 s at most, which leaves at least this much.
const TIME_TO_LIFT: Duration = Duration::from_millis(300);

/// A grant of the store, and how often it was handed on in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOffChain {
    /// The grant number; 0 if the claim did not request one.
    number: u64,
    hand_offs: u8,
    granted: Instant,
    /// The longest ttl that a holder may have requested from the store.
    longest_ttl: Duration,
}

impl HandOffChain {
    /// Starts with the grant of `number`, entered at `granted`.
    pub(crate) const fn new(number: u64, granted: Instant, ttl: Duration) -> Self {
        Self { number, hand_offs: 0, granted, longest_ttl: ttl }
    }

    /// Whether number and time allow one more holder in this process.
    pub(crate) fn may_go_on(&self, now: Instant) -> bool {
        self.hand_offs < MAX_HAND_OFFS && now.saturating_since(self.granted) < TIME_BUDGET
    }

    /// The chain of the next holder, which may renew for `ttl`.
    #[must_use]
    pub(crate) fn next(mut self, ttl: Duration) -> Self {
        self.hand_offs += 1;
        self.requested(ttl)
    }

    /// The same chain after a holder may have requested `ttl`.
    #[must_use]
    pub(crate) fn requested(mut self, ttl: Duration) -> Self {
        self.longest_ttl = self.longest_ttl.max(ttl);
        self
    }

    /// Whether the present holder got the lease from another holder of this process.
    pub(crate) const fn is_handed_on(&self) -> bool {
        self.hand_offs > 0
    }

    /// Whether the grant has a number.
    pub(crate) const fn is_fenced(&self) -> bool {
        self.number != 0
    }

    /// The present holder's token. A holder that did not request one gets none, though the grant
    /// may have a number.
    pub(crate) fn fencing_token(&self, requested: bool) -> FencingToken {
        if requested && self.is_fenced() {
            FencingToken::of_grant(self.number, self.hand_offs)
        } else {
            FencingToken::NONE
        }
    }

    /// The longest ttl that was or may have been requested.
    pub(crate) const fn longest_ttl(&self) -> Duration {
        self.longest_ttl
    }
}

/// Whether a lease until `deadline` is worth handing to a waiter that requests `ttl`.
pub(crate) fn enough_to_hand_on(now: Instant, deadline: Instant, ttl: Duration) -> bool {
    let least = min_remaining(ttl).min(TIME_TO_LIFT);
    // Never at the deadline itself, however short the ttl.
    now < deadline && now.saturating_add(least) <= deadline
}

/// Whether a lease until `until` is noticeably shorter than one granted for `ttl` now, and has to
/// be lengthened. A twentieth of the ttl does not count: the share of one process takes that
/// much of the shortest ttl.
pub(crate) fn is_short(now: Instant, until: Instant, ttl: Duration) -> bool {
    deadline(now, ttl).saturating_since(until) > ttl / 20
}

/// When to lengthen a lease that is shorter than its holder's ttl; `until` is its deadline. After
/// [`SHORT_SECTION`], so that a short section does not cost another command.
pub(crate) fn lift_due(now: Instant, until: Instant) -> Instant {
    now.saturating_add(SHORT_SECTION.min(until.saturating_since(now) / 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_origin(Duration::from_micros(micros))
    }

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn sixty_four_holders_of_a_grant_have_growing_numbers_below_the_next_grant() {
        let mut chain = HandOffChain::new(7, at(0), TTL);
        let mut tokens = vec![chain.fencing_token(true)];
        while chain.may_go_on(at(1)) {
            chain = chain.next(TTL);
            tokens.push(chain.fencing_token(true));
        }
        assert_eq!(tokens.len(), 64);
        assert!(tokens.is_sorted_by(|one, two| one < two));
        assert!(
            tokens
                .iter()
                .all(|&token| token < HandOffChain::new(8, at(0), TTL).fencing_token(true))
        );
    }

    #[test]
    fn hand_off_time_counts_from_the_grant() {
        let chain = HandOffChain::new(7, at(100), TTL).next(TTL);
        assert!(chain.may_go_on(at(5_099)));
        assert!(!chain.may_go_on(at(5_100)));
    }

    #[test]
    fn holder_without_fencing_and_grant_without_a_number_have_no_token() {
        let (fenced, plain) = (HandOffChain::new(7, at(0), TTL), HandOffChain::new(0, at(0), TTL));
        assert_eq!(fenced.fencing_token(false), FencingToken::NONE);
        assert_eq!(plain.next(TTL).fencing_token(true), FencingToken::NONE);
        assert_eq!(fenced.next(TTL).fencing_token(true), FencingToken::from_raw(7 * 64 + 1));
    }

    #[test]
    fn chain_keeps_the_longest_ttl() {
        let chain = HandOffChain::new(7, at(0), TTL).next(TTL * 6).next(TTL);
        assert_eq!(chain.longest_ttl(), TTL * 6);
    }

    #[test]
    fn lease_of_the_same_ttl_is_not_short_within_the_budget() {
        for ttl in [Duration::from_millis(100), TTL, TTL * 8_640] {
            assert!(!is_short(at(5_000), deadline(at(0), ttl), ttl));
            assert!(is_short(at(0), deadline(at(0), ttl / 2), ttl));
            assert!(!is_short(at(0), deadline(at(0), ttl * 2), ttl));
        }
    }

    #[test]
    fn nearly_expired_lease_is_not_handed_on() {
        let ms = |millis: u64| at(millis * 1_000);
        assert!(enough_to_hand_on(ms(0), ms(10), Duration::from_millis(100)));
        assert!(!enough_to_hand_on(ms(0), ms(9), Duration::from_millis(100)));
        assert!(enough_to_hand_on(ms(0), ms(300), TTL));
        assert!(!enough_to_hand_on(ms(0), ms(299), TTL));
        assert!(!enough_to_hand_on(ms(1), ms(1), Duration::ZERO));
    }
}
