//! Failed dials: the pauses after them, what the last one says, and since when there is no
//! connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::time::Instant;

/// The failed dials since the last success.
#[derive(Default)]
pub(super) struct Outage(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    backoff: Backoff,
    last: Option<Failure>,
    /// When the first dial began that is not over, or failed.
    wanted: Option<Instant>,
    /// Another server has taken the place of this one since.
    is_replaced: bool,
}

struct Failure {
    error: Error,
    retry_at: Instant,
}

impl Outage {
    /// The error of the last failure, while the pause after it lasts.
    pub(super) fn pause(&self) -> Option<Error> {
        let failures = self.lock();
        let last = failures.last.as_ref().filter(|last| last.retry_at > Instant::now())?;
        Some(last.error.clone())
    }

    /// The error of the last failure, unless there was a success since.
    pub(super) fn last(&self) -> Option<Error> {
        self.lock().last.as_ref().map(|last| last.error.clone())
    }

    /// A connection is needed from now on.
    pub(super) fn begin(&self) {
        self.lock().wanted.get_or_insert_with(Instant::now);
    }

    /// A dial succeeded. Returns whether others failed before, and how long the server was missed,
    /// unless another one took its place.
    pub(super) fn end(&self) -> (bool, Option<Duration>) {
        let Failures { last, wanted, is_replaced, .. } = std::mem::take(&mut *self.lock());
        let wanted = wanted.filter(|_| !is_replaced);
        (last.is_some(), wanted.map(|wanted| Instant::now().saturating_since(wanted)))
    }

    /// Another server has taken the place of this one: how long it was missed, if dials failed.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn end_by_another(&self) -> Option<Duration> {
        let mut failures = self.lock();
        failures.last.as_ref().filter(|_| !failures.is_replaced)?;
        failures.is_replaced = true;
        failures.wanted.map(|wanted| Instant::now().saturating_since(wanted))
    }

    /// A dial failed with `error`. Returns whether that begins an outage.
    pub(super) fn fail(&self, error: Error) -> bool {
        self.lock().fail(error).is_none()
    }

    /// Pauses as after a failure with `error` that follows on so many `others`.
    pub(super) fn fail_after(&self, others: u32, error: Error) {
        let mut failures = self.lock();
        failures.backoff = Backoff::after(others);
        failures.fail(error);
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn fail(&mut self, error: Error) -> Option<Failure> {
        let retry_at = Instant::now().saturating_add(self.backoff.next_pause());
        self.last.replace(Failure { error, retry_at })
    }
}

#[cfg(all(test, feature = "redis-cluster"))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn server_is_missed_until_it_is_back_or_replaced() {
        let (outage, away) = (Outage::default(), Error::plain(ErrorKind::Unavailable, "away"));
        outage.begin();
        assert!(matches!(outage.end(), (false, Some(_))), "the first dial");
        assert!(outage.end_by_another().is_none(), "it is not missed");
        outage.begin();
        assert!(outage.fail(away.clone()) && !outage.fail(away.clone()));
        assert!(matches!(outage.end(), (true, Some(_))));
        outage.begin();
        assert!(outage.fail(away));
        assert!(outage.end_by_another().is_some());
        assert!(outage.end_by_another().is_none(), "it ended already");
        outage.begin();
        assert_eq!(outage.end(), (true, None), "it comes back as another's replica");
    }
}
