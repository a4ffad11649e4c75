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
    /// The latest time that the clock showed on that connection.
    latest_us: u64,
}

/// Clocks that are synchronised at all are closer than this.
const FAR_APART: Duration = Duration::from_secs(10);

impl ServerClock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Sample { us: 0, sent: Instant::now(), generation: 0, latest_us: 0 }))
    }

    /// Records the server's time, in microseconds, from the reply to a command sent at `sent` on
    /// connection `generation`. A reply on an older connection than the last says nothing.
    pub(crate) fn record(&self, us: u64, sent: Instant, generation: u64) {
        let mut sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generation >= sample.generation {
            let before = if generation == sample.generation { sample.latest_us } else { 0 };
            *sample = Sample { us, sent, generation, latest_us: us.max(before) };
        }
    }

    /// The latest time that the clock of connection `generation` can show at `at`, by the last
    /// sample. 0 if that was brought by another connection, which may lead to another server.
    ///
    /// A connection is open only after the first sample.
    pub(crate) fn latest_at(&self, at: Instant, generation: u64) -> u64 {
        self.last_of(generation).map_or(0, |sample| sample.latest_at(at))
    }

    /// Whether the clock went back, and has not caught up by `at`: until then a lock may last
    /// longer than any client asked. Judged by the replies on connection `generation`, since
    /// another connection may lead to another server.
    pub(crate) fn went_back(&self, at: Instant, generation: u64) -> bool {
        let sample = self.last();
        sample.generation == generation && sample.latest_at(at) < sample.latest_us
    }

    /// A time that the clock of connection `generation` has certainly passed.
    pub(crate) fn passed(&self, generation: u64) -> u64 {
        self.last_of(generation).map_or(0, |sample| sample.us)
    }

    /// Warns if the server's clock is far from this machine's. Locks are not affected, because they
    /// compare spans only. But fencing tokens follow the server's clock, and so do its logs.
    pub(crate) fn warn_if_far(&self, server: &str) {
        let apart = self.apart();
        if is_far(apart) {
            tracing::warn!(
                target: "lock_core", server, ?apart,
                "the clocks of this machine and of the lock server are far apart"
            );
        }
    }

    /// How far the server's clock is from this machine's, by the last sample, which is older than
    /// the reply that brought it by a part of a round trip.
    #[allow(clippy::disallowed_methods)] // the wall clock is what is compared
    pub(crate) fn apart(&self) -> Duration {
        let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let there = Duration::from_micros(self.last().latest_at(Instant::now()));
        here.abs_diff(there)
    }

    fn last(&self) -> Sample {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_of(&self, generation: u64) -> Option<Sample> {
        Some(self.last()).filter(|sample| sample.generation == generation)
    }
}

impl Sample {
    /// The latest time that the clock can show at `at`.
    fn latest_at(&self, at: Instant) -> u64 {
        self.us.saturating_add(micros(at.saturating_since(self.sent)))
    }
}

/// Whether clocks that are this far apart are not synchronised.
pub(crate) fn is_far(apart: Duration) -> bool {
    apart > FAR_APART
}

/// Whole milliseconds, rounded up: the server must not expire a lock before the client's deadline.
pub(crate) fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A time to live in milliseconds, as the server tells it: a key without an expiry (-1) may stay
/// for ever.
pub(crate) fn millis_left(left: i64) -> Duration {
    u64::try_from(left).map_or(Duration::MAX, Duration::from_millis)
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn clock_that_went_back_is_behind_until_it_catches_up() {
        let clock = ServerClock::new();
        clock.record(1_000 * SECOND, at(10), 1);
        assert!(!clock.went_back(at(10), 1));
        clock.record(1_003 * SECOND, at(13), 1);
        clock.record(944 * SECOND, at(14), 1);
        assert!(clock.went_back(at(14), 1));
        clock.record(945 * SECOND, at(15), 1);
        assert!(clock.went_back(at(72), 1));
        assert!(!clock.went_back(at(73), 1), "no expiry from before is too late any more");
    }

    /// A command that is sent on the connection before must not be void by the clock of another
    /// server, nor be taken for void because that is ahead.
    #[test]
    fn time_of_another_connection_is_not_the_time_of_this_one() {
        let clock = ServerClock::new();
        clock.record(1_000 * SECOND, at(10), 1);
        assert_eq!((clock.passed(1), clock.latest_at(at(11), 1)), (1_000 * SECOND, 1_001 * SECOND));
        clock.record(9_000 * SECOND, at(12), 2);
        assert_eq!((clock.passed(1), clock.latest_at(at(13), 1)), (0, 0));
        assert_eq!(clock.passed(2), 9_000 * SECOND);
    }

    #[test]
    fn late_reply_and_another_server_are_no_step_back() {
        let clock = ServerClock::new();
        clock.record(1_003 * SECOND, at(13), 1);
        clock.record(1_000 * SECOND, at(10), 1);
        assert!(!clock.went_back(at(13), 1));
        clock.record(900 * SECOND, at(14), 2);
        assert!(!clock.went_back(at(14), 2));
        clock.record(800 * SECOND, at(15), 2);
        assert!(clock.went_back(at(15), 2));
        assert!(!clock.went_back(at(15), 1), "the other connection may lead elsewhere");
    }
}
