//! What an experiment went through, for the report of `make faults`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use serde_json::json;

/// Names the file to which experiments add a line each.
pub const REPORT: &str = "LOCK_FAULTS_REPORT";

/// An experiment that lacks an event ends after this many times its usual rounds or span.
const PATIENCE: u32 = 10;
/// An experiment that runs for an hour does not wait nine more hours for an event.
const LONGEST: Duration = Duration::from_secs(600);

/// Whether a test has to do the round with this number, counted from 0.
///
/// For tests that demand an event of chance and are not experiments. A test does the `usual`
/// rounds, and then more until it `has_enough`, up to ten times as many.
#[must_use]
pub fn is_due(round: usize, usual: usize, has_enough: bool) -> bool {
    round < usual || round < usual * PATIENCE as usize && !has_enough
}

/// One experiment: a fault that is injected to try a promise.
///
/// Some events are a matter of chance and of how busy the machine is. Such an experiment does not
/// end after a fixed number of rounds or by the clock. It goes on until each event has occurred,
/// within bounds: see [`next_round`](Self::next_round) and [`limit`](Self::limit).
///
/// A test counts its runs, and the events without which it proves nothing, and ends with
/// [`finish`](Self::finish). If it panics before, that is reported as a violation.
#[derive(Debug)]
pub struct Experiment {
    number: u32,
    name: &'static str,
    fault: &'static str,
    runs: u64,
    events: BTreeMap<&'static str, u64>,
    /// What need not occur.
    others: BTreeMap<&'static str, u64>,
    /// In milliseconds.
    spans: BTreeMap<&'static str, Vec<u64>>,
    /// Events that are counted when the experiment is over.
    last: Vec<&'static str>,
    rounds: usize,
    finished: bool,
}

impl Experiment {
    /// Begins the experiment `number` of the programme: the promise, and the `fault` that tries it.
    ///
    /// `events` are the kinds that have to occur at least once.
    #[must_use]
    pub fn new(
        number: u32,
        name: &'static str,
        fault: &'static str,
        events: &[&'static str],
    ) -> Self {
        let events = events.iter().map(|event| (*event, 0)).collect();
        Self {
            number,
            name,
            fault,
            runs: 0,
            events,
            others: BTreeMap::new(),
            spans: BTreeMap::new(),
            last: Vec::new(),
            rounds: 0,
            finished: false,
        }
    }

    /// These events are counted when the experiment is over, so it does not wait for them.
    #[must_use]
    pub fn counted_last(mut self, events: &[&'static str]) -> Self {
        self.last.extend(events);
        self
    }

    /// The number of the next round, counted from 0. There are `usual` rounds, and then more until
    /// each event has occurred, up to ten times as many.
    pub fn next_round(&mut self, usual: usize) -> Option<usize> {
        let round = self.rounds;
        let is_due = is_due(round, usual, self.lacks().next().is_none());
        self.rounds += 1;
        is_due.then_some(round)
    }

    /// How long an experiment waits for its events if it usually takes the `usual` span.
    #[must_use]
    pub fn limit(usual: Duration) -> Duration {
        usual + (usual * (PATIENCE - 1)).min(LONGEST)
    }

    /// The events that have not occurred yet, except those that are counted last.
    pub fn lacks(&self) -> impl Iterator<Item = &'static str> {
        let unseen = self.events.iter().filter(|(_, count)| **count == 0);
        unseen.map(|(event, _)| *event).filter(|event| !self.last.contains(event))
    }

    /// Counts runs.
    pub fn ran(&mut self, runs: usize) {
        self.runs += runs as u64;
    }

    /// Counts events of a kind that [`new`](Self::new) was given.
    pub fn saw(&mut self, event: &'static str, count: usize) {
        *self.events.get_mut(event).unwrap() += count as u64;
    }

    /// Counts what may occur and proves nothing, for the report.
    pub fn also_saw(&mut self, what: &'static str, count: usize) {
        *self.others.entry(what).or_default() += count as u64;
    }

    /// Records how long something took. The report shows the median and the longest.
    pub fn took(&mut self, what: &'static str, span: Duration) {
        let millis = u64::try_from(span.as_millis()).unwrap();
        self.spans.entry(what).or_default().push(millis);
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
        let mut events = self.events.clone();
        events.append(&mut self.others);
        let line = json!({
            "experiment": self.number, "name": self.name, "fault": self.fault, "runs": self.runs,
            "events": events, "spans": self.spans, "violations": u64::from(!self.finished),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment() -> Experiment {
        Experiment::new(0, "a test of experiments", "none", &["often", "seldom", "at the end"])
            .counted_last(&["at the end"])
    }

    fn end(mut experiment: Experiment) {
        experiment.ran(1);
        for event in ["often", "seldom", "at the end"] {
            experiment.saw(event, 1);
        }
        experiment.finish();
    }

    #[test]
    fn rounds_go_on_until_each_event_has_occurred() {
        let (mut experiment, mut rounds) = (experiment(), Vec::new());
        while let Some(round) = experiment.next_round(3) {
            rounds.push(round);
            experiment.saw("often", 1);
            experiment.saw("seldom", usize::from(round == 7));
        }
        assert_eq!(rounds, [0, 1, 2, 3, 4, 5, 6, 7]);
        experiment.ran(rounds.len());
        experiment.saw("at the end", 1);
        experiment.finish();
    }

    #[test]
    fn rounds_are_as_many_as_usual_where_events_occur_early() {
        let mut experiment = experiment();
        experiment.saw("often", 1);
        experiment.saw("seldom", 1);
        let rounds = std::iter::from_fn(|| experiment.next_round(3)).count();
        assert_eq!(rounds, 3);
        end(experiment);
    }

    #[test]
    #[should_panic(expected = "it never came to `seldom`")]
    fn an_event_that_does_not_occur_in_ten_times_the_rounds_is_named() {
        let (mut experiment, mut rounds) = (experiment(), 0);
        while let Some(_round) = experiment.next_round(3) {
            rounds += 1;
            experiment.saw("often", 1);
        }
        assert_eq!(rounds, 30);
        experiment.ran(rounds);
        experiment.saw("at the end", 1);
        experiment.finish();
    }

    #[test]
    fn a_span_is_followed_by_nine_more_or_a_few_minutes() {
        let second = Duration::from_secs(1);
        assert_eq!(Experiment::limit(4 * second), 40 * second);
        assert_eq!(Experiment::limit(3_600 * second), 3_600 * second + LONGEST);
    }
}
