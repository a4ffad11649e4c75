//! A cluster of two shards, each a master with a replica: a slot that moves from one shard to the
//! other and back, key by key, while clients contend for its locks; and failovers of both shards.

use std::time::Duration;

use lock_testkit::{Experiment, Rng};
use tokio::time::{Instant, sleep};

use crate::fake::{Fake, Traits, View, slot};
use crate::log::Log;
use crate::net::{Latency, Net};
use crate::pair::Pair;
use crate::topology::{
    Crowd, LOST, OVERLAPS, REQUEST, Seen, Setup, TURNS, experiment, log_of, simulated,
};

/// Each takes about half a second without optimization.
const SEEDS: u64 = 10;
const SHARDS: usize = 2;
/// Two locks of one slot, so that their commands share calls.
const KEYS: &[&str] = &["a{hot}", "b{hot}"];
const URL: &str = "redis+cluster://node0,node1,node2,node3";
/// Slots move and masters fail within this time.
const STORM: Duration = Duration::from_secs(15);
/// How many slots each shard has at first.
const HALF: u16 = 8_192;

const MOVES: &str = "moves of the slot";
const MOVED: &str = "commands sent on to the new node of the slot";
const ASK: &str = "commands sent on to the next node of the slot";
const TRY_AGAIN: &str = "commands refused while their keys were on two nodes";

/// The nodes, and the slot that moves.
struct Cluster {
    /// The nodes of a shard follow each other in the network.
    shards: Vec<Pair>,
    /// As it is; nodes learn of it later.
    view: View,
    /// The slot of the locks.
    hot: u16,
    net: Net,
    log: Log,
    rng: Rng,
    seen: Seen,
}

/// Exclusion, order of tokens, no lease lost, and nothing left behind, while a slot moves.
#[test]
fn moves_of_a_slot_cost_no_lease() {
    let about = Experiment::new(
        74,
        "on a cluster: a slot that moves costs no lease and no order",
        "a slot that moves to and fro, key by key, by seed",
        &[TURNS, MOVES, MOVED, ASK, TRY_AGAIN],
    );
    experiment(about, SEEDS, |seed| {
        let seen = simulated(seed, simulate(seed));
        assert_eq!((seen.count(LOST), seen.count(OVERLAPS)), (0, 0));
        seen
    });
}

/// The same seed is the same simulation.
#[test]
fn seed_on_a_cluster_repeats_itself() {
    for seed in [1, 2] {
        let run = || simulated(seed, simulate(seed));
        assert_eq!(run(), run(), "seed {seed}");
    }
}

async fn simulate(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let log = log_of(seed);
    let needs_acks = rng.chance(50);
    let ttl = rng.ms(1_000..=3_000);
    log.note(|| format!("ttl {ttl:?}, with acknowledgement: {needs_acks}"));
    let mut cluster = Cluster::new(&log, &mut rng, ttl, needs_acks);
    let (net, end) = (cluster.net.clone(), Instant::now() + STORM);
    let setup = Setup { url: URL, keys: KEYS, ttl, needs_acks, end };
    let mut crowd = Crowd::start(setup, &net, &mut rng);
    cluster.change_until(end).await;
    crowd.ends().await;
    let nodes: Vec<_> = cluster.nodes().cloned().collect();
    let mut seen = crowd.check(&nodes, &[]).await;
    for shard in &cluster.shards {
        seen.add_all(&shard.seen);
    }
    for node in &nodes {
        let refusals = node.counts().refusals;
        seen.add(MOVED, refusals.moved);
        seen.add(ASK, refusals.ask);
        seen.add(TRY_AGAIN, refusals.try_again);
    }
    seen.add_all(&cluster.seen);
    seen
}

