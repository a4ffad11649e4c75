//! Waiters of one or several processes acquire one key again and again.

use std::collections::HashMap;

use super::rounds::{Rounds, index_of, turns, waiting};
use crate::peers::{Config, FENCED, RSLOCK, TTL};
use crate::support::clock::{MS, US};
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::{self, Gaps, Section, quantile_us};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::{End, Race, Raced, Worker};

const COLUMNS: &[Column] = &[
    Column::new("per_s", "sections/s", 0),
    Column::new("to_rslock", "/ rslock", 2),
    Column::new("gap_p50_us", "gap p50 µs", 1),
    Column::new("gap_p99_us", "p99", 1),
    Column::new("within_p50_us", "within a process p50", 1),
    Column::new("within_p99_us", "p99", 1),
    Column::new("across_p50_us", "across p50", 1),
    Column::new("across_p99_us", "p99", 1),
    Column::new("commands", "commands per section", 2),
    Column::new("waiter_min", "sections per waiter min", 0),
    Column::new("waiter_max", "max", 0),
    Column::new("process_min", "per process min", 0),
    Column::new("process_max", "max", 0),
];

struct Setting {
    id: &'static str,
    title: &'static str,
    processes: usize,
    /// Per process.
    waiters: usize,
    /// Nanoseconds.
    hold: u64,
    /// Milliseconds per round: quick and full.
    lasts: (u64, u64),
    /// Whether a quick run includes it.
    quick: bool,
}

const SETTINGS: [Setting; 6] = [
    Setting {
        id: "1x64-0",
        title: "Hot key, 1 process with 64 waiters, hold 0",
        processes: 1,
        waiters: 64,
        hold: 0,
        lasts: (400, 800),
        quick: true,
    },
    Setting {
        id: "4x1-0",
        title: "Hot key, 4 processes with 1 waiter each, hold 0",
        processes: 4,
        waiters: 1,
        hold: 0,
        lasts: (400, 800),
        quick: true,
    },
    Setting {
        id: "4x16-0",
        title: "Hot key, 4 processes with 16 waiters each, hold 0",
        processes: 4,
        waiters: 16,
        hold: 0,
        lasts: (400, 800),
        quick: false,
    },
    Setting {
        id: "4x64-100us",
        title: "Hot key, 4 processes with 64 waiters each, hold 0.1 ms",
        processes: 4,
        waiters: 64,
        hold: 100 * US,
        lasts: (800, 1500),
        quick: true,
    },
    Setting {
        id: "1x64-1ms",
        title: "Hot key, 1 process with 64 waiters, hold 1 ms",
        processes: 1,
        waiters: 64,
        hold: MS,
        lasts: (500, 1300),
        quick: false,
    },
    Setting {
        id: "4x64-1ms",
        title: "Hot key, 4 processes with 64 waiters each, hold 1 ms",
        processes: 4,
        waiters: 64,
        hold: MS,
        lasts: (600, 1300),
        quick: true,
    },
];

pub(super) async fn measure(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    for setting in &SETTINGS {
        if setting.quick || !run.quick {
            outcome.tables.push(table(run, setting, &mut outcome.thresholds).await);
        }
    }
    outcome
}

struct Figures {
    rate: f64,
    gaps: [Option<f64>; 6],
    commands: Option<f64>,
    waiter: (u64, u64),
    process: (u64, u64),
}

