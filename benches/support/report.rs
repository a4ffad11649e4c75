//! Bars, and the page that a full run writes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::args::Run;
use super::table::{Column, Table, aligned, number};
use super::{chart, machine, stats};
use crate::contenders;

/// What a cell found.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) tables: Vec<Table>,
    pub(crate) bars: Vec<Bar>,
}

/// A figure that has to be reached.
pub(crate) struct Bar {
    pub(crate) what: String,
    /// `None` if nothing was there to be measured.
    pub(crate) figure: Option<f64>,
    pub(crate) must: Limit,
    pub(crate) aim: Option<Limit>,
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

impl Bar {
    fn verdict(&self) -> &'static str {
        let Some(figure) = self.figure else { return "not measured" };
        if !self.must.is_met(figure) {
            "MISSED"
        } else if self.aim.is_some_and(|aim| aim.is_met(figure)) {
            "met, and the aim"
        } else {
            "met"
        }
    }

    fn words(&self) -> Vec<String> {
        let figure =
            number(self.figure, if self.figure.is_some_and(|f| f >= 100.0) { 0 } else { 2 });
        let aim = self.aim.map_or_else(String::new, Limit::text);
        let figure = if self.unit.is_empty() { figure } else { format!("{figure} {}", self.unit) };
        vec![self.what.clone(), figure, self.must.text(), aim, self.verdict().to_owned()]
    }

    fn json(&self) -> Value {
        json!({
            "bar": self.what, "figure": self.figure, "must": self.must.text(),
            "aim": self.aim.map(Limit::text), "verdict": self.verdict(),
        })
    }
}

const HEADS: [&str; 5] = ["bar", "figure", "must", "aim", ""];

/// The bar that stands above all others.
fn overlaps() -> Bar {
    let (sections, overlaps) = stats::checked();
    Bar {
        what: format!("overlaps in {} sections on shared keys", number(Some(sections as f64), 0)),
        figure: Some(overlaps as f64),
        must: Limit::AtMost(0.0),
        aim: None,
        unit: "",
    }
}

/// Prints what was found.
pub(crate) fn print(run: &Run, outcome: &Outcome) {
    if run.json {
        for table in &outcome.tables {
            println!("{}", table.json());
        }
        let bars = outcome.bars.iter().map(Bar::json).chain([overlaps().json()]);
        println!("{}", json!({ "cell": "failures", "rows": stats::failures() }));
        println!("{}", json!({ "cell": "bars", "rows": bars.collect::<Vec<_>>() }));
        return;
    }
    for table in &outcome.tables {
        println!("{}", table.text());
    }
    let mut lines = vec![HEADS.map(str::to_owned).to_vec()];
    lines.extend(outcome.bars.iter().map(Bar::words));
    lines.push(overlaps().words());
    println!("{}", aligned(&lines));
    for failure in stats::failures() {
        println!("failed, so that a round did not count: {failure}");
    }
}

/// Writes RESULTS.md and its charts into `folder`.
pub(crate) fn write(run: &Run, outcome: &Outcome, folder: &Path) {
    let plots = folder.join("plots");
    fs::create_dir_all(&plots).unwrap();
    let mut page = head(run);
    writeln!(page, "## Bars\n\n| {} |\n|---|---:|---|---|---|", HEADS.join(" | ")).unwrap();
    for bar in outcome.bars.iter().chain([&overlaps()]) {
        writeln!(page, "| {} |", bar.words().join(" | ")).unwrap();
    }
    page.push('\n');
    for failure in stats::failures() {
        writeln!(page, "* Failed, so that a round did not count: {failure}").unwrap();
    }
    page.push_str(&who());
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
         Written by `make bench`; do not edit. Compare ratios, not absolutes: on one machine a round trip is all there is.\n\n\
         | | |\n|---|---|\n\
         | machine | {machine} |\n\
         | server | redis-server {redis}, no persistence, on the loopback |\n\
         | pinning | {pinning} |\n\
         | clients | {rustc}, release profile, tokio's current-thread runtime, one per process |\n\
         | lease | 30 s, but for the faults |\n\
         | duration | {elapsed:.0} s |\n\n\
         Rounds are interleaved: in each, every contender has its turn, in rotated order. A figure is the median over the rounds, \
         a ratio the median of the rounds' ratios. Holds are timed by timerfd. Entry and exit of every critical section on a \
         shared key are stamped with CLOCK_MONOTONIC, those of all processes merged, and checked for overlap; the gap is the time from \
         one's exit to the next one's entry. Commands are what clients send, by `INFO commandstats`, without what scripts call. \
         Waiters run in a closed loop, without thinking in between, so a contender that lets the last holder come back first looks \
         quick in a race, and shows itself in the drains and the spread.\n\n",
        machine = machine::describe(),
        redis = run.server.version,
        pinning = run.cores.describe(),
        rustc = machine::rustc(),
        elapsed = run.started.elapsed().as_secs_f64(),
    )
}

fn who() -> String {
    let mut out = "## Contenders\n\n| | version | |\n|---|---|---|\n".to_owned();
    for kind in contenders::ALL {
        writeln!(out, "| {} | {} | {} |", kind.name, kind.version(), kind.about).unwrap();
    }
    out.push('\n');
    out
}
