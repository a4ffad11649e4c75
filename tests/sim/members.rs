//! A quorum of members in memory, under a network that delays, doubles and loses calls: as many
//! seeds as there is time for, since nothing is encoded and no script runs.
//!
//! `quorum` simulates the same with the protocol of Redis and the scripts, for fewer seeds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::testing::{Fate, MemoryMember, Network, quorum_of};
use lock_core::{LockClient, LockOptions};
use lock_testkit::{Experiment, Rng, number, scale};
use tokio::time::{Instant, sleep, timeout};

use crate::stress;
use crate::topology::simulated;
use crate::turns::{CALM, SETTLED, Turns, Worker};

/// By default. The programme of faults runs the most.
const SEEDS: u64 = 100;
const MOST_SEEDS: u64 = 20_000;
/// A seed costs as much as so many of the simulation of one server.
const COST: u64 = 10;
/// The shortest that is allowed.
const RESTART_DELAY: Duration = Duration::from_secs(3);
const REQUEST: Duration = Duration::from_millis(100);
/// Faults begin within this time.
const STORM: Duration = Duration::from_secs(12);
const KEYS: &[&str] = &["k"];
/// In microseconds.
const MOST_APART: u64 = 20_000;

/// One client's way to one member.
struct Way {
    rng: Rng,
    /// Until when requests and replies are lost.
    cut: [Option<Instant>; 2],
    /// How many of 100 calls are slow, lost and doubled.
    slow: u64,
    lossy: u64,
    doubled: u64,
    seen: Seen,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    turns: usize,
    restarts: usize,
    cuts: usize,
    lost: usize,
    slow: usize,
    doubled: usize,
    leases_lost: usize,
    refused: usize,
}

impl Seen {
    const NAMES: [&str; 8] = [
        "turns",
        "restarts without data",
        "ways cut off",
        "calls without a reply",
        "late calls",
        "doubled calls",
        "leases lost",
        "waits that ended without a lock",
    ];

    fn all(&self) -> [usize; 8] {
        let Self { turns, restarts, cuts, lost, slow, doubled, leases_lost, refused } = *self;
        [turns, restarts, cuts, lost, slow, doubled, leases_lost, refused]
    }

    fn add(&mut self, other: &Self) {
        self.turns += other.turns;
        self.restarts += other.restarts;
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.slow += other.slow;
        self.doubled += other.doubled;
        self.leases_lost += other.leases_lost;
        self.refused += other.refused;
    }
}

impl Way {
    fn fate(&mut self) -> Fate {
        let now = Instant::now();
        let [up, down] = self.cut.map(|until| until.is_some_and(|until| now < until));
        let mut span = |slow| if slow { self.rng.ms(0..=900) } else { self.rng.ms(0..=3) };
        let (fast, late) = ([span(false), span(false)], [span(true), span(true)]);
        let (is_slow, is_lost) = (self.rng.chance(self.slow), self.rng.chance(self.lossy));
        let is_reply = self.rng.chance(50);
        let again = self.rng.chance(self.doubled).then(|| self.rng.ms(0..=900));
        let [request, reply] = if is_slow { late } else { fast };
        let fate = Fate {
            request: (!up && (!is_lost || is_reply)).then_some(request),
            reply: (!down && (!is_lost || !is_reply)).then_some(reply),
            again,
        };
        self.seen.slow += usize::from(is_slow);
        self.seen.lost += usize::from(fate.request.is_none() || fate.reply.is_none());
        self.seen.doubled += usize::from(again.is_some());
        fate
    }
}

/// The seeds to run: as many as the environment says, but no more than there is time for.
fn seeds() -> std::ops::Range<u64> {
    if let Some(seed) = number::<u64>("LOCK_SIM_SEED") {
        return seed..seed + 1;
    }
    let many = if scale(1) == 1 { SEEDS } else { MOST_SEEDS };
    let of_one_server = number::<u64>("LOCK_SIM_SEEDS").map_or(many, |seeds| seeds / COST);
    0..of_one_server.clamp(SEEDS, MOST_SEEDS)
}

