//! What is known here of the server's clock.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::time::Instant;

/// The last look at the server's clock.
#[derive(Debug)]
pub(super) struct ServerClock(Mutex<Sample>);

/// What the clock showed, and when it was asked.
#[derive(Clone, Copy, Debug)]
struct Sample {
    us: u64,
    sent: Instant,
}

/// Clocks that are synchronised at all are closer than this.
const FAR_APART: Duration = Duration::from_secs(10);

impl ServerClock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Sample { us: 0, sent: Instant::now() }))
    }

    /// Takes in the server's time, in microseconds, from the answer to a command that was sent at `sent`.
    pub(super) fn saw(&self, us: u64, sent: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Sample { us, sent };
    }

    /// The latest that the clock can show at `at`, by the last sample.
    ///
    /// A connection is open only after the first sample.
    pub(super) fn latest_at(&self, at: Instant) -> u64 {
        let Sample { us, sent } = self.last();
        let since = at.saturating_since(sent).as_micros();
        us.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// What the clock has passed for certain.
    pub(super) fn passed(&self) -> u64 {
        self.last().us
    }

    /// Warns of a server whose clock is far from ours. Locks do not mind, since only spans are compared, but fencing
    /// tokens follow the server's clock, and whoever reads its logs will.
    #[allow(clippy::disallowed_methods)] // the wall clock is what is asked for
    pub(super) fn warn_if_far(&self, server: &str) {
        let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let there = Duration::from_micros(self.latest_at(Instant::now()));
        let apart = here.abs_diff(there);
        if apart > FAR_APART {
            tracing::warn!(
                target: "lock_core", server, ?apart,
                "the clocks of this machine and of the lock server are far apart"
            );
        }
    }

    fn last(&self) -> Sample {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
