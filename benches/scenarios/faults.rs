//! How long other processes wait when a process dies or is paused.

use std::time::Duration;

use lock_testkit::Signal;

use super::rounds::waiting;
use crate::peers::{Config, FENCED, Kind, RSLOCK, TTL};
use crate::support::clock::now;
use crate::support::report::{Limit, Outcome, Threshold};
use crate::support::run::Run;
use crate::support::stats::{self, Section, quantile_us};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::Worker;

/// Long enough for a waiter to join the queue before the next waiter arrives.
const SETTLE: Duration = Duration::from_millis(80);
/// The ttl of the lock whose holder is killed.
const SHORT_TTL: Duration = Duration::from_secs(1);
/// A grant must be claimed within this time or the ttl, whichever is shorter.
const HAND_OFF_TTL: Duration = Duration::from_secs(3);

pub(super) async fn measure(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.tables.push(waiters(run, &mut outcome.thresholds).await);
    outcome.tables.push(holders(run, &mut outcome.thresholds).await);
    outcome
}

const WAITERS: &[Column] = &[
    Column::new("plain_p50_us", "hand-off p50 µs", 1),
    Column::new("killed_p50_us", "the same after a killed waiter", 1),
    Column::new("killed_max_us", "max", 1),
    Column::new("stall_us", "stall µs", 1),
    Column::new("paused_ms", "after a paused waiter, max ms", 0),
];

async fn waiters(run: &Run, thresholds: &mut Vec<Threshold>) -> Table {
    let title = "Faults: the first waiter of three processes is killed, or paused";
    // The other crates have no queue, so no first waiter.
    let kinds = waiting().into_iter().filter(|kind| kind.name == FENCED);
    let mut rows = Vec::new();
    for kind in kinds {
        let rounds = run.quick_or_full(5, 21);
        let (mut plain, mut killed, mut paused) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            if round % 5 == 0 {
                run.progress(&format!("faults, {}", kind.name), round, rounds);
            }
            plain.push(hand_off(run, kind, First::None).await);
            killed.push(hand_off(run, kind, First::Killed).await);
        }
        let pauses = run.quick_or_full(1, 4);
        for round in 0..pauses {
            run.progress(&format!("faults, {}, paused", kind.name), round, pauses);
            paused.push(hand_off(run, kind, First::Paused).await);
        }
        let plain = quantile_us(&mut plain, 0.5);
        let killed_p50 = quantile_us(&mut killed, 0.5);
        let stall = killed_p50.zip(plain).map(|(killed, plain)| (killed - plain).max(0.0));
        let paused = quantile_us(&mut paused, 1.0).map(|us| us / 1e3);
        if kind.name == FENCED {
            let round_trip = quantile_us(&mut run.server.pings(2000).await, 0.5).unwrap();
            thresholds.push(Threshold {
                what: format!(
                    "killed waiter at the head: stall; a round trip is {round_trip:.0} µs"
                ),
                figure: stall,
                required: Limit::AtMost(round_trip.round()),
                target: None,
                unit: "µs",
            });
            thresholds.push(Threshold {
                what: "paused waiter at the head: stall (hand-off ttl 3 s + 100 ms)".to_owned(),
                figure: paused,
                required: Limit::AtMost((HAND_OFF_TTL.as_millis() + 100) as f64),
                target: None,
                unit: "ms",
            });
        }
        let values = vec![plain, killed_p50, quantile_us(&mut killed, 1.0), stall, paused];
        rows.push(Row { name: kind.name.to_owned(), values });
    }
    let id = "faults/waiter".to_owned();
    Table { id, title: title.to_owned(), columns: WAITERS, rows, drawn: &[] }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum First {
    None,
    Killed,
    Paused,
}

