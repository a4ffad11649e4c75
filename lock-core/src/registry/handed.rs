//! What goes from one to the next in line: a lease between two holders, or a claim that is not granted yet.

use std::sync::Arc;
use std::time::Duration;

use super::{Seat, Situation, Wants};
use crate::driver::Job;
use crate::lease::{Chain, enough_to_hand_on};
use crate::store::Release;
use crate::store::Token;
use crate::time::Instant;

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

/// A claim whose task has given it up. Its token may have a place in the store's queue, which is the process's rather than the
/// task's: the next in line goes on with it. With nobody there it is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pledge {
    pub(crate) token: Token,
    /// The longest that was asked for with it.
    pub(crate) ttl: Duration,
    /// For logs: what the last who claimed called it.
    pub(crate) label: &'static str,
}

impl Pledge {
    /// Gives it to the first in line, or back to the store if there is none.
    pub(crate) fn pass_on(self, seat: Seat) {
        if let Err(seat) = seat.pledge(self) {
            self.give_back(seat);
        }
    }

    /// Gives it back to the store, though somebody may stand in line: the seat goes on behind the release.
    pub(crate) fn give_back(self, seat: Seat) {
        let janitor = Arc::clone(seat.janitor());
        janitor.open();
        seat.set(Situation::Releasing);
        let release = Release::new(seat.name().clone(), self.token, None);
        janitor.push(Job::of_claim(release, Some(seat), self.label, self.ttl));
    }
}
