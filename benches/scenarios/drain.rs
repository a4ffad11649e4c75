//! Waiters arrive together and hold the lock once, for 1 ms each: how long until all are done?

use super::rounds::{Rounds, index_of, turns, waiting};
use crate::peers::{Config, FENCED, TTL};
use crate::support::clock::MS;
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::{self, Gaps, Section, quantile_us};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::{End, Race, Raced, Worker};

const COLUMNS: &[Column] = &[
    Column::new("ms", "ms until all were served", 1),
    Column::new("to_ideal", "/ sum of the holds", 2),
    Column::new("gap_p50_us", "gap p50 µs", 1),
    Column::new("gap_p99_us", "p99", 1),
    Column::new("commands", "commands per section", 2),
];

const HOLD: u64 = MS;
/// A peer that takes longer than this, in milliseconds, is skipped in the remaining rounds.
const SLOW_MS: f64 = 2_000.0;

struct Figures {
    ms: f64,
    to_ideal: f64,
    gap_p50: Option<f64>,
    gap_p99: Option<f64>,
    commands: f64,
}

pub(super) async fn measure(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    let settings = run.quick_or_full(&[(4, 4)][..], &[(1, 16), (4, 4), (4, 16), (4, 64)]);
    for (processes, waiters) in settings {
        let table = table(run, *processes, *waiters, &mut outcome.thresholds).await;
        outcome.tables.push(table);
    }
    outcome
}

async fn table(
    run: &Run,
    processes: usize,
    waiters: usize,
    thresholds: &mut Vec<Threshold>,
) -> Table {
    let kinds = waiting();
    let config = Config::with_ttl(&run.server.url, TTL);
    let all = processes * waiters;
    let title = format!(
        "Drain, {all} waiters in {}, hold 1 ms",
        if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") }
    );
    let rounds = run.quick_or_full(7, if all > 64 { 5 } else { 9 });
    let race = Race { waiters, hold: HOLD, lasts: None };
    let mut workers = Vec::new();
    for kind in &kinds {
        workers.push(Worker::start_all(kind, &config, processes).await);
    }
    let mut slow = vec![false; kinds.len()];
    let mut figures = Rounds::new(kinds.len(), rounds);
    for round in 0..rounds {
        run.progress(&title, round, rounds);
        for turn in turns(run, round, &kinds) {
            let key = format!("drain:{processes}x{waiters}:{round}");
            if slow[turn] {
                continue;
            }
            let Raced { start, mut sections, end, before, after } =
                Worker::race(&mut workers[turn], &key, race, &run.server).await;
            stats::check(&mut sections, kinds[turn].name);
            if end == End::Failed {
                stats::failed(kinds[turn].name, &title);
                workers[turn] = Worker::start_all(kinds[turn], &config, processes).await;
                continue;
            }
            assert_eq!(sections.len(), all, "each waiter enters once");
            let commands = after.commands_since(&before, kinds[turn].plain) as f64;
            let digest = digest(start, &sections, commands);
            slow[turn] = digest.ms > SLOW_MS;
            figures.put(turn, round, digest);
        }
    }
    let rows = kinds.iter().enumerate().map(|(index, kind)| Row {
        name: kind.name.to_owned(),
        values: vec![
            figures.median(index, |round| Some(round.ms)),
            figures.median(index, |round| Some(round.to_ideal)),
            figures.median(index, |round| round.gap_p50),
            figures.median(index, |round| round.gap_p99),
            figures.median(index, |round| Some(round.commands)),
        ],
    });
    if (processes, waiters) == (4, 4) {
        let fenced = index_of(FENCED, &kinds).unwrap();
        thresholds.push(Threshold {
            what: "drain, 16 waiters x 1 ms over 4 processes / sum of the holds".to_owned(),
            figure: figures.median(fenced, |round| Some(round.to_ideal)),
            required: Limit::AtMost(1.15),
            target: Some(Limit::AtMost(1.05)),
            unit: "",
        });
    }
    Table {
        id: format!("drain/{processes}x{waiters}"),
        title,
        columns: COLUMNS,
        rows: rows.collect(),
        drawn: &["ms"],
    }
}

fn digest(start: u64, sections: &[Section], commands: f64) -> Figures {
    let end = sections.iter().map(|section| section.exit).max().unwrap();
    let ideal: u64 = sections.iter().map(|section| section.exit - section.entry).sum();
    let mut gaps = Gaps::of(sections).switched;
    Figures {
        ms: (end - start) as f64 / 1e6,
        to_ideal: (end - start) as f64 / ideal as f64,
        gap_p50: quantile_us(&mut gaps, 0.5),
        gap_p99: quantile_us(&mut gaps, 0.99),
        commands: commands / sections.len() as f64,
    }
}
