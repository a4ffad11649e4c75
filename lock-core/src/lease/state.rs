//! The states of a lease.

use std::time::Duration;

use super::validity::{deadline, min_remaining};
use crate::error::LostReason;
use crate::time::Instant;

/// A lease from its grant to its end.
///
/// Events: [`renewed`](Self::renewed), [`doubted`](Self::doubted), [`lose`](Self::lose),
/// [`begin_release`](Self::begin_release). Questions: [`check`](Self::check),
/// [`deadline`](Self::deadline).
#[derive(Clone, Debug)]
pub(crate) struct LeaseState {
    phase: Phase,
    granted: Instant,
    /// When the lease ends unless the store confirms a renewal, whatever `max_hold` is.
    confirmed_until: Instant,
    /// `max_hold` as a point in time: no renewal moves it.
    max_hold_ends: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Held,
    InDoubt,
    Lost(LostReason),
    Released,
}

/// The grant came so late that too little of the lease is left.
#[derive(Debug)]
pub(crate) struct TooLate;

impl LeaseState {
    /// A lease of `ttl` whose command was sent at `sent` and whose grant is examined at `now`.
    pub(crate) fn granted(
        sent: Instant,
        ttl: Duration,
        max_hold: Option<Duration>,
        now: Instant,
    ) -> Result<Self, TooLate> {
        let deadline = deadline(sent, ttl);
        if now.saturating_add(min_remaining(ttl)) > deadline {
            return Err(TooLate);
        }
        let max_hold_ends = max_hold.map(|most| now.saturating_add(most));
        Ok(Self { phase: Phase::Held, granted: now, confirmed_until: deadline, max_hold_ends })
    }

    /// A lease that its last holder in this process hands on `now`. The store had confirmed it
    /// until `confirmed_until`. The `max_hold` of the new holder starts; that of the last one no
    /// longer counts.
    pub(crate) fn handed_on(
        confirmed_until: Instant,
        max_hold: Option<Duration>,
        now: Instant,
    ) -> Self {
        let max_hold_ends = max_hold.map(|most| now.saturating_add(most));
        Self { phase: Phase::Held, granted: now, confirmed_until, max_hold_ends }
    }

    /// A renewal or extension that was sent at `sent` was confirmed for `ttl`.
    ///
    /// The store only ever lengthens, so the later deadline holds, in whatever order replies
    /// arrive.
    pub(crate) fn renewed(&mut self, sent: Instant, ttl: Duration, now: Instant) {
        if self.check(now).is_ok() {
            self.confirmed_until = self.confirmed_until.max(deadline(sent, ttl));
            self.phase = Phase::Held;
        }
    }

    /// A renewal or extension was not confirmed. Moves no deadline.
    pub(crate) fn doubted(&mut self, now: Instant) {
        if self.check(now).is_ok() {
            self.phase = Phase::InDoubt;
        }
    }

    /// The store or the client found that the lease has ended. The first reason stays.
    pub(crate) fn lose(&mut self, reason: LostReason, now: Instant) {
        if self.check(now).is_ok() {
            self.phase = Phase::Lost(reason);
        }
    }

    /// The guard ends the lease. `true` for the first call only: that caller sends the release.
    pub(crate) fn begin_release(&mut self) -> bool {
        let first = self.phase != Phase::Released;
        self.phase = Phase::Released;
        first
    }

    /// Whether the guard has ended it.
    pub(crate) fn is_released(&self) -> bool {
        self.phase == Phase::Released
    }

    /// Why the lease has ended, if that was noticed before. Does not read the clock.
    pub(crate) fn end_reason(&self) -> Option<LostReason> {
        match self.phase {
            Phase::Held | Phase::InDoubt => None,
            Phase::Lost(reason) => Some(reason),
            Phase::Released => Some(LostReason::Released),
        }
    }

    /// What is left of the lease, or why it has ended.
    pub(crate) fn check(&mut self, now: Instant) -> Result<Duration, LostReason> {
        match self.phase {
            Phase::Held | Phase::InDoubt => {
                let left = self.deadline().saturating_since(now);
                if left.is_zero() {
                    let by_hold =
                        self.max_hold_ends.is_some_and(|until| until <= self.confirmed_until);
                    let reason = if by_hold { LostReason::MaxHold } else { LostReason::Expired };
                    self.phase = Phase::Lost(reason);
                    return Err(reason);
                }
                Ok(left)
            }
            Phase::Lost(reason) => Err(reason),
            Phase::Released => Err(LostReason::Released),
        }
    }

    /// When the lease ends if nothing renews it, `max_hold` included.
    pub(crate) fn deadline(&self) -> Instant {
        self.max_hold_ends.map_or(self.confirmed_until, |until| until.min(self.confirmed_until))
    }

    /// Until when the store has confirmed it, `max_hold` left aside.
    pub(crate) fn confirmed_until(&self) -> Instant {
        self.confirmed_until
    }

    /// Whether `max_hold` ends the lease before its deadline does, so that renewing gains nothing.
    pub(crate) fn ends_by_hold(&self) -> bool {
        self.max_hold_ends.is_some_and(|until| until <= self.confirmed_until)
    }

    /// Whether the last renewal, if any, was confirmed, and the next one gains something.
    pub(crate) fn is_sure(&self) -> bool {
        self.phase == Phase::Held && !self.ends_by_hold()
    }

