//! The report: what was injected, how often, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

#[derive(Default)]
pub(crate) struct Report {
    experiments: BTreeMap<(u64, String, String), Tally>,
    mutants: BTreeMap<String, Mutant>,
    pub(crate) suites: Vec<Ran>,
    /// Without experiments of these numbers it is not whole.
    demanded: BTreeSet<u64>,
    /// Nor without these.
    known: BTreeSet<(u64, String, String)>,
}

/// What became of a suite.
pub(crate) struct Ran {
    pub(crate) name: &'static str,
    pub(crate) dose: &'static str,
    pub(crate) took: Duration,
    pub(crate) passed: bool,
    pub(crate) told: Told,
}

/// What the experiments of a suite told.
#[derive(Clone, Copy, Default)]
pub(crate) struct Told {
    /// A suite that tells nothing proves nothing.
    pub(crate) lines: usize,
    /// How many of them are violations or missed mutants.
    pub(crate) bad: usize,
}

#[derive(Default)]
struct Tally {
    runs: u64,
    events: BTreeMap<String, u64>,
    /// How long things took, in milliseconds.
    spans: BTreeMap<String, Vec<u64>>,
    violations: u64,
}

struct Mutant {
    bug: String,
    by: String,
    caught: bool,
}

impl Report {
    /// Requires all experiments on which a promise of `readme` rests, and those of `page`, the last
    /// report. To remove an experiment, remove its row there.
    pub(crate) fn of_all_promises(readme: &str, page: &str) -> Self {
        let (_, table) = readme.split_once("## What is promised").unwrap();
        let rows = table.lines().take_while(|line| !line.starts_with("## "));
        let cells = rows.filter_map(|line| line.strip_prefix('|')?.split('|').nth(1));
        let numbers =
            cells.flat_map(|cell| cell.split(',')).filter_map(|it| it.trim().parse().ok());
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let mut cell = || cells.next().map(str::to_owned);
            Some((cell()?.parse().ok()?, cell()?, cell()?))
        };
        Self {
            demanded: numbers.collect(),
            known: page.lines().filter_map(row).collect(),
            ..Self::default()
        }
    }

    /// The experiments that are demanded and told nothing.
    pub(crate) fn missing(&self) -> Vec<String> {
        let told: BTreeSet<_> = self.experiments.keys().map(|(number, ..)| *number).collect();
        let numbers = self.demanded.difference(&told).map(|number| format!("experiment {number}"));
        let rows = self.known.iter().filter(|key| told.contains(&key.0));
        let rows = rows.filter(|key| !self.experiments.contains_key(key));
        let rows =
            rows.map(|(number, name, fault)| format!("experiment {number}, {name}: {fault},"));
        numbers.chain(rows).collect()
    }

    /// Takes in what a suite reported, a JSON object in each line.
    pub(crate) fn add_lines(&mut self, lines: &str) -> Told {
        let mut told = Told::default();
        for line in lines.lines() {
            told.lines += 1;
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            if line.get("mutant").is_some() {
                let caught = line["caught"].as_bool().unwrap();
                let mutant = Mutant { bug: text("bug"), by: text("by"), caught };
                told.bad += usize::from(!caught);
                self.mutants.insert(text("mutant"), mutant);
                continue;
            }
            let key = (line["experiment"].as_u64().unwrap(), text("name"), text("fault"));
            let tally = self.experiments.entry(key).or_default();
            tally.runs += line["runs"].as_u64().unwrap();
            let violations = line["violations"].as_u64().unwrap();
            tally.violations += violations;
            told.bad += usize::from(violations > 0);
            for (event, count) in line["events"].as_object().unwrap() {
                *tally.events.entry(event.clone()).or_default() += count.as_u64().unwrap();
            }
            for (what, spans) in line["spans"].as_object().into_iter().flatten() {
                let spans = spans.as_array().unwrap().iter().map(|span| span.as_u64().unwrap());
                tally.spans.entry(what.clone()).or_default().extend(spans);
            }
        }
        told
    }

    fn events(&self) -> u64 {
        self.experiments.values().flat_map(|tally| tally.events.values()).sum()
    }

    /// Those of the experiments, and the experiments that were not run. A suite that fails without
    /// one had a test that reports nothing, or did not come to its end.
    fn violations(&self) -> u64 {
        let silent = self.suites.iter().filter(|suite| !suite.is_good() && suite.told.bad == 0);
        let told: u64 = self.experiments.values().map(|tally| tally.violations).sum();
        told + (silent.count() + self.missing().len()) as u64
    }

    fn caught(&self) -> usize {
        self.mutants.values().filter(|mutant| mutant.caught).count()
    }

    pub(crate) fn is_good(&self) -> bool {
        !self.suites.is_empty()
            && self.violations() == 0
            && self.caught() == self.mutants.len()
            && self.suites.iter().all(Ran::is_good)
    }

    pub(crate) fn sum(&self) -> String {
        format!(
            "faults: {} experiments, {} events, {} violations, {} of {} mutants caught",
            self.experiments.len(),
            self.events(),
            self.violations(),
            self.caught(),
            self.mutants.len(),
        )
    }

    /// Written by the command `by`.
    pub(crate) fn to_markdown(&self, by: &str) -> String {
        let mut out = String::from("# What the locks were put through\n\n");
        let _ = writeln!(
            out,
            "Written by `{by}`; the doses are in the last table. The numbers on the left are those of the experiments in\n\
             [README.md](README.md), which says what each promise rests on. A violation is a promise that did not hold, an\n\
             experiment that was not run, or whose events did not happen, or a suite that failed without a word.\n"
        );
        let _ = writeln!(out, "**{}**\n", self.sum());
        out += "| | promised | fault | runs | events | violations |\n|--:|---|---|--:|---|--:|\n";
        for ((number, name, fault), tally) in &self.experiments {
            let events: Vec<_> = tally
                .events
                .iter()
                .map(|(event, count)| format!("{} {event}", grouped(*count)))
                .chain(tally.spans.iter().map(|(what, spans)| longest(what, spans)))
                .collect();
            let _ = writeln!(
                out,
                "| {number} | {name} | {fault} | {} | {} | {} |",
                grouped(tally.runs),
                events.join(", "),
                tally.violations,
            );
        }
        if !self.mutants.is_empty() {
            out += "\n## Known bugs, planted\n\n| mutant | the bug | caught by | |\n|---|---|---|---|\n";
            for (name, mutant) in &self.mutants {
                let verdict = if mutant.caught { "caught" } else { "**missed**" };
                let _ = writeln!(out, "| {name} | {} | {} | {verdict} |", mutant.bug, mutant.by);
            }
        }
        out += "\n## Suites\n\n| suite | dose | seconds | |\n|---|---|--:|---|\n";
        for suite in &self.suites {
            let verdict = if suite.is_good() { "passed" } else { "**failed**" };
            let seconds = suite.took.as_secs();
            let _ = writeln!(out, "| {} | {} | {seconds} | {verdict} |", suite.name, suite.dose);
        }
        out
    }
}

