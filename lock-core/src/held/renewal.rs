//! What the renewer does with a held lease, and what the store's replies do to it.

use std::sync::Arc;
use std::time::Duration;

use super::inner::LeaseInner;
use crate::driver::{OnDue, Renewable};
use crate::error::{Error, LostReason};
use crate::fencing::FencingToken;
use crate::lease::{renewal_due, renewal_patience, retry_due};
use crate::registry::Status;
use crate::store::{Renewal, Renewed, Token};
use crate::time::Instant;

impl Renewable for LeaseInner {
    fn on_due(&self) -> OnDue {
        let next = self.with(|record, now| {
            record.due = None;
            record.state.check(now).ok()?;
            let deadline = record.state.deadline();
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
                OnDue::Renew(Renewal::new(name, self.token, ttl, until))
            }
        }
    }

    fn on_renewed(self: Arc<Self>, reply: Result<Renewed, Error>, jitter: u8) {
        let was_sure =
            self.with(|record, now| record.state.check(now).is_ok() && record.state.is_sure());
        self.metrics.renewed(matches!(reply, Ok(Renewed::Kept { .. })));
        let failed = match self.apply(reply, self.options.ttl) {
            Ok(()) => false,
            Err(error) => {
                // Once per doubt, not once per try.
                if was_sure {
                    tracing::warn!(
                        target: "lock_core", key = self.key.label(), fence = %self.fence(),
                        error = error.with_causes(),
                        "lock not renewed; trying again until its deadline"
                    );
                }
                true
            }
        };
        let next = self.with(|record, now| {
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
        self.options.renewal && self.with(|record, _| record.state.is_sure() && !record.is_short)
    }

    fn holds(&self, token: Token) -> Option<FencingToken> {
        (self.token == token && self.observe().is_ok()).then(|| self.fence())
    }

    fn lose(&self, reason: LostReason) {
        self.with(|record, now| record.state.lose(reason, now));
    }
}

impl LeaseInner {
    /// Schedules the lease with the client's renewer.
    pub(super) fn schedule_at(self: &Arc<Self>, at: Instant) {
        let weak: std::sync::Weak<Self> = Arc::downgrade(self);
        let due = self.client.renewer.schedule(weak, at);
        let stale = {
            let mut record = self.lock();
            // A release in between found no entry to remove, so it is removed here. Another task
            // may have scheduled the lease later than this one.
            let outdated = record.due.is_some_and(|other| other.came_after(due));
            if outdated || record.state.is_released() { Some(due) } else { record.due.replace(due) }
        };
        if let Some(stale) = stale {
            self.client.renewer.forget(stale);
        }
    }

    /// Applies the reply to a renewal for `ttl`.
    pub(super) fn apply(&self, reply: Result<Renewed, Error>, ttl: Duration) -> Result<(), Error> {
        let now = Instant::now();
        match reply {
            Ok(Renewed::Kept { since }) => {
                let deadline = self.with(|record, now| {
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
                self.with(|record, _| record.state.doubted(now));
                return Err(error);
            }
        }
        Ok(())
    }
}
