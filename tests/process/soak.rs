//! All of it, at random, for as long as there is time.
//!
//! Some seconds, times the dose; or as many seconds as `LOCK_TESTS_SOAK` says. Each kind of fault
//! comes once before any comes again.

mod faults;

use std::io::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_testkit::{Experiment, RedisServer, ms, number, scale};

use self::faults::{Chance, Fault, HARMFUL, HARMLESS, MOVED_CLOCK, Scene};
use crate::support::history::{Ground, History};
use crate::support::wall::WallClock;
use crate::support::workload::{Field, Outcome, Workload};

const TTL: u64 = 700;
/// Some peace between faults.
const PAUSE: Duration = ms(150);
/// Enough for each fault once, on a machine that does other things, too.
const SHORT: u64 = 14;
/// Who soaks for long wants to see that it goes on.
const PROGRESS: Duration = Duration::from_secs(30);

fn workload(name: &'static str) -> Workload {
    let seconds = number("LOCK_TESTS_SOAK").unwrap_or_else(|| scale(1) as u64 * SHORT);
    Workload {
        ttl: TTL,
        processes: 8,
        tasks: 4,
        work: 10_000,
        renewed: TTL,
        fenced: true,
        events: &[
            ("turns", 1, History::turns),
            ("turns longer than a ttl", 1, History::renewed_turns),
            ("hand-offs between processes", 1, History::hand_offs),
        ],
        config: &["appendonly yes", "appendfsync always", "enable-debug-command yes"],
        ..Workload::new(name, 2, Duration::from_secs(seconds))
    }
}

/// Lets faults happen, one after the other, until the workload is about to end.
fn soak(scene: &mut Scene<'_>, faults: &[Fault], field: &mut Field, experiment: &mut Experiment) {
    let (mut deck, mut dealt, mut told) = (Vec::new(), 0, Instant::now());
    // Those that are stopped or wait in the end must have time to go on.
    while !field.is_over(ms(3 * TTL), experiment) {
        if deck.is_empty() {
            deck = faults.to_vec();
        }
        let fault = deck.swap_remove(scene.chance.below(deck.len() as u64) as usize);
        let times = (fault.happen)(scene, field);
        experiment.saw(fault.name, times);
        dealt += 1;
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            let left = field.end.saturating_duration_since(told).as_secs();
            let history = field.ground.size() / 1_024;
            // Past the capture of output, which shows it in the end.
            let mut out = std::io::stderr().lock();
            writeln!(out, "soak: {dealt} faults, {history} kB of history, {left} s to go").unwrap();
        }
        sleep(PAUSE);
    }
    scene.end();
}

/// What holds in either case, but for overlapping turns in the windows that `scene` has declared.
fn check(outcome: &Outcome, scene: &Scene<'_>, experiment: &mut Experiment) {
    let words = outcome.words();
    let hand_offs = outcome.history.check_but_within(&scene.windows);
    // Updates of a process that was killed between a write and its record are not in the log.
    assert!(outcome.history.accepted() <= outcome.total, "lost updates: {words}");
    assert_eq!(outcome.history.stale(), 0, "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("turns longer than a ttl", outcome.renewed);
    experiment.saw("hand-offs between processes", hand_offs);
}

fn experiment(name: &'static str, fault: &'static str, faults: &[Fault]) -> Experiment {
    let mut events: Vec<_> = faults.iter().map(|fault| fault.name).collect();
    events.extend(["turns", "turns longer than a ttl", "hand-offs between processes"]);
    Experiment::new(44, name, fault, &events)
}

/// Whatever happens to processes, connections and the server: no two at once.
#[test]
fn exclusion_holds_under_random_faults() {
    let name = "no two turns at once, no poll after the deadline, numbers grow, nothing left";
    let fault =
        "at random, 8 processes: signals to them and to the server, connections killed, restarts";
    let mut experiment = experiment(name, fault, &HARMLESS);
    let mut scene = Scene::new(Chance::begin("harmless"), None, ms(TTL));
    let outcome = workload("harmless").run(|field| {
        soak(&mut scene, &HARMLESS, field, &mut experiment);
    });
    assert!(scene.windows.is_empty());
    assert_eq!(outcome.late, 0, "{}", outcome.words());
    check(&outcome, &scene, &mut experiment);
    experiment.finish();
}

/// Also when the server forgets: numbers grow, the resource that checks them loses no update, and
/// turns overlap only when a lease was forgotten or misjudged.
#[test]
fn fencing_tokens_grow_under_random_faults() {
    let name = "numbers grow, a resource that checks them loses no update, no overlap but in declared windows";
    let fault = "the same, and keys deleted or overwritten by others, a counter lost, jumps of the server's clock";
    let ground = Ground::new("clock");
    let clock = WallClock::build(&ground);
    let mut faults = [&HARMLESS[..], &HARMFUL[..]].concat();
    faults.extend(clock.is_some().then_some(MOVED_CLOCK));
    let mut experiment = experiment(name, fault, &faults);
    let workload = Workload { bound: false, ..workload("harmful") };
    let server = match &clock {
        Some(clock) => clock.server(workload.config),
        None => RedisServer::start_with(workload.config),
    };
    let mut scene = Scene::new(Chance::begin("harmful"), clock.as_ref(), ms(TTL));
    let outcome = workload.run_on(server, |field| {
        soak(&mut scene, &faults, field, &mut experiment);
    });
    check(&outcome, &scene, &mut experiment);
    experiment.finish();
}