    /// Whether the last renewal got no reply.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.phase == Phase::InDoubt
    }

    /// When the lease was entered.
    pub(crate) fn granted_at(&self) -> Instant {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::validity::ttl_until;
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(millis))
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn grant_that_used_up_its_lease_is_refused() {
        LeaseState::granted(at(0), ms(1_000), None, at(885)).unwrap();
        LeaseState::granted(at(0), ms(1_000), None, at(889)).unwrap_err();
        LeaseState::granted(at(0), ms(1_000), None, at(60_000)).unwrap_err();
    }

    #[test]
    fn loss_is_final() {
        let mut lease = LeaseState::granted(at(0), ms(1_000), None, at(1)).unwrap();
        lease.lose(LostReason::Gone, at(10));
        lease.renewed(at(11), ms(60_000), at(12));
        lease.lose(LostReason::TakenByOther, at(13));
        assert_eq!(lease.check(at(14)), Err(LostReason::Gone));
    }

    #[test]
    fn failed_renewal_keeps_the_deadline_and_a_later_one_moves_it() {
        let mut lease = LeaseState::granted(at(0), ms(3_000), None, at(1)).unwrap();
        let before = lease.deadline();
        lease.doubted(at(1_500));
        assert_eq!(lease.deadline(), before);
        lease.renewed(at(1_600), ms(3_000), at(1_601));
        assert_eq!(lease.deadline(), deadline(at(1_600), ms(3_000)));
    }

    #[test]
    fn max_hold_ends_a_renewed_lease() {
        let mut lease = LeaseState::granted(at(0), ms(1_000), Some(ms(1_500)), at(0)).unwrap();
        lease.renewed(at(900), ms(1_000), at(901));
        assert!(lease.ends_by_hold());
        lease.check(at(1_499)).unwrap();
        assert_eq!(lease.check(at(1_500)), Err(LostReason::MaxHold));
    }

    #[test]
    fn handed_on_lease_keeps_its_deadline_but_not_its_max_hold() {
        let first = LeaseState::granted(at(0), ms(1_000), Some(ms(50)), at(0)).unwrap();
        let mut next = LeaseState::handed_on(first.confirmed_until(), None, at(40));
        assert_eq!(next.deadline(), deadline(at(0), ms(1_000)));
        next.check(at(60)).unwrap();
        let mut next = LeaseState::handed_on(first.confirmed_until(), Some(ms(50)), at(40));
        next.check(at(89)).unwrap();
        assert_eq!(next.check(at(90)), Err(LostReason::MaxHold));
    }

    /// What the store does with one message, and what the client learns of it.
    #[derive(Clone, Debug)]
    enum Step {
        /// A renewal for `ttl`: how long the request travels, and how long the reply does (`None`:
        /// the reply is lost).
        Renew {
            there: u64,
            back: Option<u64>,
            ttl: u64,
        },
        Wait(u64),
        Doubt,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..2_000, prop::option::of(0u64..2_000), 100u64..90_000)
                .prop_map(|(there, back, ttl)| Step::Renew { there, back, ttl }),
            (0u64..40_000).prop_map(Step::Wait),
            Just(Step::Doubt),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// While the client considers the lease valid, the store has not let it expire, even with
        /// the store's clock one percent fast and its expiry rounded down to milliseconds.
        #[test]
        fn client_never_considers_an_expired_lease_valid(
            ttl in 100u64..86_400_000,
            there in 0u64..100_000,
            back in 0u64..100_000,
            steps in prop::collection::vec(step(), 0..12),
        ) {
            // Real time in microseconds; the server's clock shows 1.01 times as much.
            let server = |real_us: u64| (u128::from(real_us) * 101 / 100) as u64;
            let mut now = (there + back) * 1_000;
            let mut expiry = server(there * 1_000) / 1_000 + ttl;
            let Ok(mut lease) = LeaseState::granted(at(0), ms(ttl), None, at(there + back)) else {
                return Ok(());
            };
            for step in steps {
                match step {
                    Step::Wait(millis) => now += millis * 1_000,
                    Step::Doubt => lease.doubted(Instant::from_origin(Duration::from_micros(now))),
                    Step::Renew { there, back, ttl } => {
                        let sent = Instant::from_origin(Duration::from_micros(now));
                        now += there * 1_000;
                        let alive = server(now) / 1_000 < expiry;
                        if alive {
                            expiry = expiry.max(server(now) / 1_000 + ttl);
                        }
                        let Some(back) = back else { continue };
                        now += back * 1_000;
                        let here = Instant::from_origin(Duration::from_micros(now));
                        if alive {
                            lease.renewed(sent, ms(ttl), here);
                        } else {
                            lease.lose(LostReason::Gone, here);
                        }
                    }
                }
                if lease.check(Instant::from_origin(Duration::from_micros(now))).is_ok() {
                    prop_assert!(server(now) / 1_000 < expiry);
                }
            }
        }

        /// A lease of the ttl that is computed for a deadline lasts until it, and not much longer.
        #[test]
        fn ttl_for_a_deadline_gives_it(sent in 0u64..1 << 60, left in 0u64..1 << 60) {
            let instant = |n| Instant::from_origin(Duration::from_nanos(n));
            let (sent, until) = (instant(sent), instant(sent + left));
            let given = deadline(sent, ttl_until(sent, until));
            prop_assert!(given >= until);
            let more = given.saturating_since(until);
            prop_assert!(more <= Duration::from_nanos(left / 1_000) + ms(1), "{more:?}");
        }

        #[test]
        fn no_arithmetic_panics(
            sent in any::<u64>(), ttl in any::<u64>(), hold in any::<u64>(), now in any::<u64>(),
        ) {
            let instant = |n| Instant::from_origin(Duration::from_nanos(n));
            let ttl = Duration::from_millis(ttl);
            if let Ok(mut lease) =
                LeaseState::granted(instant(sent), ttl, Some(Duration::from_secs(hold)), instant(now))
            {
                lease.renewed(instant(now), ttl, instant(now));
                let _ = lease.check(instant(now.saturating_add(1)));
                prop_assert!(lease.granted_at() == instant(now));
            }
        }
    }
}