async fn table(run: &Run, setting: &Setting, thresholds: &mut Vec<Threshold>) -> Table {
    let kinds = waiting();
    let config = Config::with_ttl(&run.server.url, TTL);
    let rounds = run.quick_or_full(3, 5);
    let lasts = run.quick_or_full(setting.lasts.0, setting.lasts.1) * MS;
    let race = Race { waiters: setting.waiters, hold: setting.hold, lasts: Some(lasts) };
    let mut processes = Vec::new();
    for kind in &kinds {
        processes.push(Worker::start_all(kind, &config, setting.processes).await);
    }
    let mut figures = Rounds::new(kinds.len(), rounds);
    let mut round_trips = Vec::new();
    for round in 0..rounds {
        run.progress(setting.title, round, rounds);
        round_trips.extend(run.server.pings(1000).await);
        for turn in turns(run, round, &kinds) {
            // A new key per round: leftovers of earlier rounds must not matter.
            let key = format!("hot:{}:{round}", setting.id);
            let Raced { start, mut sections, end, before, after } =
                Worker::race(&mut processes[turn], &key, race, &run.server).await;
            stats::check(&mut sections, kinds[turn].name);
            sections.retain(|section| section.exit <= start + lasts);
            let commands = after.commands_since(&before, kinds[turn].plain) as f64;
            let commands = (!sections.is_empty()).then(|| commands / sections.len() as f64);
            if end == End::Failed {
                stats::failed(kinds[turn].name, setting.title);
            } else {
                figures.put(turn, round, digest(setting, &sections, lasts, commands));
            }
            if end != End::Done {
                // Its waiters may take long to finish, and would disturb the following rounds.
                processes[turn].clear();
                processes[turn] = Worker::start_all(kinds[turn], &config, setting.processes).await;
            }
        }
    }
    let rslock = index_of(RSLOCK, &kinds);
    let rate = |round: &Figures| Some(round.rate);
    let rows = kinds.iter().enumerate().map(|(index, kind)| {
        let of = |figure: &dyn Fn(&Figures) -> Option<f64>| figures.median(index, figure);
        let mut values = vec![of(&rate), figures.ratio(index, rslock, rate)];
        values.extend((0..6).map(|gap| of(&|round| round.gaps[gap])));
        values.push(of(&|round| round.commands));
        values.push(of(&|round| Some(round.waiter.0 as f64)));
        values.push(of(&|round| Some(round.waiter.1 as f64)));
        values.push(of(&|round| Some(round.process.0 as f64)));
        values.push(of(&|round| Some(round.process.1 as f64)));
        Row { name: kind.name.to_owned(), values }
    });
    let fenced = index_of(FENCED, &kinds).unwrap();
    let to_rslock = figures.ratio(fenced, rslock, rate);
    let mut threshold = |what: &str, figure, required, target| {
        thresholds.push(Threshold {
            what: what.to_owned(),
            figure,
            required,
            target: Some(target),
            unit: "",
        });
    };
    match setting.id {
        "1x64-0" => threshold(
            "hot key, 1 process x 64, hold 0, sections/s: fenced / rslock",
            to_rslock,
            Limit::AtLeast(40.0),
            Limit::AtLeast(100.0),
        ),
        "4x1-0" => threshold(
            "one waiter per process, 4 processes, hold 0: hand-off p50 / round trip (PING)",
            figures
                .median(fenced, |round| round.gaps[4])
                .zip(quantile_us(&mut round_trips, 0.5))
                .map(|(gap, round_trip)| gap / round_trip),
            Limit::AtMost(1.6),
            Limit::AtMost(1.2),
        ),
        "4x64-100us" => {
            threshold(
                "hot key, 4 processes x 64, hold 0.1 ms, sections/s: fenced / rslock",
                to_rslock,
                Limit::AtLeast(2.0),
                Limit::AtLeast(2.2),
            );
            threshold(
                "the same, sections per waiter: max / min",
                figures.median(fenced, |round| Some(round.waiter.1 as f64 / round.waiter.0 as f64)),
                Limit::AtMost(1.2),
                Limit::AtMost(1.05),
            );
        }
        "4x64-1ms" => threshold(
            "commands per section, 4 processes x 64, hold 1 ms",
            figures.median(fenced, |round| round.commands),
            Limit::AtMost(0.5),
            Limit::AtMost(0.4),
        ),
        _ => {}
    }
    Table {
        id: format!("hot-key/{}", setting.id),
        title: setting.title.to_owned(),
        columns: COLUMNS,
        rows: rows.collect(),
        drawn: &["per_s", "commands"],
    }
}

fn digest(setting: &Setting, sections: &[Section], lasts: u64, commands: Option<f64>) -> Figures {
    let mut per_waiter: HashMap<(u32, u32), u64> = HashMap::new();
    let mut per_process: HashMap<u32, u64> = HashMap::new();
    for section in sections {
        *per_waiter.entry((section.process, section.waiter)).or_default() += 1;
        *per_process.entry(section.process).or_default() += 1;
    }
    let Gaps { mut switched, mut within, mut across } = Gaps::of(sections);
    let gaps = [&mut switched, &mut within, &mut across];
    let [switched, within, across] =
        gaps.map(|gaps| [quantile_us(gaps, 0.5), quantile_us(gaps, 0.99)]);
    Figures {
        rate: sections.len() as f64 / lasts as f64 * 1e9,
        gaps: [switched[0], switched[1], within[0], within[1], across[0], across[1]],
        commands,
        waiter: spread(per_waiter.values(), setting.processes * setting.waiters),
        process: spread(per_process.values(), setting.processes),
    }
}

/// The lowest and highest count among `expected` waiters; `counts` lacks those with no section.
fn spread<'a>(
    counts: impl ExactSizeIterator<Item = &'a u64> + Clone,
    expected: usize,
) -> (u64, u64) {
    let most = counts.clone().max().copied().unwrap_or(0);
    let all_there = counts.len() == expected;
    (if all_there { counts.min().copied().unwrap_or(0) } else { 0 }, most)
}
