//! Faults that the soak test injects at random.

use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::Duration;

use lock_testkit::history::now;
use lock_testkit::{Rng, ms, number};

use crate::support::wall::WallClock;
use crate::support::workload::Field;

/// The counter of the namespace and the bucket of all keys.
const COUNTER: &str = "lock:{0}:fence";

/// Attempts to find a worker in the middle of a turn.
const TRIES: usize = 50;

/// A kind of fault, as the report names it.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    /// As reported.
    pub(super) name: &'static str,
    /// How often it took effect.
    pub(super) happen: fn(&mut Scene<'_>, &mut Field) -> usize,
}

pub(super) struct Chance(Rng);

impl Chance {
    /// Seeded by the clock or by `LOCK_TESTS_SEED`. Prints the seed.
    pub(super) fn begin(name: &str) -> Self {
        let drawn = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = number("LOCK_TESTS_SEED").unwrap_or_else(drawn);
        println!("{name}: LOCK_TESTS_SEED={seed}");
        Self(Rng::new(seed))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        ms(from + self.below(to - from))
    }

    fn key(&mut self) -> String {
        format!("lock:k{}", self.below(2))
    }
}

/// What faults draw upon, and what they leave behind.
pub(super) struct Scene<'a> {
    pub(super) chance: Chance,
    clock: Option<&'a WallClock>,
    ttl: u64,
    /// By how many minutes the clock is ahead, and the furthest that it has ever been.
    minutes: i64,
    furthest: i64,
    /// Windows in which two holders may be at work at once.
    pub(super) windows: Vec<RangeInclusive<u128>>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(chance: Chance, clock: Option<&'a WallClock>, ttl: Duration) -> Self {
        let ttl = ttl.as_millis() as u64;
        Self { chance, clock, ttl, minutes: 0, furthest: 0, windows: Vec::new() }
    }

    /// Does something that makes the server forget or misjudge a lease. Holders of leases that were
    /// granted before stop by themselves within a ttl.
    fn harm<T>(&mut self, harm: impl FnOnce() -> T) -> T {
        let from = now();
        let harmed = harm();
        self.harmed_since(from);
        harmed
    }

    /// The same, if it does any harm.
    fn harm_if(&mut self, harm: impl FnOnce() -> bool) -> bool {
        let from = now();
        let harmed = harm();
        if harmed {
            self.harmed_since(from);
        }
        harmed
    }

    fn harmed_since(&mut self, from: u128) {
        self.windows.push(from..=now() + u128::from(self.ttl) * 1_000_000);
    }

    fn set_clock(&mut self, minutes: i64) {
        let Some(clock) = self.clock else { return };
        (self.minutes, self.furthest) = (minutes, self.furthest.max(minutes));
        self.harm(|| clock.shift(minutes * 60_000));
    }

    /// Counter and clock must not be lost at once: nothing else makes numbers grow.
    fn mend_clock(&mut self) {
        if self.minutes < self.furthest {
            self.set_clock(self.furthest);
        }
    }

    /// Keys of dead processes expire.
    pub(super) fn end(&mut self) {
        self.mend_clock();
    }

    fn any_worker(&mut self, field: &Field) -> usize {
        self.chance.below(field.workers.len() as u64) as usize
    }

    /// A worker that holds a lock, or any worker if there is none.
    fn holder(&mut self, field: &Field) -> usize {
        field.holder("k0").unwrap_or_else(|| self.any_worker(field))
    }
}

/// Tries until the fault takes effect, since the key may be free just now. Returns how often it
/// took effect.
fn often(mut strike: impl FnMut() -> bool) -> usize {
    let struck = (0..TRIES).any(|_| {
        sleep(ms(5));
        strike()
    });
    usize::from(struck)
}

