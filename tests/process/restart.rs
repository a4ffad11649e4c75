//! A server that is killed as by `kill -9` and starts again: with nothing, with what it wrote down each second, or with all.

use std::thread::sleep;

use lock_tests::{Experiment, dose, ms};

use crate::support::contest::{Contest, Outcome};
use crate::support::worker::{Worker, number};

/// For which no restart is too long.
const TTL: u64 = 5_000;

const EVENTS: [&str; 2] = ["restarts", "turns"];

/// Kills and starts the server while processes contend, and one holds a lock of its own. Gives what the holder said last.
fn restarts(config: &'static [&'static str], experiment: &mut Experiment) -> (Outcome, String) {
    let contest = Contest {
        ttl: TTL,
        wait: 3_000,
        work: 20_000,
        tasks: 4,
        fenced: true,
        bound: false,
        config,
        ..Contest::new("restarts", 2, ms(dose(3) as u64 * 1_000))
    };
    let mut said = String::new();
    let outcome = contest.run(|field| {
        let args = [format!("ttl={TTL}"), "key=held".to_owned()];
        let mut holder = Worker::start(&field.server, "hold", &args);
        let (_, event) = holder.next();
        assert!(event.starts_with("held"), "{event}");
        while !field.is_over(ms(1_000)) {
            sleep(ms(300));
            field.server.kill();
            sleep(ms(50));
            field.server.boot();
            experiment.saw("restarts", 1);
            sleep(ms(500));
        }
        holder.tell("stop");
        let (_, mut event) = holder.next();
        if event.starts_with("lost") {
            said = event;
            event = holder.next().1;
        }
        assert_eq!(number(&event, "late"), 0, "{event}");
        said.push_str(&event);
        assert!(holder.ends_well());
    });
    let words = outcome.words();
    outcome.history.check_numbers();
    assert_eq!((outcome.lost_updates(), outcome.history.stale()), (0, 0), "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    (outcome, said)
}

/// Locks and counter are gone: the clock of the server keeps the numbers growing, and holders are told.
#[test]
fn a_server_that_restarts_empty_makes_no_number_smaller() {
    let fault = "kill -9 and restart without persistence";
    let name = "numbers grow, loss is noticed, a resource that checks tokens loses no update";
    let mut experiment = Experiment::new(24, name, fault, &EVENTS);
    let (_, said) = restarts(&[], &mut experiment);
    assert!(said.starts_with("lost"), "{said}");
    experiment.finish();
}

/// The last second may be gone.
#[test]
fn a_server_that_writes_down_each_second_makes_no_number_smaller() {
    let fault = "kill -9 and restart, AOF everysec";
    let name = "numbers grow, a resource that checks tokens loses no update";
    let mut experiment = Experiment::new(24, name, fault, &EVENTS);
    let (_, said) = restarts(&["appendonly yes", "appendfsync everysec"], &mut experiment);
    assert!(said.contains("steps="), "{said}");
    experiment.finish();
}

/// Nothing is gone: locks outlive the server, and so does exclusion.
#[test]
fn a_server_that_writes_down_all_keeps_locks_and_exclusion() {
    let fault = "kill -9 and restart, AOF always";
    let name = "no two turns at once, leases outlive the server, numbers grow";
    let mut experiment = Experiment::new(24, name, fault, &EVENTS);
    let (outcome, said) = restarts(&["appendonly yes", "appendfsync always"], &mut experiment);
    let handovers = outcome.history.check();
    assert!(handovers > 5, "{handovers} {}", outcome.words());
    assert!(said.contains("Ok(InTime)"), "{said}");
    experiment.finish();
}