/// Exclusion and order of tokens, the state that remains, and progress, under random faults.
#[test]
fn promises_of_a_quorum_in_memory_hold_under_random_faults() {
    let mut experiment = Experiment::new(
        72,
        "of a quorum: no two turns at once, numbers grow, all are served, nothing left behind",
        "late, lost and doubled calls, ways cut off, clocks apart, restarts without data, dropped waits, by seed",
        &Seen::NAMES,
    );
    let total = Mutex::new(Seen::default());
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    experiment.ran(usize::try_from(count).unwrap());
    stress::each(seeds, |seed| {
        let seen = simulated(seed, simulate(seed));
        total.lock().unwrap().add(&seen);
    });
    let total = total.into_inner().unwrap();
    println!("{total:?}");
    for (name, count) in Seen::NAMES.into_iter().zip(total.all()) {
        experiment.saw(name, count);
    }
    // Fewer do not see every event.
    if count >= SEEDS {
        experiment.finish();
    }
}

/// The same seed is the same simulation.
#[test]
fn seed_of_a_quorum_in_memory_repeats_itself() {
    for seed in [1, 2] {
        let run = || simulated(seed, simulate(seed)).all();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

async fn simulate(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let (count, owners) = (rng.one_of(&[3, 5]), rng.within(2..=4) as usize);
    let ttl = rng.one_of(&[400, 1_000, 2_500]);
    let members: Vec<_> = (0..count)
        .map(|_| MemoryMember::new(rng.within(992_000..=1_008_000), rng.within(0..=MOST_APART)))
        .collect();
    let turns = Turns::default();
    let end = Instant::now() + STORM;
    let (mut clients, mut ways, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for owner in 0..owners {
        let mut quorum = Vec::new();
        for member in &members {
            let way = Arc::new(Mutex::new(Way {
                rng: rng.split(),
                cut: [None; 2],
                slow: rng.within(0..=8),
                lossy: rng.within(0..=4),
                doubled: rng.within(0..=4),
                seen: Seen::default(),
            }));
            ways.push(Arc::clone(&way));
            let network: Network = Arc::new(move || way.lock().unwrap().fate());
            quorum.push((member.clone(), network));
        }
        let store = quorum_of(quorum, RESTART_DELAY, REQUEST);
        let defaults = LockOptions::new().with_ttl(Duration::from_millis(ttl));
        let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
        let (rng, turns) = (rng.split(), turns.clone());
        let worker = Worker { client: client.clone(), owner, keys: KEYS, rng, turns };
        tasks.push(tokio::spawn(worker.work(end)));
        clients.push(client);
    }
    let restarts = storm(&members, &ways, &mut rng, end).await;
    for way in &ways {
        let mut way = way.lock().unwrap();
        (way.cut, way.slow, way.lossy, way.doubled) = ([None; 2], 0, 0, 0);
    }
    for task in tasks {
        timeout(CALM, task).await.expect("a task ends").unwrap();
    }
    turns.all_are_served(&clients, KEYS).await;
    sleep(SETTLED).await;
    for member in &members {
        assert_eq!(member.locks(), 0, "locks are left");
    }
    assert!(turns.overlaps().is_empty(), "{:?}", turns.overlaps());
    turns.check();
    let (leases_lost, refused) = (turns.lost(), turns.refused());
    let mut seen = Seen { turns: turns.count(), restarts, leases_lost, refused, ..Seen::default() };
    for way in ways {
        seen.add(&way.lock().unwrap().seen);
    }
    seen
}

/// Injects faults until `end`. Returns how often a member restarted.
async fn storm(
    members: &[MemoryMember],
    ways: &[Arc<Mutex<Way>>],
    rng: &mut Rng,
    end: Instant,
) -> usize {
    let (mut of_age_at, mut restarts) = (Instant::now(), 0);
    while Instant::now() < end {
        sleep(rng.ms(20..=400)).await;
        if rng.chance(20) && of_age_at <= Instant::now() {
            // One after the other: the next one only when the last one votes again and was
            // repaired.
            of_age_at = Instant::now() + RESTART_DELAY * 2;
            members[rng.below(members.len() as u64) as usize].restart_empty();
            restarts += 1;
        } else {
            let mut way = ways[rng.below(ways.len() as u64) as usize].lock().unwrap();
            let until = Instant::now() + rng.ms(10..=900);
            way.cut[rng.below(2) as usize] = Some(until);
            way.seen.cuts += 1;
        }
    }
    restarts
}
