//! The server's clock, as far as this client knows it, and the server's units of time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::time::Instant;

/// The last sample of the server's clock.
#[derive(Debug)]
pub(crate) struct ServerClock(Mutex<Sample>);

/// What the clock showed, and when the command that read it was sent.
#[derive(Clone, Copy, Debug)]
struct Sample {
    us: u64,
    sent: Instant,
    /// The connection that brought it. Another connection may lead to another server, whose clock
    /// says nothing about this one.
    generation: u64,
}

/// Clocks that are synchronised at all are closer than this.
const FAR_APART: Duration = Duration::from_secs(10);

impl ServerClock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Sample { us: 0, sent: Instant::now(), generation: 0 }))
    }

    /// Records the server's time, in microseconds, from the reply to a command sent at `sent` on
    /// connection `generation`. A reply on an older connection than the last says nothing.
    pub(crate) fn record(&self, us: u64, sent: Instant, generation: u64) {
        let mut sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generation >= sample.generation {
            *sample = Sample { us, sent, generation };
        }
    }

    /// The latest time that the clock can show at `at`, by the last sample.
    ///
    /// A connection is open only after the first sample.
    pub(crate) fn latest_at(&self, at: Instant) -> u64 {
        let Sample { us, sent, .. } = self.last();
        us.saturating_add(micros(at.saturating_since(sent)))
    }

    /// A time that the clock has certainly passed.
    pub(crate) fn passed(&self) -> u64 {
        self.last().us
    }

    /// Warns if the server's clock is far from this machine's. Locks are not affected, because they
    /// compare spans only. But fencing tokens follow the server's clock, and so do its logs.
    #[allow(clippy::disallowed_methods)] // the wall clock is what is compared
    pub(crate) fn warn_if_far(&self, server: &str) {
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

/// Whole milliseconds, rounded up: the server must not expire a lock before the client's deadline.
pub(crate) fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
