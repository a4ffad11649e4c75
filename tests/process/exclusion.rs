//! Exclusion: no two bodies at once, no lost update, whatever happens to processes and connections.

use std::thread::sleep;

use lock_testkit::{Experiment, ms, scale};

use crate::support::history::History;
use crate::support::worker::Worker;
use crate::support::workload::{Field, LoggedEvent, Workload};

/// A ttl so long that an orphaned lock would still be there at the end.
const ORPHAN: u64 = 30_000;

/// Turns in a second of the calm workload: a third of the rate on two cores that are six times
/// overloaded.
const CALM_TURNS: u64 = 120;
/// The ttl of leases that are renewed while little or nothing goes wrong.
const RENEWED: u64 = 1_500;
const LONG_TURNS: &str = "turns longer than a ttl";
const HAND_OFFS: &str = "hand-offs between processes";

/// What the logs show of processes that contend for some seconds.
const CONTENTION: [LoggedEvent; 3] = [
    ("turns", 51, History::done),
    (HAND_OFFS, 11, History::hand_offs),
    (LONG_TURNS, 1, History::renewed_turns),
];

/// No fault: many tasks of many processes contend for a few keys.
#[test]
fn tasks_of_many_processes_take_turns_and_lose_no_update() {
    let events = ["turns", HAND_OFFS, LONG_TURNS];
    let mut experiment =
        Experiment::new(17, "no two turns at once, no lost update", "none", &events);
    let seconds = scale(4) as u64;
    let workload = Workload {
        processes: 8,
        tasks: 4,
        work: 5_000,
        renewed: RENEWED,
        events: &[CONTENTION[0], (HAND_OFFS, 101, History::hand_offs), CONTENTION[2]],
        ..Workload::new("calm", 20, ms(seconds * 1_000))
    };
    let outcome = workload
        .run_calmly(|field| field.wait(&experiment), |outcome| outcome.lost + outcome.failed);
    let words = outcome.words();
    assert_eq!(outcome.total, outcome.turns, "each turn counted once: {words}");
    let hand_offs = outcome.history.check();
    let least = CALM_TURNS * seconds;
    assert!(outcome.turns > least && hand_offs > 100, "{least} {hand_offs} {words}");
    assert_eq!((outcome.lost, outcome.failed), (0, 0), "{words}");
    experiment.ran(1);
    experiment.saw(LONG_TURNS, outcome.renewed);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw(HAND_OFFS, hand_offs);
    experiment.finish();
}