impl Ran {
    pub(crate) fn is_good(&self) -> bool {
        self.passed && self.told.lines > 0
    }
}

/// How long something took.
fn longest(what: &str, spans: &[u64]) -> String {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    let (median, most) = (spans[spans.len() / 2], spans[spans.len() - 1]);
    format!("{what}: {} ms in the median, {} ms at most", grouped(median), grouped(most))
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str = r#"{"experiment":7,"name":"held","fault":"a","runs":3,"events":{"x":1200,"y":2},"violations":0}"#;
    const BROKEN: &str =
        r#"{"experiment":7,"name":"held","fault":"b","runs":1,"events":{"x":0},"violations":1}"#;
    const CAUGHT: &str = r#"{"mutant":"m","bug":"a bug","by":"suite test","caught":true}"#;
    const MISSED: &str = r#"{"mutant":"n","bug":"a bug","by":"suite test","caught":false}"#;

    /// A run of one suite that ended so, and reported this.
    fn after(lines: &[&str], passed: bool) -> Report {
        let mut report = Report::default();
        let told = report.add_lines(&lines.join("\n"));
        let took = Duration::from_secs(5);
        report.suites.push(Ran { name: "s", dose: "small", took, passed, told });
        report
    }

    #[test]
    fn a_run_in_which_all_held_is_good() {
        let report = after(&[HELD, HELD, CAUGHT], true);
        assert!(report.is_good());
        let sum = "faults: 1 experiments, 2404 events, 0 violations, 1 of 1 mutants caught";
        assert_eq!(report.sum(), sum);
        let text = report.to_markdown("make faults");
        assert!(text.contains("Written by `make faults`;"), "{text}");
        assert!(text.contains("| 7 | held | a | 6 | 2,400 x, 4 y | 0 |"), "{text}");
        assert!(text.contains("| m | a bug | suite test | caught |"), "{text}");
        assert!(text.contains("| s | small | 5 | passed |"), "{text}");
    }

    #[test]
    fn a_violation_goes_unnoticed() {
        let report = after(&[HELD, BROKEN, CAUGHT], true);
        assert!(!report.is_good());
        let sum = "faults: 2 experiments, 1202 events, 1 violations, 1 of 1 mutants caught";
        assert_eq!(report.sum(), sum);
        // Another run of the same experiment that holds does not make up for it.
        assert!(!after(&[BROKEN, HELD, &BROKEN.replace(":1}", ":0}")], true).is_good());
    }

    #[test]
    fn an_experiment_of_a_promise_is_left_out() {
        let readme = "| no | 9 |\n## What is promised\n\n| promise | experiments | tests |\n|---|---|---|\n\
                      | One | 7, 12 | `a` |\n| .. more |  | `b` |\n\n## Else\n| x | 8 | `c` |\n";
        let page = "| | promised | fault | runs |\n|--:|---|---|--:|\n| 7 | held | a | 1 |\n| 7 | held | b | 1 |\n";
        let mut report = Report::of_all_promises(readme, page);
        report.suites = after(&[HELD], true).suites;
        report.add_lines(HELD);
        assert_eq!(report.missing(), ["experiment 12", "experiment 7, held: b,"]);
        assert!(!report.is_good() && report.sum().contains(" 2 violations, "));
        report.add_lines(&HELD.replace(":7,", ":12,"));
        assert!(!report.is_good() && report.sum().contains(" 1 violations, "));
        report.add_lines(&HELD.replace("\"a\"", "\"b\""));
        assert!(report.is_good());
    }

    #[test]
    fn spans_are_shown_by_their_median_and_the_longest() {
        let one = HELD.replace("\"violations\"", "\"spans\":{\"the end\":[9,1]},\"violations\"");
        let report =
            after(&[&one, &one.replace("9,1", "1200,3,2")], true).to_markdown("make faults");
        let row = "2,400 x, 4 y, the end: 3 ms in the median, 1,200 ms at most |";
        assert!(report.contains(row), "{report}");
    }

    #[test]
    fn a_mutant_that_is_missed_goes_unnoticed() {
        let report = after(&[HELD, CAUGHT, MISSED], true);
        assert!(!report.is_good());
        assert!(report.sum().ends_with("0 violations, 1 of 2 mutants caught"));
        assert!(
            report
                .to_markdown("make faults-quick")
                .contains("| n | a bug | suite test | **missed** |")
        );
    }

    #[test]
    fn a_suite_that_fails_or_says_nothing_goes_unnoticed() {
        for report in [after(&[HELD, CAUGHT], false), after(&[], true)] {
            assert!(!report.is_good());
            assert!(report.sum().contains(" 1 violations, "), "{}", report.sum());
        }
        // Nor is one counted twice.
        assert!(after(&[HELD, BROKEN], false).sum().contains(" 1 violations, "));
        assert!(after(&[HELD, MISSED], false).sum().contains(" 0 violations, 0 of 1 mutants"));
        assert!(!Report::default().is_good());
        let mut report = after(&[HELD], true);
        report.suites.extend(after(&[], true).suites);
        assert!(!report.is_good());
        assert!(report.to_markdown("make faults").contains("| s | small | 5 | **failed** |"));
    }
}
