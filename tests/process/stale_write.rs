//! Holders that write after their lease: refused where the fencing token is checked, and damage
//! where it is not.
//!
//! The owners of guards read a number, take their time, and write it back one greater. They are
//! stopped in between, for longer than their leases last.

use std::thread::sleep;

use lock_testkit::{Experiment, ms, scale};

use crate::support::history::History;
use crate::support::workload::{LoggedEvent, Outcome, Workload};

const TTL: u64 = 300;

/// Stops holders in the middle of their turns until there was enough of it.
fn stop_holders(
    name: &'static str,
    resource: &'static str,
    fenced: bool,
    events: &'static [LoggedEvent],
    experiment: &Experiment,
) -> (Outcome, usize) {
    let workload = Workload {
        ttl: TTL,
        tasks: 2,
        work: 15_000,
        resource,
        fenced,
        bound: false,
        events,
        ..Workload::new(name, 1, ms(scale(4) as u64 * 1_000))
    };
    let outcome = workload.run(|field| {
        let mut stopped = 0;
        while !field.is_over(ms(1_200), experiment) {
            // Up to three times its ttl.
            stopped += u64::from(field.stop_holder("k0", ms(TTL * (3 + stopped % 4) / 2)));
            sleep(ms(20));
        }
    });
    // Stopped or not, no turn begins late or in another one's lease.
    let _hand_offs = outcome.history.check();
    let stopped = outcome.history.stopped_holders();
    (outcome, stopped)
}

const REFUSED: [LoggedEvent; 3] = [
    ("holders stopped", 1, History::stopped_holders),
    ("turns", 1, History::turns),
    ("stale writes refused", 1, History::refused),
];

fn with_the_check(resource: &'static str, name: &'static str) {
    let events = ["holders stopped", "turns", "stale writes refused"];
    let fault = "SIGSTOP of holders for up to three ttl, in the middle of a turn";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let (outcome, stopped) = stop_holders("fenced", resource, true, &REFUSED, &experiment);
    let words = outcome.words();
    assert_eq!(outcome.lost_updates(), 0, "{words}");
    assert_eq!(outcome.history.stale(), 0, "{words}");
    experiment.ran(1);
    experiment.saw("holders stopped", stopped);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("stale writes refused", outcome.history.refused());
    experiment.finish();
}

/// The logs show stale writes, but no lost updates.
const DAMAGED: [LoggedEvent; 2] = [
    ("holders stopped", 1, History::stopped_holders),
    ("lost updates or stale writes", 1, History::stale),
];

/// Not a promise, but what makes the other two worth something.
fn without_the_check(resource: &'static str, name: &'static str) {
    let events = ["holders stopped", "lost updates or stale writes"];
    let fault = "the same, and the resource checks no token";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let (outcome, stopped) = stop_holders("unfenced", resource, false, &DAMAGED, &experiment);
    assert_eq!(outcome.history.refused(), 0, "{}", outcome.words());
    experiment.ran(1);
    experiment.saw("holders stopped", stopped);
    let damage = usize::try_from(outcome.lost_updates()).unwrap() + outcome.history.stale();
    experiment.saw("lost updates or stale writes", damage);
    experiment.finish();
}

/// Both at the same time: they mostly sleep.
fn with_and_without(resource: &'static str, with: &'static str, without: &'static str) {
    std::thread::scope(|scope| {
        let control = scope.spawn(move || without_the_check(resource, without));
        with_the_check(resource, with);
        control.join().unwrap();
    });
}

/// Holders are stopped for longer than their lease, and then write to a file. Without the check,
/// updates are lost.
#[test]
fn file_that_checks_tokens_refuses_late_writes() {
    with_and_without(
        "file",
        "a file that checks tokens loses no update",
        "control: a file that checks none does lose updates",
    );
}

/// The same with a row of an SQL table.
#[test]
fn row_that_checks_tokens_refuses_late_writes() {
    with_and_without(
        "row",
        "a row that checks tokens loses no update",
        "control: a row that checks none does lose updates",
    );
}
