//! One process holds and renews ten thousand locks.

use std::time::Duration;

use super::rounds::waiting;
use crate::peers::{Config, FENCED, Kind, TTL};
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::table::{Column, Row, Table};
use crate::support::worker::Worker;

const LOCKS: usize = 10_000;

const COLUMNS: &[Column] = &[
    Column::new("client_percent", "client, % of a core", 2),
    Column::new("redis_percent", "Redis, % of a core", 2),
    Column::new("commands_per_s", "commands/s", 1),
    Column::new("shortest_s", "shortest ttl left afterwards, s", 1),
];

pub(super) async fn measure(run: &Run) -> Outcome {
    // Most peers renew after a third of the ttl, some after half of it.
    let lasts = Duration::from_secs(run.quick_or_full(11, 30));
    let kinds = waiting().into_iter().filter(|kind| kind.renews);
    let kinds: Vec<_> = kinds.filter(|kind| !run.quick || kind.name == FENCED).collect();
    let mut rows = vec![idle(run).await];
    let mut thresholds = Vec::new();
    for (round, kind) in kinds.iter().enumerate() {
        run.progress(&format!("renewal, {}", kind.name), round, kinds.len());
        let values = hold(run, kind, lasts).await;
        if kind.name == FENCED {
            let threshold = |side: &str, figure, required| Threshold {
                what: format!("10,000 locks held, ttl 30 s: % of a core in {side}"),
                figure,
                required: Limit::AtMost(required),
                target: None,
                unit: "%",
            };
            thresholds.push(threshold("the client", values[0], 0.5));
            thresholds.push(threshold("Redis", values[1], 1.0));
        }
        rows.push(Row { name: kind.name.to_owned(), values });
    }
    let table = Table {
        id: "renewal".to_owned(),
        title: format!("Renewal of 10,000 held locks, ttl 30 s, over {} s", lasts.as_secs()),
        columns: COLUMNS,
        rows,
        drawn: &["client_percent", "redis_percent"],
    };
    Outcome { tables: vec![table], thresholds }
}

/// The CPU that Redis uses without any clients' commands.
async fn idle(run: &Run) -> Row {
    let lasts = Duration::from_secs(2);
    let before = run.server.usage().await;
    tokio::time::sleep(lasts).await;
    let after = run.server.usage().await;
    let redis = (after.cpu - before.cpu) / lasts.as_secs_f64() * 100.0;
    Row { name: "idle".to_owned(), values: vec![None, Some(redis), None, None] }
}

async fn hold(run: &Run, kind: &Kind, lasts: Duration) -> Vec<Option<f64>> {
    run.server.flush().await;
    let config = Config::with_ttl(&run.server.url, TTL);
    let mut worker = Worker::start(kind, &config).await;
    let cpu = worker.hold_many(LOCKS).await;
    let before = run.server.usage().await;
    tokio::time::sleep(lasts).await;
    let after = run.server.usage().await;
    let (shortest, count) = run.server.shortest_ttl().await;
    assert!(count >= LOCKS, "{}: {count} locks are left of {LOCKS}", kind.name);
    let cpu = worker.leave_many().await - cpu;
    let seconds = lasts.as_secs_f64();
    vec![
        Some(cpu as f64 / 1e9 / seconds * 100.0),
        Some((after.cpu - before.cpu) / seconds * 100.0),
        Some(after.commands_since(&before, kind.plain) as f64 / seconds),
        Some(shortest as f64 / 1e3),
    ]
}
