//! A server that stands still, or that lets its clients wait.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_testkit::{Experiment, ms, scale};

use crate::support::history::History;
use crate::support::worker::Worker;
use crate::support::workload::{Field, LoggedEvent, Workload};

const TTL: u64 = 900;
/// A wait that ends while the server does not answer ends at most this late, even on a busy
/// machine.
const OVERRUN: u64 = 600;

/// Whether it still has its lock; one that has not made no step too many.
fn still_holds(worker: Worker) -> bool {
    worker.release().lost.is_none()
}

/// Contends while the server stands still, now and then, for less than a lease and for more.
/// `stand` makes it, for a time.
fn standstills(name: &'static str, mut experiment: Experiment, stand: impl Fn(&Field, Duration)) {
    let span = ms(scale(5) as u64 * 1_000);
    let (ttl, renewed) = (TTL, TTL);
    let workload = Workload {
        ttl,
        renewed,
        wait: 700,
        work: 2_000,
        events: &CONTENTION,
        config: &["enable-debug-command yes"],
        ..Workload::new(name, 3, span)
    };
    let outcome = workload.run(|field| {
        let mut round = 0;
        while !field.is_over(ms(2 * TTL + 700), &experiment) {
            let stall = ms([TTL / 5, TTL * 2, TTL / 2][round % 3]);
            let (holds, _) = Worker::hold(&field.server, &format!("held-{round}"), TTL);
            let (others, _) = Worker::hold(&field.server, &format!("long-{round}"), 20 * TTL);
            let before: Duration = field.workers.iter().map(|worker| worker.cpu()).sum();
            let start = Instant::now();
            stand(field, stall);
            let stood = start.elapsed();
            let after: Duration = field.workers.iter().map(|worker| worker.cpu()).sum();
            let cpu = after.saturating_sub(before);
            if stall > ms(TTL) {
                let most = stood * u32::try_from(field.workers.len()).unwrap() / 5;
                assert!(cpu < most, "{cpu:?} of a processor in {stood:?} of silence");
                assert!(!still_holds(holds), "a lease outlived {stall:?} of silence");
                experiment.saw("leases lost", 1);
            } else if stall < ms(TTL / 4) {
                assert!(still_holds(holds), "a lease was lost in {stood:?} of silence");
                experiment.saw("leases kept", 1);
            }
            assert!(still_holds(others), "a long lease was lost in {stood:?} of silence");
            experiment.saw("standstills", 1);
            sleep(ms(100));
            round += 1;
        }
    });
    let words = outcome.words();
    let hand_offs = outcome.history.check();
    assert_eq!(outcome.total, outcome.turns, "each turn counted once: {words}");
    assert_eq!(outcome.late, 0, "{words}");
    assert!(outcome.overrun < OVERRUN, "{words}");
    assert!(outcome.turns > 50 && hand_offs > 5, "{hand_offs} {words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("turns longer than a ttl", outcome.renewed);
    experiment.saw("unknown outcomes", usize::try_from(outcome.unknown).unwrap());
    experiment.finish();
}

/// What the logs of the processes show.
const CONTENTION: [LoggedEvent; 4] = [
    ("turns", 51, History::done),
    ("hand-offs between processes", 6, History::hand_offs),
    ("turns longer than a ttl", 1, History::renewed_turns),
    ("unknown outcomes", 1, History::unknown),
];

const NAME: &str = "no two turns at once, leases end or last, waits end in time, no busy loop";
const EVENTS: [&str; 6] = [
    "standstills",
    "leases kept",
    "leases lost",
    "turns",
    "turns longer than a ttl",
    "unknown outcomes",
];

/// SIGSTOP of the server.
#[test]
fn exclusion_and_time_limits_hold_while_the_server_is_stopped() {
    let fault = "SIGSTOP of the server for 0.2 to 2 ttl";
    let experiment = Experiment::new(19, NAME, fault, &EVENTS);
    standstills("stopped-server", experiment, |field, stall| {
        field.server.pause();
        sleep(stall);
        field.server.resume();
    });
}

/// `DEBUG SLEEP` of the server.
#[test]
fn exclusion_and_time_limits_hold_while_the_server_sleeps() {
    let fault = "DEBUG SLEEP for 0.2 to 2 ttl";
    let experiment = Experiment::new(19, NAME, fault, &EVENTS);
    standstills("sleeping-server", experiment, |field, stall| {
        let () = field.server.cli(&format!("DEBUG SLEEP {}", stall.as_secs_f64()));
    });
}

/// `CLIENT PAUSE` of all commands, or of writes only.
#[test]
fn exclusion_and_time_limits_hold_while_clients_are_paused() {
    for (mode, fault) in [
        ("ALL", "CLIENT PAUSE ALL for 0.2 to 2 ttl"),
        ("WRITE", "CLIENT PAUSE WRITE for 0.2 to 2 ttl"),
    ] {
        let experiment = Experiment::new(20, NAME, fault, &EVENTS);
        standstills("paused-clients", experiment, |field, stall| {
            let () = field.server.cli(&format!("CLIENT PAUSE {} {mode}", stall.as_millis()));
            sleep(stall);
        });
    }
}
