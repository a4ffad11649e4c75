//! Pauses between attempts that fail.

use std::time::Duration;

use crate::random;

/// The pause after the first failure. It doubles with each further failure in a row, up to
/// [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// A store that is back is noticed this soon. The jitter stays below it.
const MAX_PAUSE: Duration = Duration::from_millis(1_000);

/// Counts failures in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// As after this many failures in a row.
    #[cfg(feature = "redis")]
    pub(crate) fn after(failures: u32) -> Self {
        Self { failures }
    }

    /// Counts one more failure and returns the pause before the next attempt.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = (FIRST_PAUSE * (1 << self.failures.min(6))).min(MAX_PAUSE / 3 * 2);
        self.failures = self.failures.saturating_add(1);
        jittered(pause)
    }
}

/// Half to one and a half times `pause`, so that clients that failed together do not all return at
/// once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause * u32::from(random::byte()) / 255
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_stay_jittered_there() {
        let mut backoff = Backoff::default();
        assert!(backoff.next_pause() <= FIRST_PAUSE * 3 / 2);
        let late: Vec<_> = (0..50).map(|_| backoff.next_pause()).skip(10).collect();
        assert!(late.iter().all(|pause| (MAX_PAUSE / 4..=MAX_PAUSE).contains(pause)), "{late:?}");
        assert!(late.iter().collect::<HashSet<_>>().len() > 10, "{late:?}");
    }
}
