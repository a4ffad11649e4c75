//! A lease between two holders of this process.

use std::sync::Arc;

use super::{Seat, Situation, Wants};
use crate::driver::Job;
use crate::lease::{Chain, enough_to_hand_on};
use crate::store::Release;
use crate::time::Instant;
use crate::token::Token;

/// A lease that its holder has ended while it was good. Whoever has it in hand enters it, passes it on or gives it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handed {
    pub(crate) token: Token,
    /// The last holder's.
    pub(crate) chain: Chain,
    /// Until when the store has confirmed it.
    pub(crate) deadline: Instant,
    /// For logs: what the last holder called it.
    pub(crate) label: &'static str,
}

impl Handed {
    /// Whether one who stands in line may have it.
    pub(super) fn suits(&self, wants: &Wants, now: Instant) -> bool {
        !wants.impatient
            && (self.chain.is_fenced() || !wants.fencing)
            && self.chain.may_go_on(now)
            && self.is_good_for(wants, now)
    }

    /// Whether enough is left of it.
    pub(super) fn is_good_for(&self, wants: &Wants, now: Instant) -> bool {
        enough_to_hand_on(now, self.deadline, wants.ttl)
    }

    /// Gives it to the first in line, or back to the store if there is none who may have it.
    pub(super) fn pass_on(self, seat: Seat) {
        let now = Instant::now();
        if let Err(seat) = seat.hand_on(self, now) {
            self.give_back(seat, now);
        }
    }

    /// Gives it back to the store; the seat goes on behind the release.
    pub(super) fn give_back(self, seat: Seat, now: Instant) {
        let janitor = Arc::clone(seat.janitor());
        janitor.open();
        seat.set_at(Situation::Releasing, now);
        let Self { token, chain, deadline, label } = self;
        let release = Release::new(seat.name().clone(), token, None);
        let ttl = chain.longest_ttl();
        let good_until = Some(deadline).filter(|&until| now < until);
        janitor.push(Job::of_lease(release, Some(seat), label, ttl, good_until, deadline, now));
    }
}
