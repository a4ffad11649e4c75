//! What the renewer does with a held lease, and what the store's answers do to it.

use std::sync::Arc;
use std::time::Duration;

use super::Held;
use crate::error::{Error, LostReason};
use crate::lease::{renewal_due, renewal_patience, retry_due};
use crate::registry::{Seat, Situation};
use crate::store::{Renewal, Renewed};
use crate::time::Instant;

/// What the renewer shall do with a lease whose time has come.
pub(crate) enum OnDue {
    /// Nothing more: it is over.
    Forget,
    /// Look again then.
    LookAgain(Instant),
    Renew(Renewal),
}

impl Held {
    /// Has the renewer look at the lease at `at`.
    pub(crate) fn schedule(self: &Arc<Self>, at: Instant) {
        let due = self.client.renewer.schedule(Arc::downgrade(self), at);
        let stale = {
            let mut shared = self.lock();
            // A release that came in between has nothing to take back, so it is done here. And somebody may have been faster with
            // a later one.
            let outdone = shared.due.is_some_and(|other| other.came_after(due));
            if outdone || shared.state.is_released() { Some(due) } else { shared.due.replace(due) }
        };
        if let Some(stale) = stale {
            self.client.renewer.forget(stale);
        }
    }

    /// Whether what is due next is a renewal that may as well be sent a little earlier.
    pub(crate) fn is_renewed_regularly(&self) -> bool {
        self.terms.renewal && self.with(|shared, _| shared.state.is_sure() && !shared.is_short)
    }

    /// What the renewer shall do now that the lease is due.
    pub(crate) fn on_due(&self) -> OnDue {
        let next = self.with(|shared, now| {
            shared.due = None;
            if !mutant!("renewal-after-release") {
                shared.state.check(now).ok()?;
            }
            let deadline = shared.state.deadline();
            if !(self.terms.renewal || shared.is_short) || shared.state.ends_by_hold() {
                return Some(Err(deadline));
            }
            Some(Ok(renewal_patience(now, deadline)))
        });
        match next {
            None => OnDue::Forget,
            Some(Err(deadline)) => OnDue::LookAgain(deadline),
            Some(Ok(until)) => {
                OnDue::Renew(Renewal::new(self.name().clone(), self.token, self.terms.ttl, until))
            }
        }
    }

    /// Takes in the answer to the renewer's renewal, and has the lease looked at again in time.
    pub(crate) fn on_renewed(self: &Arc<Self>, answer: Result<Renewed, Error>, jitter: u8) {
        let was_sure =
            self.with(|shared, now| shared.state.check(now).is_ok() && shared.state.is_sure());
        let failed = match self.apply(answer, self.terms.ttl) {
            Ok(()) => false,
            Err(error) => {
                // Once for each doubt, not for each try.
                if was_sure {
                    tracing::warn!(
                        target: "lock_core", key = self.key.label(), fence = %self.fence(), %error,
                        "lock not renewed; trying again until its deadline"
                    );
                }
                true
            }
        };
        let next = self.with(|shared, now| {
            shared.state.check(now).ok()?;
            let deadline = shared.state.deadline();
            Some(if failed {
                retry_due(now, deadline, jitter).min(deadline)
            } else if self.terms.renewal {
                renewal_due(now, deadline)
            } else {
                deadline
            })
        });
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// Takes in the answer to a renewal for `ttl`.
    pub(crate) fn apply(&self, answer: Result<Renewed, Error>, ttl: Duration) -> Result<(), Error> {
        let now = Instant::now();
        match answer {
            Ok(Renewed::Kept { since }) => {
                let deadline = self.with(|shared, now| {
                    shared.state.renewed(since, ttl, now);
                    shared.is_short &= ttl < self.terms.ttl;
                    shared.seat.is_some().then(|| shared.state.deadline())
                });
                if let Some(deadline) = deadline {
                    self.with_seat(|seat| seat.set(Situation::Held(deadline)));
                }
            }
            Ok(Renewed::Nobody) => self.lose(LostReason::Gone),
            Ok(Renewed::Other) => self.lose(LostReason::TakenByOther),
            Err(_) if mutant!("failed-renewal-is-a-loss") => self.lose(LostReason::Gone),
            Err(_) if mutant!("failed-renewal-counts") => {
                self.with(|shared, now| shared.state.renewed(now, ttl, now));
            }
            Err(error) => {
                self.with(|shared, _| shared.state.doubted(now));
                return Err(error);
            }
        }
        Ok(())
    }

    fn with_seat(&self, act: impl FnOnce(&Seat)) {
        let shared = self.lock();
        if let Some(seat) = &shared.seat {
            act(seat);
        }
    }
}
