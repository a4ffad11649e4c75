//! Tasks of one process, each with its own key: what acquiring and releasing costs without
//! contention.

use std::sync::Arc;

use super::rounds::{Rounds, index_of, own_keys, turns};
use crate::peers::{self, Config, FENCED, Peer, RAW, RSLOCK, TTL};
use crate::support::clock::{MS, process_cpu};
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::{self, quantile_us};
use crate::support::table::{Column, Row, Table};

const COLUMNS: &[Column] = &[
    Column::new("p50_us", "p50 µs", 1),
    Column::new("p99_us", "p99 µs", 1),
    Column::new("p50_to_raw", "p50 / raw", 2),
    Column::new("per_s", "locks/s", 0),
    Column::new("to_raw", "locks/s / raw", 2),
    Column::new("to_rslock", "/ rslock", 2),
    Column::new("commands", "commands per lock", 2),
    Column::new("client_us", "client CPU µs per lock", 1),
    Column::new("redis_us", "Redis CPU µs per lock", 1),
];

struct Figures {
    p50: Option<f64>,
    p99: Option<f64>,
    rate: f64,
    commands: f64,
    client_us: f64,
    redis_us: f64,
}

pub(super) async fn measure(run: &Run) -> Outcome {
    let config = Config::with_ttl(&run.server.url, TTL);
    let mut all = Vec::new();
    for kind in peers::ALL {
        let peer = kind.connect(&config).await;
        peer.section("warm", Box::pin(async {})).await;
        all.push(peer);
    }
    let mut outcome = Outcome::default();
    for tasks in run.quick_or_full(&[1, 64, 256][..], &[1, 16, 64, 256]) {
        outcome.tables.push(table(run, *tasks, &all, &mut outcome.thresholds).await);
    }
    outcome
}

async fn table(
    run: &Run,
    tasks: usize,
    all: &[Arc<dyn Peer>],
    thresholds: &mut Vec<Threshold>,
) -> Table {
    let kinds = peers::ALL;
    let rounds = run.quick_or_full(5, if tasks == 1 { 11 } else { 9 });
    let lasts = run.quick_or_full(150, 350) * MS;
    let mut figures = Rounds::new(kinds.len(), rounds);
    let title = format!(
        "Uncontended, {}",
        if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") }
    );
    for number in 0..rounds {
        run.progress(&title, number, rounds);
        for turn in turns(run, number, kinds) {
            // Warm up: the first locks of a round are slower after the pause before it.
            round(run, &all[turn], kinds[turn].plain, tasks, lasts / 10).await;
            let measured = round(run, &all[turn], kinds[turn].plain, tasks, lasts).await;
            match measured {
                Some(measured) => figures.put(turn, number, measured),
                None => stats::failed(kinds[turn].name, &title),
            }
        }
    }
    let raw = index_of(RAW, kinds);
    let rslock = index_of(RSLOCK, kinds);
    let rate = |round: &Figures| Some(round.rate);
    let rows = kinds.iter().enumerate().map(|(index, kind)| Row {
        name: kind.name.to_owned(),
        values: vec![
            figures.median(index, |round| round.p50),
            figures.median(index, |round| round.p99),
            figures.ratio(index, raw, |round| round.p50),
            figures.median(index, rate),
            figures.ratio(index, raw, rate),
            figures.ratio(index, rslock, rate),
            figures.median(index, |round| Some(round.commands)),
            figures.median(index, |round| Some(round.client_us)),
            figures.median(index, |round| Some(round.redis_us)),
        ],
    });
    let fenced = index_of(FENCED, kinds).unwrap();
    if tasks == 1 {
        thresholds.push(Threshold {
            what: "uncontended, 1 task, p50: fenced / raw".to_owned(),
            figure: figures.ratio(fenced, raw, |round| round.p50),
            required: Limit::AtMost(1.15),
            target: Some(Limit::AtMost(1.08)),
            unit: "",
        });
    } else if tasks >= 64 {
        thresholds.push(Threshold {
            what: format!("uncontended, {tasks} tasks, locks/s: fenced / rslock"),
            figure: figures.ratio(fenced, rslock, rate),
            required: Limit::AtLeast(1.0),
            target: Some(Limit::AtLeast(1.4)),
            unit: "",
        });
    }
    Table {
        id: format!("uncontended/{tasks}"),
        title,
        columns: COLUMNS,
        rows: rows.collect(),
        drawn: if tasks == 1 { &["p50_us"] } else { &["per_s"] },
    }
}

/// `None` if the peer failed.
async fn round(
    run: &Run,
    peer: &Arc<dyn Peer>,
    plain: &[&str],
    tasks: usize,
    lasts: u64,
) -> Option<Figures> {
    let (before, cpu) = (run.server.usage().await, process_cpu());
    let (mut took, elapsed) = own_keys(peer, tasks, lasts).await?;
    let cpu = process_cpu() - cpu;
    let after = run.server.usage().await;
    let locks = took.len() as f64;
    Some(Figures {
        p50: quantile_us(&mut took, 0.5),
        p99: quantile_us(&mut took, 0.99),
        rate: locks / elapsed as f64 * 1e9,
        commands: after.commands_since(&before, plain) as f64 / locks,
        client_us: cpu as f64 / 1e3 / locks,
        redis_us: (after.cpu - before.cpu) * 1e6 / locks,
    })
}