/// Faults that break none of the assumptions on which exclusion rests.
pub(super) const HARMLESS: [Fault; 9] = [
    Fault {
        name: "holders stopped",
        happen: |scene, field| {
            let span = scene.chance.millis(100, 3 * scene.ttl);
            often(|| field.stop_holder("k0", span))
        },
    },
    Fault {
        name: "processes stopped",
        happen: |scene, field| {
            let victim = scene.any_worker(field);
            field.stop(victim, scene.chance.millis(100, 3 * scene.ttl));
            1
        },
    },
    Fault {
        name: "processes killed",
        happen: |scene, field| {
            let holder = scene.chance.below(2) == 0;
            let victim = if holder { scene.holder(field) } else { scene.any_worker(field) };
            field.replace(victim);
            1
        },
    },
    Fault {
        name: "stops of the server",
        happen: |scene, field| {
            field.server.pause();
            sleep(scene.chance.millis(100, 2 * scene.ttl));
            field.server.resume();
            1
        },
    },
    Fault {
        name: "pauses of its clients",
        happen: |scene, field| {
            let mode = ["ALL", "WRITE"][scene.chance.below(2) as usize];
            let span = scene.chance.millis(100, 2 * scene.ttl);
            let () = field.server.cli(&format!("CLIENT PAUSE {} {mode}", span.as_millis()));
            sleep(span);
            1
        },
    },
    Fault {
        name: "connections killed",
        happen: |scene, field| {
            let times = 1 + scene.chance.below(10);
            let killed = (0..times).map(|_| {
                sleep(ms(50));
                field.server.kill_connections()
            });
            killed.sum()
        },
    },
    Fault {
        name: "sleeps of the server",
        happen: |scene, field| {
            let span = scene.chance.millis(50, 2 * scene.ttl);
            let () = field.server.cli(&format!("DEBUG SLEEP {}", span.as_secs_f64()));
            1
        },
    },
    Fault {
        name: "times that scripts were flushed",
        happen: |scene, field| {
            let mut cli = field.server.connect();
            for _ in 0..=scene.chance.below(300) {
                let () = cli.run("SCRIPT FLUSH").unwrap();
                sleep(ms(1));
            }
            1
        },
    },
    // Everything is persisted, so the restart forgets nothing.
    Fault {
        name: "restarts of the server",
        happen: |scene, field| {
            field.server.kill();
            sleep(scene.chance.millis(10, 300));
            field.server.boot();
            1
        },
    },
];

/// Faults that make the server forget, and interference by foreign clients. Two holders may be at
/// work at once.
pub(super) const HARMFUL: [Fault; 5] = [
    Fault {
        name: "times that all was forgotten",
        happen: |scene, field| {
            scene.mend_clock();
            let keys: usize = field.server.cli("DBSIZE");
            let () = scene.harm(|| field.server.cli("FLUSHALL"));
            usize::from(keys > 0)
        },
    },
    Fault {
        name: "counters lost",
        happen: |scene, field| {
            scene.mend_clock();
            field.server.cli(&format!("DEL {COUNTER}"))
        },
    },
    Fault {
        name: "locks deleted by others",
        happen: |scene, field| {
            let key = scene.chance.key();
            often(|| scene.harm_if(|| field.server.cli::<usize>(&format!("DEL {key}")) > 0))
        },
    },
    Fault {
        name: "locks overwritten by others",
        happen: |scene, field| {
            let (key, span) = (scene.chance.key(), 50 + scene.chance.below(400));
            let set = format!("SET {key} foreign GET XX PX {span}");
            often(|| scene.harm_if(|| field.server.cli::<Option<String>>(&set).is_some()))
        },
    },
    Fault {
        name: "expiries taken off",
        happen: |scene, field| {
            let key = scene.chance.key();
            let persisted = often(|| field.server.cli::<usize>(&format!("PERSIST {key}")) > 0);
            sleep(ms(scene.ttl / 2));
            // It was not renewed, so its owner is dead, stopped or a foreign client.
            if field.server.pttl(&key) == -1 {
                let _gone: usize = scene.harm(|| field.server.cli(&format!("DEL {key}")));
            }
            persisted
        },
    },
];

pub(super) const MOVED_CLOCK: Fault = Fault {
    name: "jumps of the clock",
    happen: |scene, field| {
        // Otherwise the counter is lost, and nothing has been granted since.
        let is_counted = field.server.has(COUNTER);
        let may_be =
            |minutes: &i64| *minutes != scene.minutes && (is_counted || *minutes >= scene.furthest);
        let choice: Vec<i64> = [-10, 0, 1, 5].into_iter().filter(may_be).collect();
        if choice.is_empty() {
            return 0;
        }
        let minutes = choice[scene.chance.below(choice.len() as u64) as usize];
        scene.set_clock(minutes);
        1
    },
};
