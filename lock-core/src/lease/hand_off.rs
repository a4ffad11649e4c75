//! How far one grant of the store may go through the hands of this process.

use std::time::Duration;

use super::validity::{deadline, min_remaining};
use crate::fencing::FencingToken;
use crate::time::Instant;

/// Hand-offs of one grant that can be numbered: the fencing token has six bits for them, and 0 is the grant itself. It
/// also bounds what other processes wait for. (Measured: 8 reach nine tenths of the throughput of 64.)
const MOST_HAND_OFFS: u8 = 63;
/// How long after its grant a lease may still be handed on: the turn of one process while others wait. Long enough for
/// sections of a fraction of a millisecond to share a round trip, short against the ttl. (Measured: 20 ms gain 2 to
/// 4 %, and the others wait four times as long.)
const TIME_BUDGET: Duration = Duration::from_millis(5);
/// Who holds for no longer than this does not have a short lease lengthened.
const SHORT_SECTION: Duration = Duration::from_millis(50);
/// What must be left for a holder with a long ttl: time to lengthen the lease, as the longest ttl with which a store
/// hands a lock between processes (3 s) leaves at least.
const TIME_TO_LIFT: Duration = Duration::from_millis(300);

/// A grant of the store, and its way through this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// What the store minted; 0: nothing, for nobody here asked for it.
    number: u64,
    hand_offs: u8,
    granted: Instant,
    /// The longest ttl that a holder may have asked the store for.
    longest_ttl: Duration,
}

impl Chain {
    /// Begins with the grant of `number`, entered at `granted`.
    pub(crate) const fn new(number: u64, granted: Instant, ttl: Duration) -> Self {
        Self { number, hand_offs: 0, granted, longest_ttl: ttl }
    }

    /// Whether there may be one more holder in this process, by number and time.
    pub(crate) fn may_go_on(&self, now: Instant) -> bool {
        self.hand_offs < MOST_HAND_OFFS && now.saturating_since(self.granted) < TIME_BUDGET
    }

    /// The chain for the next holder, who may renew for `ttl`.
    #[must_use]
    pub(crate) fn next(mut self, ttl: Duration) -> Self {
        self.hand_offs += 1;
        self.asked_for(ttl)
    }

    /// The same chain after a holder may have asked for `ttl`.
    #[must_use]
    pub(crate) fn asked_for(mut self, ttl: Duration) -> Self {
        self.longest_ttl = self.longest_ttl.max(ttl);
        self
    }

    /// Whether the present holder has it from another one of this process.
    pub(crate) const fn is_handed_on(&self) -> bool {
        self.hand_offs > 0
    }

    /// Whether its holders have numbers.
    pub(crate) const fn is_fenced(&self) -> bool {
        self.number != 0
    }

    /// The present holder's number; none for one who did not ask for it, though the grant may have one.
    pub(crate) fn fence(&self, wanted: bool) -> FencingToken {
        if wanted && self.is_fenced() {
            FencingToken::of_turn(self.number, self.hand_offs)
        } else {
            FencingToken::NONE
        }
    }

    /// The longest ttl that was or may be asked for.
    pub(crate) const fn longest_ttl(&self) -> Duration {
        self.longest_ttl
    }
}

/// Whether a lease until `deadline` is worth handing to one who wants it for `ttl`.
pub(crate) fn enough_to_hand_on(now: Instant, deadline: Instant, ttl: Duration) -> bool {
    let least = min_remaining(ttl).min(TIME_TO_LIFT);
    // Not at the deadline itself, however short the ttl.
    now < deadline && now.saturating_add(least) <= deadline
}

/// Whether a lease until `until` is noticeably shorter than one that is granted for `ttl` `now`, so that it has to be
/// lengthened. What one turn of a process takes does not count: that is a twentieth of the shortest ttl.
pub(crate) fn is_short(now: Instant, until: Instant, ttl: Duration) -> bool {
    deadline(now, ttl).saturating_since(until) > ttl / 20
}

/// When to lengthen a lease that is shorter than its holder's ttl: soon, but for those that end soon, to whom it would be a
/// command more for nothing. `until` is its deadline.
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
    fn a_grant_has_sixty_four_holders_with_numbers_that_grow_and_none_of_the_next_grant() {
        let mut chain = Chain::new(7, at(0), TTL);
        let mut fences = vec![chain.fence(true)];
        while chain.may_go_on(at(1)) {
            chain = chain.next(TTL);
            fences.push(chain.fence(true));
        }
        assert_eq!(fences.len(), 64);
        assert!(fences.is_sorted_by(|one, two| one < two));
        assert!(fences.iter().all(|&fence| fence < Chain::new(8, at(0), TTL).fence(true)));
    }

    #[test]
    fn the_time_counts_from_the_grant_and_not_from_the_last_hand_off() {
        let chain = Chain::new(7, at(100), TTL).next(TTL);
        assert!(chain.may_go_on(at(5_099)));
        assert!(!chain.may_go_on(at(5_100)));
    }

    #[test]
    fn who_does_not_want_a_number_gets_none_and_a_grant_without_one_gives_none() {
        let (fenced, plain) = (Chain::new(7, at(0), TTL), Chain::new(0, at(0), TTL));
        assert_eq!(fenced.fence(false), FencingToken::NONE);
        assert_eq!(plain.next(TTL).fence(true), FencingToken::NONE);
        assert_eq!(fenced.next(TTL).fence(true), FencingToken::from_raw(7 * 64 + 1));
    }

    #[test]
    fn a_chain_remembers_the_longest_ttl() {
        let chain = Chain::new(7, at(0), TTL).next(TTL * 6).next(TTL);
        assert_eq!(chain.longest_ttl(), TTL * 6);
    }

    #[test]
    fn a_lease_of_the_same_ttl_is_not_short_within_the_budget_whatever_the_ttl() {
        for ttl in [Duration::from_millis(100), TTL, TTL * 8_640] {
            assert!(!is_short(at(5_000), deadline(at(0), ttl), ttl));
            assert!(is_short(at(0), deadline(at(0), ttl / 2), ttl));
            assert!(!is_short(at(0), deadline(at(0), ttl * 2), ttl));
        }
    }

    #[test]
    fn too_little_is_not_handed_on() {
        let ms = |millis: u64| at(millis * 1_000);
        assert!(enough_to_hand_on(ms(0), ms(10), Duration::from_millis(100)));
        assert!(!enough_to_hand_on(ms(0), ms(9), Duration::from_millis(100)));
        assert!(enough_to_hand_on(ms(0), ms(300), TTL));
        assert!(!enough_to_hand_on(ms(0), ms(299), TTL));
        assert!(!enough_to_hand_on(ms(1), ms(1), Duration::ZERO));
    }
}