/// Nanoseconds from the holder's exit to the entry of the last waiter, the only one able to enter.
async fn hand_off(run: &Run, kind: &Kind, first: First) -> u64 {
    let config = Config::with_ttl(&run.server.url, TTL);
    let key = format!("fault:{}", now());
    let mut holder = Worker::start(kind, &config).await;
    let mut ahead = Worker::start(kind, &config).await;
    let mut last = Worker::start(kind, &config).await;
    holder.ask(&key);
    let held = holder.entered().await;
    if first != First::None {
        ahead.ask(&key);
        tokio::time::sleep(SETTLE).await;
    }
    last.ask(&key);
    tokio::time::sleep(SETTLE).await;
    let mut ahead = match first {
        First::Killed => {
            ahead.kill();
            None
        }
        First::Paused => {
            ahead.signal(Signal::STOP);
            Some(ahead)
        }
        First::None => None,
    };
    let left = holder.leave().await;
    let entered = last.entered().await;
    let mut sections = vec![Section { entry: held, exit: left, process: 0, waiter: 0 }];
    let mut exit = None;
    if let Some(paused) = &mut ahead {
        // It resumes while another process holds the lock that it may believe it was granted.
        paused.signal(Signal::CONT);
        tokio::time::sleep(SETTLE).await;
        exit = Some(last.leave().await);
        let entry = paused.entered().await;
        let exit = paused.leave().await;
        sections.push(Section { entry, exit, process: 2, waiter: 0 });
    }
    let exit = match exit {
        Some(exit) => exit,
        None => last.leave().await,
    };
    sections.push(Section { entry: entered, exit, process: 1, waiter: 0 });
    stats::check(&mut sections, kind.name);
    entered.saturating_sub(left)
}

const HOLDERS: &[Column] = &[
    Column::new("late_p50_ms", "after the lock's expiry p50 ms", 1),
    Column::new("late_max_ms", "max", 1),
];

async fn holders(run: &Run, thresholds: &mut Vec<Threshold>) -> Table {
    let title =
        "Faults: the holder's process is killed, ttl 1 s; the grant to a waiter in another process";
    let mut rows = Vec::new();
    let quick = [FENCED, RSLOCK];
    let kinds = waiting()
        .into_iter()
        .filter(|kind| kind.least_ttl <= SHORT_TTL)
        .filter(|kind| !run.quick || quick.contains(&kind.name));
    for kind in kinds {
        let rounds = run.quick_or_full(3, if kind.third_party { 5 } else { 15 });
        let mut late = Vec::new();
        for round in 0..rounds {
            if round % 5 == 0 {
                run.progress(&format!("faults, {}, killed holder", kind.name), round, rounds);
            }
            late.push(after_kill(run, kind).await);
        }
        let p50 = quantile_us(&mut late, 0.5).map(|us| us / 1e3);
        let max = quantile_us(&mut late, 1.0).map(|us| us / 1e3);
        if kind.name == FENCED {
            thresholds.push(Threshold {
                what: "killed holder: next grant after the lock's expiry, max".to_owned(),
                figure: max,
                required: Limit::AtMost(50.0),
                target: Some(Limit::AtMost(5.0)),
                unit: "ms",
            });
        }
        rows.push(Row { name: kind.name.to_owned(), values: vec![p50, max] });
    }
    let id = "faults/holder".to_owned();
    Table { id, title: title.to_owned(), columns: HOLDERS, rows, drawn: &["late_p50_ms"] }
}

/// Nanoseconds from the expiry of a killed holder's lock to the entry of the next holder.
async fn after_kill(run: &Run, kind: &Kind) -> u64 {
    // The lock's key must be the only one that expires.
    run.server.flush().await;
    let config = Config::with_ttl(&run.server.url, SHORT_TTL);
    let mut holder = Worker::start(kind, &config).await;
    let mut next = Worker::start(kind, &config).await;
    holder.ask("fault");
    let entry = holder.entered().await;
    next.ask("fault");
    tokio::time::sleep(SETTLE).await;
    holder.kill();
    let killed = now();
    let expiry = run.server.expiry_of_lock().await;
    let entered = next.entered().await;
    let exit = next.leave().await;
    let mut sections = [
        Section { entry, exit: killed, process: 0, waiter: 0 },
        Section { entry: entered, exit, process: 1, waiter: 0 },
    ];
    stats::check(&mut sections, kind.name);
    entered.saturating_sub(expiry)
}
