//! What the others wait for when a process dies or stands still.

use std::time::Duration;

use rustix::process::Signal;

use super::waiting;
use crate::contenders::{FENCED, Kind, RSLOCK, TTL, Terms, UNFENCED};
use crate::support::args::Run;
use crate::support::clock::now;
use crate::support::report::{Bar, Limit, Outcome};
use crate::support::stats::{self, Section, quantile_us};
use crate::support::table::{Column, Row, Table};
use crate::support::worker::Worker;

/// Long enough for a waiter to stand in line before the next one comes.
const SETTLE: Duration = Duration::from_millis(80);
/// Of the lock whose holder is killed.
const SHORT_TTL: Duration = Duration::from_secs(1);
/// DESIGN: the shorter of this and the ttl is what a grant is good for until it is claimed.
const CLAIM_TTL: Duration = Duration::from_secs(3);

pub(super) async fn measure(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.tables.push(waiters(run, &mut outcome.bars).await);
    outcome.tables.push(holders(run, &mut outcome.bars).await);
    outcome
}

const WAITERS: &[Column] = &[
    Column::new("plain_p50_us", "hand-off p50 µs", 1),
    Column::new("killed_p50_us", "the same past a killed waiter", 1),
    Column::new("killed_max_us", "max", 1),
    Column::new("stall_us", "stall µs", 1),
    Column::new("paused_ms", "past a paused waiter, max ms", 0),
];

async fn waiters(run: &Run, bars: &mut Vec<Bar>) -> Table {
    let title = "Faults: the first waiter of three processes is killed, or paused";
    // The crates without a line have no head of it.
    let whose = run.dose(&[FENCED][..], &[FENCED, UNFENCED]);
    let kinds = waiting().into_iter().filter(|kind| whose.contains(&kind.name));
    let mut rows = Vec::new();
    for kind in kinds {
        let rounds = run.dose(5, 21);
        let (mut plain, mut killed, mut paused) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            if round % 5 == 0 {
                run.progress(&format!("faults, {}", kind.name), round, rounds);
            }
            plain.push(hand_off(run, kind, First::None).await);
            killed.push(hand_off(run, kind, First::Killed).await);
        }
        let pauses = run.dose(1, 4);
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
            bars.push(Bar {
                what: format!(
                    "killed waiter at the head: stall; a round trip is {round_trip:.0} µs"
                ),
                figure: stall,
                must: Limit::AtMost(round_trip.round()),
                aim: None,
                unit: "µs",
            });
            bars.push(Bar {
                what: "paused waiter at the head: stall (claim ttl 3 s + 100 ms)".to_owned(),
                figure: paused,
                must: Limit::AtMost((CLAIM_TTL.as_millis() + 100) as f64),
                aim: None,
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

/// Nanoseconds from the holder's exit to the entry of the last of the waiters, the only one that can enter.
async fn hand_off(run: &Run, kind: &Kind, first: First) -> u64 {
    let terms = Terms::with_ttl(&run.server.url, TTL);
    let key = format!("fault:{}", now());
    let mut holder = Worker::start(kind, &terms).await;
    let mut ahead = Worker::start(kind, &terms).await;
    let mut last = Worker::start(kind, &terms).await;
    holder.ask(&key).await;
    let held = holder.entered().await;
    if first != First::None {
        ahead.ask(&key).await;
        tokio::time::sleep(SETTLE).await;
    }
    last.ask(&key).await;
    tokio::time::sleep(SETTLE).await;
    let mut ahead = match first {
        First::Killed => {
            ahead.kill().await;
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
        // It wakes up while another holds what it may believe to have been granted.
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

async fn holders(run: &Run, bars: &mut Vec<Bar>) -> Table {
    let title =
        "Faults: the holder's process is killed, ttl 1 s; the grant to the waiter of another";
    let mut rows = Vec::new();
    let quick = [FENCED, RSLOCK];
    let kinds = waiting()
        .into_iter()
        .filter(|kind| kind.least_ttl <= SHORT_TTL)
        .filter(|kind| !run.quick || quick.contains(&kind.name));
    for kind in kinds {
        let rounds = run.dose(3, if kind.peer { 5 } else { 15 });
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
            bars.push(Bar {
                what: "killed holder: next grant after the lock's expiry, max".to_owned(),
                figure: max,
                must: Limit::AtMost(50.0),
                aim: Some(Limit::AtMost(5.0)),
                unit: "ms",
            });
        }
        rows.push(Row { name: kind.name.to_owned(), values: vec![p50, max] });
    }
    let id = "faults/holder".to_owned();
    Table { id, title: title.to_owned(), columns: HOLDERS, rows, drawn: &["late_p50_ms"] }
}

/// Nanoseconds from the expiry of the lock of a killed process to the entry of the next.
async fn after_kill(run: &Run, kind: &Kind) -> u64 {
    // So that the lock's key is the only one that expires.
    run.server.flush().await;
    let terms = Terms::with_ttl(&run.server.url, SHORT_TTL);
    let mut holder = Worker::start(kind, &terms).await;
    let mut next = Worker::start(kind, &terms).await;
    holder.ask("fault").await;
    let entry = holder.entered().await;
    next.ask("fault").await;
    tokio::time::sleep(SETTLE).await;
    holder.kill().await;
    let gone = now();
    let expiry = run.server.expiry_of_lock().await;
    let entered = next.entered().await;
    let exit = next.leave().await;
    let mut sections = [
        Section { entry, exit: gone, process: 0, waiter: 0 },
        Section { entry: entered, exit, process: 1, waiter: 0 },
    ];
    stats::check(&mut sections, kind.name);
    entered.saturating_sub(expiry)
}
