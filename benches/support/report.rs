//! Thresholds, and the page that a full run writes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::run::Run;
use super::table::{Column, Table, aligned, number};
use super::{chart, machine, stats};
use crate::peers;

/// The results of a scenario.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) tables: Vec<Table>,
    pub(crate) thresholds: Vec<Threshold>,
}

/// A figure with the value that it must reach.
pub(crate) struct Threshold {
    pub(crate) what: String,
    /// `None` if there was nothing to measure.
    pub(crate) figure: Option<f64>,
    pub(crate) required: Limit,
    pub(crate) target: Option<Limit>,
    pub(crate) unit: &'static str,
}

#[derive(Clone, Copy)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Limit {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(limit) => figure >= limit,
            Self::AtMost(limit) => figure <= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(limit) => format!("≥ {limit}"),
            Self::AtMost(limit) => format!("≤ {limit}"),
        }
    }
}

impl Threshold {
    fn verdict(&self) -> &'static str {
        let Some(figure) = self.figure else { return "not measured" };
        if !self.required.is_met(figure) {
            "MISSED"
        } else if self.target.is_some_and(|target| target.is_met(figure)) {
            "met, target too"
        } else {
            "met"
        }
    }

    fn words(&self) -> Vec<String> {
        let figure =
            number(self.figure, if self.figure.is_some_and(|f| f >= 100.0) { 0 } else { 2 });
        let figure = if self.unit.is_empty() { figure } else { format!("{figure} {}", self.unit) };
        let target = self.target.map_or_else(String::new, Limit::text);
        let verdict = self.verdict().to_owned();
        vec![self.what.clone(), figure, self.required.text(), target, verdict]
    }

    fn json(&self) -> Value {
        json!({
            "threshold": self.what, "figure": self.figure, "required": self.required.text(),
            "target": self.target.map(Limit::text), "verdict": self.verdict(),
        })
    }
}

const HEADS: [&str; 5] = ["threshold", "figure", "required", "target", ""];

/// Mutual exclusion itself: no two critical sections on one key may overlap.
fn no_overlaps() -> Threshold {
    let (sections, overlaps) = stats::checked();
    Threshold {
        what: format!("overlaps in {} sections on shared keys", number(Some(sections as f64), 0)),
        figure: Some(overlaps as f64),
        required: Limit::AtMost(0.0),
        target: None,
        unit: "",
    }
}

pub(crate) fn print_json(outcome: &Outcome) {
    for table in &outcome.tables {
        println!("{}", table.json());
    }
    let overlaps = no_overlaps();
    let thresholds = outcome.thresholds.iter().chain([&overlaps]).map(Threshold::json);
    let thresholds: Vec<_> = thresholds.collect();
    println!("{}", json!({ "scenario": "failures", "rows": stats::failures() }));
    println!("{}", json!({ "scenario": "thresholds", "rows": thresholds }));
}

pub(crate) fn print_text(outcome: &Outcome) {
    for table in &outcome.tables {
        println!("{}", table.text());
    }
    let mut lines = vec![HEADS.map(str::to_owned).to_vec()];
    lines.extend(outcome.thresholds.iter().map(Threshold::words));
    lines.push(no_overlaps().words());
    println!("{}", aligned(&lines));
    for failure in stats::failures() {
        println!("failed, round not counted: {failure}");
    }
}

/// Writes RESULTS.md and its charts into `folder`.
pub(crate) fn write(run: &Run, outcome: &Outcome, folder: &Path) {
    let plots = folder.join("plots");
    fs::create_dir_all(&plots).unwrap();
    let mut page = head(run);
    writeln!(page, "## Thresholds\n\n| {} |\n|---|---:|---|---|---|", HEADS.join(" | ")).unwrap();
    for threshold in outcome.thresholds.iter().chain([&no_overlaps()]) {
        writeln!(page, "| {} |", threshold.words().join(" | ")).unwrap();
    }
    page.push('\n');
    for failure in stats::failures() {
        writeln!(page, "* Failed, round not counted: {failure}").unwrap();
    }
    page.push_str(&peers());
    for table in &outcome.tables {
        writeln!(page, "## {}\n\n{}", table.title, table.markdown()).unwrap();
        for key in table.drawn {
            let Some((Column { head, digits, .. }, values)) = table.column(key) else { continue };
            if values.len() < 2 {
                continue;
            }
            let file = format!("{}-{key}.svg", table.id.replace('/', "-"));
            chart::bars(&plots.join(&file), &format!("{}: {head}", table.title), &values, *digits);
            writeln!(page, "![{head}](plots/{file})\n").unwrap();
        }
    }
    fs::write(folder.join("RESULTS.md"), page).unwrap();
}

fn head(run: &Run) -> String {
    format!(
        "# What locks cost\n\n\
         Written by `make bench`; do not edit. Compare ratios rather than absolute figures: on one \
         machine, the round trip to Redis dominates.\n\n\
         | | |\n|---|---|\n\
         | machine | {machine} |\n\
         | server | redis-server {redis}, no persistence, on the loopback |\n\
         | pinning | {pinning} |\n\
         | clients | {rustc}, release profile, tokio's current-thread runtime, one per process |\n\
         | lease | 30 s, except in the fault scenarios |\n\
         | duration | {elapsed:.0} s |\n\n\
         Rounds are interleaved: each round measures every peer once, in rotating order. A \
         figure is the median over the rounds; a ratio is the median of the rounds' ratios. \
         Holds are timed by timerfd. Every critical section on a shared key records its entry \
         and exit with CLOCK_MONOTONIC. The records of all processes are merged and checked for \
         overlaps. A gap is the time from one section's exit to the next section's entry. \
         Commands are those that clients send, from `INFO commandstats`, without the commands \
         that scripts call. Waiters run in a closed loop without think time. A peer that lets \
         the last holder acquire again first therefore looks fast in the hot-key tables; the \
         drain tables and the sections per waiter show the difference.\n\n",
        machine = machine::describe(),
        redis = run.server.version,
        pinning = run.cores.describe(),
        rustc = machine::rustc(),
        elapsed = run.started.elapsed().as_secs_f64(),
    )
}

fn peers() -> String {
    let mut out = "## Peers\n\n| | version | |\n|---|---|---|\n".to_owned();
    for peer in peers::ALL {
        let version = machine::version_of(peer.package);
        writeln!(out, "| {} | {} {version} | {} |", peer.name, peer.package, peer.about).unwrap();
    }
    out.push('\n');
    out
}
