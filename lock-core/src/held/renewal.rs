//! What the renewer does with a held lease, and what the store's replies do to it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::inner::LeaseInner;
use crate::activity::HeldLock;
use crate::driver::{OnDue, Renewable};
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{renewal_due, renewal_patience, retry_due, ttl_until};
use crate::registry::Status;
use crate::store::{LeaseNeeds, Renewal, Renewed, Token};
use crate::time::Instant;

impl Renewable for LeaseInner {
    fn on_due(self: Arc<Self>) -> OnDue {
        let next = self.update(|record, now| {
            record.due = None;
            record.state.check(now).ok()?;
            let deadline = record.state.deadline();
            // A short lease is lengthened once to its ttl, even without renewal.
            if !(self.options.renewal || record.is_short) || record.state.ends_by_hold() {
                return Some(Err(deadline));
            }
            Some(Ok(renewal_patience(now, deadline)))
        });
        match next {
            None => OnDue::Forget,
            Some(Err(deadline)) => OnDue::LookAgain(deadline),
            Some(Ok(until)) => {
                let (name, ttl) = (self.name().clone(), self.options.ttl);
                let renewal = Renewal::new(name, self.token, ttl, until);
                let lease: Weak<Self> = Arc::downgrade(&self);
                OnDue::Renew(renewal.with_lease(lease))
            }
        }
    }

    fn on_renewed(self: Arc<Self>, reply: Result<Renewed, Error>, jitter: u8) {
        let was_sure =
            self.update(|record, now| record.state.check(now).is_ok() && record.state.is_sure());
        // After the release, `end` has judged the time that counts.
        if self.client.slow.hold.is_some() && self.observe().is_ok() {
            self.warn_if_long(self.held_for());
        }
        self.metrics.renewed(matches!(reply, Ok(Renewed::Kept { .. })));
        let failed = match self.apply(reply, self.options.ttl) {
            Ok(()) => false,
            Err(error) => {
                // Once per doubt, not once per try.
                if was_sure {
                    tracing::warn!(
                        target: "lock_core", key = self.key.label(), fence = %self.fencing_token(),
                        error = error.with_causes(),
                        "lock not renewed; trying again until its deadline"
                    );
                }
                true
            }
        };
        let next = self.update(|record, now| {
            record.state.check(now).ok()?;
            let deadline = record.state.deadline();
            Some(if failed {
                retry_due(now, deadline, jitter).min(deadline)
            } else if self.options.renewal {
                renewal_due(now, deadline)
            } else {
                deadline
            })
        });
        if let Some(next) = next {
            self.schedule_at(next);
        }
    }

    fn schedule(self: Arc<Self>, at: Instant) {
        self.schedule_at(at);
    }

    fn may_renew_early(&self) -> bool {
        self.options.renewal && self.update(|record, _| record.state.is_sure() && !record.is_short)
    }

    fn holds(&self, token: Token) -> Option<FencingToken> {
        (self.token == token && self.observe().is_ok()).then(|| self.fencing_token())
    }

    fn describe(&self) -> Option<HeldLock> {
        self.update(|record, now| {
            let remaining = record.state.check(now).ok()?;
            let held_for = now.saturating_since(record.state.granted_at());
            let in_doubt = record.state.is_in_doubt();
            Some(HeldLock::new(
                self.key.clone(),
                self.fencing_token(),
                held_for,
                remaining,
                in_doubt,
            ))
        })
    }

    fn lose(&self, reason: LostReason) {
        self.update(|record, now| record.state.lose(reason, now));
    }
}

impl LeaseNeeds for LeaseInner {
    fn needs(&self, sent: Instant) -> Option<Duration> {
        // The clock is not compared with the deadline: a lease that ends must do so elsewhere than
        // under the lock of the store that calls this.
        let record = self.lock();
        if record.state.end_reason().is_some() || record.extending > 0 {
            return None;
        }
        Some(ttl_until(sent, record.state.confirmed_until()).max(self.options.ttl))
    }
}

impl LeaseInner {
    /// Applies the reply to a renewal for `ttl`.
    pub(super) fn apply(&self, reply: Result<Renewed, Error>, ttl: Duration) -> Result<(), Error> {
        let now = Instant::now();
        match reply {
            Ok(Renewed::Kept { since }) => {
                let deadline = self.update(|record, now| {
                    record.state.renewed(since, ttl, now);
                    record.is_short &= ttl < self.options.ttl;
                    record.turn.is_some().then(|| record.state.deadline())
                });
                if let Some(deadline) = deadline
                    && let Some(turn) = &self.lock().turn
                {
                    turn.set_status(Status::Held(deadline));
                }
            }
            Ok(Renewed::Gone) => self.lose(LostReason::Gone),
            Ok(Renewed::TakenByOther) => self.lose(LostReason::TakenByOther),
            Err(error) => {
                self.update(|record, _| record.state.doubted(now));
                return Err(error);
            }
        }
        Ok(())
    }
}
