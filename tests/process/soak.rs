//! All of it, at random, for as long as there is time.

use std::thread::sleep;
use std::time::Duration;

use lock_tests::{Experiment, RedisServer, dose, ms};

use crate::exclusion::kill_connections;
use crate::support::contest::{Contest, Field};
use crate::support::history::Ground;
use crate::support::wall::WallClock;

const TTL: u64 = 1_000;
/// A fault each, and some peace in between.
const PAUSE: Duration = ms(250);

/// Numbers that are the same for the same seed: `SplitMix64`.
struct Chance(u64);

impl Chance {
    /// One drawn by the clock, or the one that `LOCK_TESTS_SEED` names. It is printed.
    fn begin(name: &str) -> Self {
        let drawn = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let named = std::env::var("LOCK_TESTS_SEED").map(|seed| seed.parse().unwrap());
        let seed = named.unwrap_or_else(|_| drawn());
        println!("{name}: LOCK_TESTS_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        ms(from + self.below(to - from))
    }
}

/// Faults that break none of the assumptions on which exclusion rests.
const HARMLESS: u64 = 9;

/// Lets one of them happen.
fn harmless(field: &mut Field, chance: &mut Chance) {
    // A holder or a waiter, as it comes.
    let victim = chance.below(field.workers.len() as u64) as usize;
    // A holder, if there is one.
    let holder = field.holder("k0").unwrap_or(victim);
    match chance.below(HARMLESS) {
        0 => field.stop(holder, chance.millis(100, 3 * TTL)),
        1 => field.stop(victim, chance.millis(100, 3 * TTL)),
        2 => field.replace(if chance.below(2) == 0 { holder } else { victim }),
        3 => {
            field.server.pause();
            sleep(chance.millis(100, 2 * TTL));
            field.server.resume();
        }
        4 => {
            let mode = ["ALL", "WRITE"][chance.below(2) as usize];
            let span = chance.millis(100, 2 * TTL);
            let () = field.server.cli(&format!("CLIENT PAUSE {} {mode}", span.as_millis()));
            sleep(span);
        }
        5 => {
            for _ in 0..chance.below(10) {
                let _killed = kill_connections(&field.server);
                sleep(ms(50));
            }
        }
        6 => {
            let span = chance.millis(50, 2 * TTL);
            let () = field.server.cli(&format!("DEBUG SLEEP {}", span.as_secs_f64()));
        }
        7 => {
            let mut cli = field.server.connect();
            for _ in 0..chance.below(300) {
                let () = cli.run("SCRIPT FLUSH").unwrap();
                sleep(ms(1));
            }
        }
        // Nothing is forgotten: all is written down.
        _ => {
            field.server.kill();
            sleep(chance.millis(10, 300));
            field.server.boot();
        }
    }
}

/// Faults with which the server forgets or misjudges, or somebody else meddles: two may be at work at once.
struct Meddler {
    clock: Option<WallClock>,
    minutes: i64,
    /// The furthest that the clock has ever been.
    furthest: i64,
}

impl Meddler {
    fn harm(&mut self, field: &Field, chance: &mut Chance) {
        let key = format!("lock:k{}", chance.below(2));
        match chance.below(6) {
            0 if self.is_clock_good() => field.server.cli("FLUSHALL"),
            1 if self.is_clock_good() => drop(field.server.cli::<i64>("DEL lock:{0}:fence")),
            0..=2 => drop(field.server.cli::<i64>(&format!("DEL {key}"))),
            3 => field.server.cli(&format!("SET {key} foreign PX {}", 50 + chance.below(400))),
            4 => drop(field.server.cli::<i64>(&format!("PERSIST {key}"))),
            _ => {
                if let Some(clock) = &self.clock {
                    self.minutes = [-10, 0, 1, 5][chance.below(4) as usize];
                    self.furthest = self.furthest.max(self.minutes);
                    clock.shift(self.minutes * 60_000);
                }
            }
        }
    }

    /// Counter and clock must not be lost at once: nothing else makes numbers grow.
    fn is_clock_good(&self) -> bool {
        self.minutes >= self.furthest
    }
}

fn contest(name: &'static str) -> Contest {
    Contest {
        ttl: TTL,
        tasks: 4,
        work: 10_000,
        fenced: true,
        config: &["appendonly yes", "appendfsync always"],
        ..Contest::new(name, 2, ms(dose(7) as u64 * 1_000))
    }
}

/// Whatever happens to processes, connections and the server: no two at once.
#[test]
fn faults_at_random_break_no_exclusion() {
    let mut chance = Chance::begin("harmless");
    let events = ["faults", "turns", "hand-overs between processes"];
    let fault = "at random: SIGSTOP and SIGKILL of holders, SIGSTOP, DEBUG SLEEP and restart of the server, CLIENT PAUSE, \
                 CLIENT KILL, SCRIPT FLUSH";
    let name = "no two turns at once, no poll after the deadline, numbers grow, nothing left";
    let mut experiment = Experiment::new(44, name, fault, &events);
    let outcome = contest("harmless").run(|field| {
        while !field.is_over(ms(3 * TTL)) {
            harmless(field, &mut chance);
            experiment.saw("faults", 1);
            sleep(PAUSE);
        }
    });
    let words = outcome.words();
    let handovers = outcome.history.check();
    assert_eq!(outcome.late, 0, "{words}");
    // Updates of a process that was killed between a write and its record are not in the log.
    assert!(outcome.history.accepted() <= outcome.total, "lost updates: {words}");
    assert_eq!(outcome.history.stale(), 0, "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("hand-overs between processes", handovers);
    experiment.finish();
}

/// Also when the server forgets: the resource that checks tokens loses no update.
#[test]
fn faults_at_random_make_no_number_smaller() {
    let mut chance = Chance::begin("harmful");
    let events = ["faults", "turns"];
    let fault = "the same, and FLUSHALL, foreign DEL, SET and PERSIST, a counter that is lost, jumps of the server's clock";
    let name = "numbers grow, a resource that checks them loses no update, no turn begins late";
    let mut experiment = Experiment::new(44, name, fault, &events);
    let ground = Ground::new("clock");
    let mut meddler = Meddler { clock: WallClock::build(&ground), minutes: 0, furthest: 0 };
    let contest = Contest { bound: false, ..contest("harmful") };
    let server = match &meddler.clock {
        Some(clock) => clock.server(contest.config),
        None => RedisServer::start_with(contest.config),
    };
    let outcome = contest.run_on(server, |field| {
        while !field.is_over(ms(3 * TTL)) {
            if chance.below(2) == 0 {
                harmless(field, &mut chance);
            } else {
                meddler.harm(field, &mut chance);
            }
            experiment.saw("faults", 1);
            sleep(PAUSE);
        }
    });
    let words = outcome.words();
    outcome.history.check_numbers();
    assert!(outcome.history.accepted() <= outcome.total, "lost updates: {words}");
    assert_eq!(outcome.history.stale(), 0, "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.finish();
}
