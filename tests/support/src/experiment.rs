//! What an experiment went through, for the report of `make faults`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

use serde_json::json;

/// Names the file to which experiments add a line each.
pub const REPORT: &str = "LOCK_FAULTS_REPORT";

/// One experiment: a fault that is injected while something is promised.
///
/// A test counts its runs, and the events without which it proves nothing, and ends with [`finish`](Self::finish). If it
/// panics before, that is reported as a violation.
#[derive(Debug)]
pub struct Experiment {
    number: u32,
    name: &'static str,
    fault: &'static str,
    runs: u64,
    events: BTreeMap<&'static str, u64>,
    finished: bool,
}

impl Experiment {
    /// Begins the experiment `number` of the programme: what is promised, and the `fault` that tries it.
    ///
    /// `events` are the kinds that have to happen at least once.
    #[must_use]
    pub fn new(
        number: u32,
        name: &'static str,
        fault: &'static str,
        events: &[&'static str],
    ) -> Self {
        let events = events.iter().map(|event| (*event, 0)).collect();
        Self { number, name, fault, runs: 0, events, finished: false }
    }

    /// Counts runs.
    pub fn ran(&mut self, runs: usize) {
        self.runs += runs as u64;
    }

    /// Counts events of a kind that was announced.
    pub fn saw(&mut self, event: &'static str, count: usize) {
        *self.events.get_mut(event).unwrap() += count as u64;
    }

    /// Ends it: all that was promised was checked, and holds.
    ///
    /// # Panics
    ///
    /// If nothing was run, or a kind of event never happened.
    pub fn finish(mut self) {
        assert!(self.runs > 0, "{}: nothing was run", self.name);
        for (event, count) in &self.events {
            assert!(*count > 0, "{}: it never came to `{event}`", self.name);
        }
        self.finished = true;
    }
}

impl fmt::Display for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "experiment {}, {}", self.number, self.name)
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os(REPORT) else { return };
        let line = json!({
            "experiment": self.number, "name": self.name, "fault": self.fault, "runs": self.runs,
            "events": self.events, "violations": u64::from(!self.finished),
        });
        // In one write: other processes add lines, too.
        let file = OpenOptions::new().append(true).create(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        // A second panic would hide the first.
        if !std::thread::panicking() {
            written.unwrap();
        }
    }
}
