//! A server that is killed as by `kill -9` and starts again: with nothing, with what it wrote down each second, or with all.

use std::thread::sleep;

use lock_tests::{Experiment, dose, ms};

use crate::support::contest::{Contest, Outcome};
use crate::support::worker::{End, Worker};

/// For which no restart is too long.
const TTL: u64 = 5_000;

/// Kills and starts the server while processes contend, and one holds a lock of its own. Gives how the holder ended.
fn restarts(config: &'static [&'static str], experiment: &mut Experiment) -> (Outcome, End) {
    let contest = Contest {
        ttl: TTL,
        wait: 3_000,
        work: 20_000,
        tasks: 4,
        config,
        ..Contest::fenced("restarts", 2, ms(dose(3) as u64 * 1_000))
    };
    let mut end = None;
    let outcome = contest.run(|field| {
        let (holder, _) = Worker::hold(&field.server, "held", TTL);
        while !field.is_over(ms(1_000)) {
            sleep(ms(300));
            field.server.kill();
            sleep(ms(50));
            field.server.boot();
            experiment.saw("restarts", 1);
            sleep(ms(500));
        }
        end = Some(holder.release());
    });
    outcome.keeps_its_order(experiment);
    (outcome, end.unwrap())
}

/// Locks and counter are gone: the clock of the server keeps the numbers growing, and holders are told.
#[test]
fn a_server_that_restarts_empty_makes_no_number_smaller() {
    let events = ["restarts", "turns", "leases lost"];
    let fault = "kill -9 and restart without persistence";
    let name = "numbers grow, loss is noticed, a resource that checks tokens loses no update";
    let mut experiment = Experiment::new(24, name, fault, &events);
    let (_, end) = restarts(&[], &mut experiment);
    experiment.saw("leases lost", usize::from(end.lost.is_some()));
    experiment.finish();
}

/// The last second may be gone.
#[test]
fn a_server_that_writes_down_each_second_makes_no_number_smaller() {
    let events = ["restarts", "turns", "steps of a holder"];
    let fault = "kill -9 and restart, AOF everysec";
    let name = "numbers grow, a resource that checks tokens loses no update";
    let mut experiment = Experiment::new(24, name, fault, &events);
    let (_, end) = restarts(&["appendonly yes", "appendfsync everysec"], &mut experiment);
    experiment.saw("steps of a holder", end.steps);
    experiment.finish();
}

/// Nothing is gone: locks outlive the server, and so does exclusion.
#[test]
fn a_server_that_writes_down_all_keeps_locks_and_exclusion() {
    let events = ["restarts", "turns", "hand-overs between processes", "leases kept"];
    let fault = "kill -9 and restart, AOF always";
    let name = "no two turns at once, leases outlive the server, numbers grow";
    let mut experiment = Experiment::new(24, name, fault, &events);
    let (outcome, end) = restarts(&["appendonly yes", "appendfsync always"], &mut experiment);
    let handovers = outcome.history.check();
    assert!(handovers > 5, "{handovers} {}", outcome.words());
    assert!(end.lost.is_none() && end.released == "Ok(InTime)", "{end:?}");
    experiment.saw("hand-overs between processes", handovers);
    experiment.saw("leases kept", 1);
    experiment.finish();
}
