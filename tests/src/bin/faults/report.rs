//! The report: what was injected, how often, and what came of it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

#[derive(Default)]
pub(crate) struct Report {
    experiments: BTreeMap<(u64, String, String), Tally>,
    mutants: BTreeMap<String, Mutant>,
    pub(crate) suites: Vec<Ran>,
}

pub(crate) struct Ran {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) passed: bool,
}

#[derive(Default)]
struct Tally {
    runs: u64,
    events: BTreeMap<String, u64>,
    violations: u64,
}

struct Mutant {
    bug: String,
    by: String,
    caught: bool,
}

impl Report {
    /// Takes in what a suite reported: a JSON object in each line.
    pub(crate) fn add_lines(&mut self, lines: &str) {
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            if line.get("mutant").is_some() {
                let caught = line["caught"].as_bool().unwrap();
                let mutant = Mutant { bug: text("bug"), by: text("by"), caught };
                self.mutants.insert(text("mutant"), mutant);
                continue;
            }
            let key = (line["experiment"].as_u64().unwrap(), text("name"), text("fault"));
            let tally = self.experiments.entry(key).or_default();
            tally.runs += line["runs"].as_u64().unwrap();
            tally.violations += line["violations"].as_u64().unwrap();
            for (event, count) in line["events"].as_object().unwrap() {
                *tally.events.entry(event.clone()).or_default() += count.as_u64().unwrap();
            }
        }
    }

    fn events(&self) -> u64 {
        self.experiments.values().flat_map(|tally| tally.events.values()).sum()
    }

    fn violations(&self) -> u64 {
        self.experiments.values().map(|tally| tally.violations).sum()
    }

    fn caught(&self) -> usize {
        self.mutants.values().filter(|mutant| mutant.caught).count()
    }

    pub(crate) fn is_good(&self) -> bool {
        let complete = !self.experiments.is_empty() || !self.mutants.is_empty();
        complete
            && self.violations() == 0
            && self.caught() == self.mutants.len()
            && self.suites.iter().all(|suite| suite.passed)
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

    pub(crate) fn to_markdown(&self, quick: bool) -> String {
        let mut out = String::from("# What the locks were put through\n\n");
        let dose = if quick { "make faults-quick`, the small dose" } else { "make faults`" };
        let _ = writeln!(
            out,
            "Written by `{dose}. A violation is a promise that did not hold; an experiment whose events did not happen fails.\n"
        );
        let _ = writeln!(out, "**{}**\n", self.sum());
        out += "| | promised | fault | runs | events | violations |\n|--:|---|---|--:|---|--:|\n";
        for ((number, name, fault), tally) in &self.experiments {
            let events: Vec<_> = tally
                .events
                .iter()
                .map(|(event, count)| format!("{} {event}", grouped(*count)))
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
        out += "\n## Suites\n\n| suite | seconds, building included | |\n|---|--:|---|\n";
        for suite in &self.suites {
            let verdict = if suite.passed { "passed" } else { "**failed**" };
            let _ = writeln!(out, "| {} | {} | {verdict} |", suite.name, suite.took.as_secs());
        }
        out
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
