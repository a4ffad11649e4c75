//! What the scenarios of one run share.

use std::time::Instant;

use super::machine::Cores;
use super::server::Server;

pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) cores: Cores,
    pub(crate) quick: bool,
    pub(crate) started: Instant,
}

impl Run {
    /// Returns `quick` in a quick run and `full` in a full one.
    pub(crate) fn quick_or_full<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Reports the progress of a scenario on stderr.
    pub(crate) fn progress(&self, scenario: &str, round: usize, rounds: usize) {
        let elapsed = self.started.elapsed().as_secs_f64();
        eprintln!("[{elapsed:6.1} s] {scenario}: round {} of {rounds}", round + 1);
    }
}
