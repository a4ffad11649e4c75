//! What an experiment went through, for the report of `make faults`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

/// Names the file to which experiments add a line each.
pub const REPORT: &str = "LOCK_FAULTS_REPORT";

/// An experiment that lacks an event goes on for up to so many times its usual rounds, or its usual span.
const PATIENCE: u32 = 10;
/// A span of an hour is not followed by nine more.
const LONGEST: Duration = Duration::from_secs(600);

/// One experiment: a fault that is injected while something is promised.
///
/// Some events are a matter of chance, and of how busy the machine is. So an experiment ends neither after a fixed number of
/// rounds nor by the clock, but goes on until it has seen each of its events: see [`next_round`](Self::next_round) and
/// [`goes_on`](Self::goes_on).
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
    /// Events that can only be counted when it is over.
    last: Vec<&'static str>,
    rounds: usize,
    begun: Option<Instant>,
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
        Self {
            number,
            name,
            fault,
            runs: 0,
            events,
            last: Vec::new(),
            rounds: 0,
            begun: None,
            finished: false,
        }
    }

    /// These events are counted when it is over, so it does not go on until they occur.
    #[must_use]
    pub fn counted_last(mut self, events: &[&'static str]) -> Self {
        self.last.extend(events);
        self
    }

    /// The number of the next round, from 0: there are `usual` rounds, and then more until each event has occurred, up to ten
    /// times as many.
    pub fn next_round(&mut self, usual: usize) -> Option<usize> {
        let limit = usual * PATIENCE as usize;
        let round = self.rounds;
        let goes_on = round < usual || round < limit && self.lacks().next().is_some();
        self.rounds += 1;
        goes_on.then_some(round)
    }

    /// Whether to go on: for the `usual` span since this was first called, and then until each event has occurred, up to ten
    /// times as long.
    pub fn goes_on(&mut self, usual: Duration) -> bool {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let elapsed = begun.elapsed();
        elapsed < usual || elapsed < Self::limit(usual) && self.lacks().next().is_some()
    }

    /// How long an experiment may go on that usually takes the `usual` span.
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

#[cfg(test)]
mod tests {
    use std::thread::sleep;

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
    fn a_span_goes_on_until_each_event_has_occurred() {
        let usual = Duration::from_millis(100);
        let (mut experiment, begun) = (experiment(), Instant::now());
        experiment.saw("often", 1);
        assert!(experiment.goes_on(usual));
        sleep(2 * usual);
        assert!(experiment.goes_on(Duration::from_secs(3_600)), "the span is not over");
        assert!(experiment.goes_on(usual) || begun.elapsed() > 9 * usual, "it lacks an event");
        experiment.saw("seldom", 1);
        assert!(!experiment.goes_on(usual));
        end(experiment);
    }

    #[test]
    fn a_span_ends_after_ten_times_as_long_or_a_few_minutes_more() {
        let usual = Duration::from_millis(10);
        let mut experiment = experiment();
        assert!(experiment.goes_on(usual));
        sleep(10 * usual);
        assert!(!experiment.goes_on(usual), "an event that never occurs would hold it up for ever");
        end(experiment);
        assert_eq!(Experiment::limit(4 * usual), 40 * usual);
        let hour = Duration::from_secs(3_600);
        assert_eq!(Experiment::limit(hour), hour + LONGEST);
    }
}