impl Cluster {
    fn new(log: &Log, rng: &mut Rng, ttl: Duration, needs_acks: bool) -> Self {
        let clock_rate = rng.within(996_000..=1_004_000);
        let apart = if needs_acks { rng.within(1..=1_000) } else { 200 };
        let nodes: Vec<_> = (0..2 * SHARDS as u64)
            .map(|number| {
                let fake = Fake::new(Traits { resp3: true, clock_rate }, log.clone());
                fake.set_clock(fake.clock_us() + number * apart);
                fake.tell_process(number, Duration::from_secs(3_600));
                fake
            })
            .collect();
        let latency = Latency { usual: rng.within(1..=4), longest: 20, slow: rng.within(0..=10) };
        let net = Net::new(nodes[0].clone(), latency, REQUEST, rng.split());
        for (number, node) in nodes.iter().enumerate().skip(1) {
            net.add(name(number), node.clone());
        }
        let hot = slot(format!("lock:{}", KEYS[0]).as_bytes());
        let shards = (0..SHARDS).map(|shard| [name(2 * shard), name(2 * shard + 1)]).collect();
        let view = View { epoch: 1, shards, ranges: ranges(hot, usize::from(hot / HALF)) };
        for (number, node) in nodes.iter().enumerate() {
            node.join(name(number), view.clone(), &nodes[number ^ 1], rng.split());
        }
        let shards = (0..SHARDS)
            .map(|shard| {
                let first = 2 * shard;
                let both = [nodes[first].clone(), nodes[first + 1].clone()];
                Pair::new(both, first, &net, log, rng, ttl)
            })
            .collect();
        let (log, rng) = (log.clone(), rng.split());
        Self { shards, view, hot, net, log, rng, seen: Seen::default() }
    }

    fn nodes(&self) -> impl Iterator<Item = &Fake> {
        self.shards.iter().flat_map(|shard| &shard.servers)
    }

    /// The slot moves, until `end` and to the end of the last move.
    async fn change_until(&mut self, end: Instant) {
        loop {
            sleep(self.rng.ms(50..=1_500)).await;
            if Instant::now() >= end {
                return;
            }
            self.move_slot().await;
        }
    }

    /// Moves the slot to the other shard, key by key.
    async fn move_slot(&mut self) {
        let (from, hot) = (self.view.shard(self.hot), self.hot);
        let to = 1 - from;
        let (source, target) = (self.shards[from].ruler().clone(), self.shards[to].ruler().clone());
        let there = self.view.shards[to][0].clone();
        self.log.note(|| format!("the slot moves to {there}"));
        target.moves(hot, &there);
        sleep(self.rng.ms(0..=5)).await;
        source.moves(hot, &there);
        loop {
            let mut keys = source.keys_in(hot);
            if keys.is_empty() {
                break;
            }
            let key = keys.swap_remove(self.rng.below(keys.len() as u64) as usize);
            source.migrate(&key, &target);
            self.log.note(|| format!("{} moves", String::from_utf8_lossy(&key)));
            let longest = if self.rng.chance(80) { 10 } else { 400 };
            sleep(self.rng.ms(0..=longest)).await;
        }
        self.view.epoch += 1;
        self.view.ranges = ranges(hot, to);
        target.learn(self.view.clone());
        self.log.note(|| format!("the slot is at {there}"));
        self.seen.add(MOVES, 1);
        self.spread(&[]);
        for shard in [from, to] {
            self.shards[shard].is_level().await;
        }
    }

    /// The nodes learn how the cluster is now, each after a while, but for those that cannot.
    fn spread(&mut self, cut_off: &[usize]) {
        let nodes: Vec<_> = self.nodes().cloned().enumerate().collect();
        for (number, node) in nodes {
            let (way, view) = (self.rng.ms(0..=300), self.view.clone());
            if cut_off.contains(&number) {
                continue;
            }
            let _learns = tokio::spawn(async move {
                sleep(way).await;
                node.learn(view);
            });
        }
    }
}

/// All slots, of which one may be in another shard than those around it.
fn ranges(hot: u16, shard: usize) -> Vec<(std::ops::RangeInclusive<u16>, usize)> {
    let home = usize::from(hot / HALF);
    let halves = [(0..=HALF - 1, 0), (HALF..=2 * HALF - 1, 1)];
    if shard == home {
        return halves.into();
    }
    let (around, _) = &halves[home];
    let before = (*around.start()..=hot - 1, home);
    let behind = (hot + 1..=*around.end(), home);
    let mut all = vec![before, (hot..=hot, shard), behind];
    all.insert(if home == 0 { 3 } else { 0 }, halves[1 - home].clone());
    all
}

fn name(node: usize) -> String {
    format!("node{node}")
}
