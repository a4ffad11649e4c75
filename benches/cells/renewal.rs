//! Ten thousand locks of one process, held and renewed.

use std::time::Duration;

use super::waiting;
use crate::contenders::{FENCED, Kind, TTL, Terms};
use crate::support::args::Run;
use crate::support::report::{Bar, Limit, Outcome};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::Worker;

const LOCKS: usize = 10_000;

const COLUMNS: &[Column] = &[
    Column::new("client_percent", "client, % of a core", 2),
    Column::new("redis_percent", "Redis, % of a core", 2),
    Column::new("commands_per_s", "commands/s", 1),
    Column::new("shortest_s", "shortest time to live after it, s", 1),
];

pub(super) async fn measure(run: &Run) -> Outcome {
    // A third of the ttl is when most renew; some wait for half of it.
    let lasts = Duration::from_secs(run.dose(11, 30));
    let kinds = waiting().into_iter().filter(|kind| kind.renews);
    let kinds: Vec<_> = kinds.filter(|kind| !run.quick || kind.name == FENCED).collect();
    let mut rows = vec![idle(run).await];
    let mut bars = Vec::new();
    for (round, kind) in kinds.iter().enumerate() {
        run.progress(&format!("renewal, {}", kind.name), round, kinds.len());
        let values = hold(run, kind, lasts).await;
        if kind.name == FENCED {
            let bar = |who: &str, figure, must| Bar {
                what: format!("10,000 locks held, ttl 30 s: % of a core in {who}"),
                figure,
                must: Limit::AtMost(must),
                aim: None,
                unit: "%",
            };
            bars.push(bar("the client", values[0], 0.5));
            bars.push(bar("Redis", values[1], 1.0));
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
    Outcome { tables: vec![table], bars }
}

/// What Redis uses when nobody asks for anything.
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
    let terms = Terms::with_ttl(&run.server.url, TTL);
    let mut worker = Worker::start(kind, &terms).await;
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