/// Connections are killed, scripts are flushed and the server stalls. Answers are lost, but no lock
/// is.
#[test]
fn exclusion_survives_broken_connections_and_a_stalling_server() {
    let events = ["turns", "connections killed", "stalls", LONG_TURNS];
    let fault = "CLIENT KILL, SCRIPT FLUSH and SIGSTOP of the server, together";
    let mut experiment =
        Experiment::new(21, "no two turns at once, no lost update", fault, &events);
    let span = ms(scale(4) as u64 * 1_000);
    let workload = Workload {
        ttl: ORPHAN,
        renewed: RENEWED,
        events: &CONTENTION,
        ..Workload::new("rough", 3, span)
    };
    let outcome = workload.run(|field| {
        while !field.is_over(ms(0), &experiment) {
            let server = &field.server;
            experiment.saw("connections killed", server.kill_connections());
            let () = server.cli("SCRIPT FLUSH");
            sleep(ms(150));
            server.pause();
            sleep(ms(60));
            server.resume();
            experiment.saw("stalls", 1);
            sleep(ms(40));
        }
    });
    let words = outcome.words();
    assert_eq!(outcome.total, outcome.turns, "each turn counted once: {words}");
    let hand_offs = outcome.history.check();
    assert!(outcome.turns > 50 && hand_offs > 10, "{hand_offs} {words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw(LONG_TURNS, outcome.renewed);
    experiment.saw("turns", outcome.history.turns());
    experiment.finish();
}

/// All connections are killed twenty times a second. A holder keeps its lock, and no key is left
/// behind.
#[test]
fn locks_survive_constantly_killed_connections_and_leave_no_key() {
    let events = ["turns", "connections killed", LONG_TURNS];
    let fault = "CLIENT KILL of all connections every 50 ms";
    let name = "no two turns at once, renewals go on, no orphan";
    let mut experiment = Experiment::new(21, name, fault, &events);
    let span = ms(scale(3) as u64 * 1_000);
    let workload = Workload {
        ttl: ORPHAN,
        renewed: RENEWED,
        events: &CONTENTION,
        ..Workload::new("killed", 3, span)
    };
    let outcome = workload.run(|field| {
        let (holder, _) = Worker::hold(&field.server, "held", 2_000);
        while !field.is_over(ms(0), &experiment) {
            experiment.saw("connections killed", field.server.kill_connections());
            sleep(ms(50));
        }
        // If the answer is lost, the release is sent again on the next connection.
        let end = holder.release();
        assert!(end.lost.is_none() && end.released == "Ok(InTime)", "{end:?}");
    });
    let words = outcome.words();
    let hand_offs = outcome.history.check();
    assert!(outcome.turns > 50 && hand_offs > 10, "{hand_offs} {words}");
    assert_eq!((outcome.total, outcome.lost), (outcome.turns, 0), "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw(LONG_TURNS, outcome.renewed);
    experiment.saw("turns", outcome.history.turns());
    experiment.finish();
}

/// The server forgets the scripts a thousand times a second, and no caller notices.
#[test]
fn constantly_flushed_scripts_cause_no_error() {
    let events = ["turns", "flushes"];
    let mut experiment =
        Experiment::new(22, "no error that a user sees", "SCRIPT FLUSH every ms", &events);
    let span = ms(scale(3) as u64 * 1_000);
    let workload = Workload { events: &CONTENTION[..2], ..Workload::new("scripts", 3, span) };
    let disturb = |field: &mut Field| {
        let mut cli = field.server.connect();
        while !field.is_over(ms(0), &experiment) {
            let () = field.timed(|_| cli.run("SCRIPT FLUSH").unwrap());
            experiment.saw("flushes", 1);
            sleep(ms(1));
        }
    };
    let outcome =
        workload.run_calmly(disturb, |outcome| outcome.busy + outcome.lost + outcome.failed);
    let words = outcome.words();
    let hand_offs = outcome.history.check();
    assert!(outcome.turns > 50 && hand_offs > 10, "{hand_offs} {words}");
    assert_eq!(outcome.total, outcome.turns, "each turn counted once: {words}");
    assert_eq!((outcome.busy, outcome.lost, outcome.failed), (0, 0, 0), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.finish();
}

/// Processes are stopped for longer than their leases last. A body that is stopped after it read
/// the counter writes it back too late; no lease can prevent that. But no turn begins late, and
/// none overlaps the lease of another.
#[test]
fn stopped_process_begins_no_turn_after_its_lease() {
    let events = ["turns", "processes stopped", "holders stopped", "leases lost", LONG_TURNS];
    let fault = "SIGSTOP of holders and waiters for one and a half ttl";
    let name = "no poll after the deadline, no turn in another one's lease";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let span = ms(scale(4) as u64 * 1_000);
    let workload = Workload {
        ttl: 400,
        renewed: 400,
        work: 5_000,
        events: &[
            CONTENTION[0],
            CONTENTION[1],
            CONTENTION[2],
            ("holders stopped", 1, History::stopped_holders),
            ("leases lost", 1, History::cut_off),
        ],
        ..Workload::new("stopped", 8, span)
    };
    let outcome = workload.run(|field| {
        let mut turn = 0;
        while !field.is_over(ms(1_000), &experiment) {
            let struck = turn % 2 == 0 && field.stop_holder("r0", ms(600));
            if !struck {
                field.stop(turn / 2 % field.workers.len(), ms(600));
            }
            sleep(ms(50));
            turn += 1;
            experiment.saw("processes stopped", 1);
        }
    });
    let words = outcome.words();
    let hand_offs = outcome.history.check();
    assert_eq!(outcome.late, 0, "{words}");
    assert!(outcome.turns > 50 && hand_offs > 10, "{hand_offs} {words}");
    experiment.ran(1);
    experiment.saw("holders stopped", outcome.history.stopped_holders());
    experiment.saw(LONG_TURNS, outcome.renewed);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("leases lost", usize::try_from(outcome.lost).unwrap());
    experiment.finish();
}
