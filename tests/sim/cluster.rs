//! A cluster of two shards, each a master with a replica: a slot that moves from one shard to the
//! other and back, key by key, while clients contend for its locks; and failovers of both shards.

use std::ops::RangeInclusive;
use std::time::Duration;

use lock_testkit::history::now;
use lock_testkit::{Experiment, Rng};
use tokio::time::{Instant, sleep, sleep_until};

use crate::fake::{Counts, Fake, Refusals, Traits, View, slot};
use crate::log::Log;
use crate::net::{Latency, Net};
use crate::pair::{End, Pair};
use crate::topology::{
    CHANGES_LOST, Crowd, FAILOVERS, FAULTS, LIVED_ON, LOST, OVERLAPS, REFUSED, REQUEST, STALE,
    Seen, Setup, TURNS, experiment, log_of, simulated, strike,
};

/// How many seeds with failovers. Each takes about half a second without optimization.
const SEEDS: u64 = 30;
/// How many in which the slot does nothing but move.
const SEEDS_OF_MOVES: u64 = 8;
const SHARDS: usize = 2;
/// Two locks of one slot, so that their commands share calls.
const KEYS: &[&str] = &["a{hot}", "b{hot}"];
const URL: &str = "redis+cluster://node0,node1,node2,node3";
/// Slots move, masters fail and faults begin within this time.
const STORM: Duration = Duration::from_secs(15);
/// How many slots each shard has at first.
const HALF: u16 = 8_192;
/// What ends the rule of a master here.
const ENDS: &[End] = &[End::Killed, End::Unreachable, End::CutOff, End::Ordered, End::HandedOver];
/// A master that is cut off from the others serves no key after this time, in milliseconds.
const NODE_TIMEOUT: u64 = 2_500;
/// A master that was replaced is back as a replica within this time, in milliseconds.
const LONGEST_ABSENCE: u64 = 4_000;
/// How long it takes at most from one key of a slot that moves to the next, in milliseconds: leases
/// are renewed on the way.
const LONGEST_STEP: u64 = 3_000;
/// How long it takes at most until a node learns what has changed, in milliseconds.
const LONGEST_GOSSIP: u64 = 1_000;
/// How far the clocks of two nodes that follow each other are apart at most, in microseconds: with
/// the rates below, less than what a client leaves of the shortest ttl.
const MOST_APART: u64 = 1_000;

const EVENTS: &[&str] = &[
    TURNS,
    MOVES,
    FAILOVERS,
    LIVED_ON,
    CHANGES_LOST,
    OVERLAPS,
    MOVED_TO_LOSS,
    FAULTS,
    LOST,
    REFUSED,
    STALE,
    MOVED,
    ASK,
    TRY_AGAIN,
    DOWN,
    BY_REPLICA,
];
const EVENTS_OF_MOVES: &[&str] = &[TURNS, MOVES, MOVED, ASK, TRY_AGAIN];
const MOVES: &str = "moves of the slot";
const MOVED_TO_LOSS: &str = "overlaps of confirmed locks that a failover lost after their move";
const MOVED: &str = "commands sent on to the new node of the slot";
const ASK: &str = "commands sent on to the next node of the slot";
const TRY_AGAIN: &str = "commands refused while their keys were on two nodes";
const DOWN: &str = "commands refused by a master that was cut off";
const BY_REPLICA: &str = "messages to clients that listened to a replica";

/// What happens to a cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Events {
    /// The slot moves.
    Moves,
    /// Masters fail as well, and faults strike network and servers.
    All,
}

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
    /// Masters may fail before their replicas have what has moved to them.
    is_hasty: bool,
    moves: usize,
    /// About such failovers: when leases may overlap although replicas have confirmed them where
    /// they were before.
    unconfirmed: Vec<RangeInclusive<u128>>,
}

/// Exclusion, order of tokens, no lease lost, and nothing left behind, while a slot moves.
#[test]
fn moves_of_a_slot_cost_no_lease() {
    let about = Experiment::new(
        74,
        "on a cluster: a slot that moves costs no lease and no order, and leaves nothing behind",
        "a slot that moves to and fro, key by key, by seed",
        EVENTS_OF_MOVES,
    );
    experiment(about, SEEDS_OF_MOVES, |seed| {
        let seen = simulated(seed, simulate(seed, Events::Moves));
        assert_eq!((seen.count(LOST), seen.count(OVERLAPS)), (0, 0), "seed {seed}");
        seen.only(EVENTS_OF_MOVES)
    });
}

/// Exclusion if replicas confirm; overlaps only about a failover if not. Order of tokens, bounded
/// waits, progress, and the state that remains.
#[test]
fn promises_on_a_cluster_hold_under_random_failovers_and_moves() {
    let about = Experiment::new(
        74,
        "on a cluster: no two turns at once if replicas confirm, numbers grow, waits are bounded, nothing left behind",
        "slots that move, failovers that lose changes, masters that live on, messages late or lost, by seed",
        EVENTS,
    );
    experiment(about, SEEDS, |seed| simulated(seed, simulate(seed, Events::All)));
}

/// The same seed is the same simulation.
#[test]
fn seed_on_a_cluster_repeats_itself() {
    for seed in [1, 2] {
        let run = || simulated(seed, simulate(seed, Events::All));
        assert_eq!(run(), run(), "seed {seed}");
    }
}

async fn simulate(seed: u64, events: Events) -> Seen {
    let mut rng = Rng::new(seed);
    let log = log_of(seed);
    let needs_acks = rng.chance(50);
    let ttl = rng.ms(1_000..=3_000);
    log.note(|| format!("{events:?}, ttl {ttl:?}, with acknowledgement: {needs_acks}"));
    // Without acknowledgement, failovers lose more than that.
    let is_hasty = !needs_acks || rng.chance(50);
    let mut cluster = Cluster::new(&log, &mut rng, ttl, is_hasty);
    let (net, end) = (cluster.net.clone(), Instant::now() + STORM);
    let setup = Setup { url: URL, keys: KEYS, ttl, needs_acks, end };
    let mut crowd = Crowd::start(setup, &net, &mut rng);
    let nodes: Vec<_> = cluster.nodes().cloned().collect();
    let mut faults = 0;
    if events == Events::Moves {
        cluster.moves_until(end).await;
    } else {
        let mut rng = rng.split();
        let storm = async {
            while Instant::now() < end {
                sleep(rng.ms(20..=600)).await;
                strike(&mut rng, &crowd.machines, &nodes, &log);
                faults += 1;
            }
        };
        tokio::join!(storm, cluster.changes_until(end));
    }
    log.note(|| "all faults are over".to_owned());
    crowd.ends().await;
    let windows = if needs_acks { cluster.unconfirmed.clone() } else { cluster.windows() };
    let mut seen = crowd.check(&nodes, &windows).await;
    if needs_acks {
        seen = seen.with(OVERLAPS, MOVED_TO_LOSS);
    }
    cluster.shards.iter().for_each(|shard| seen.add_all(&shard.seen));
    for node in &nodes {
        let Counts { refusals, by_replica, .. } = node.counts();
        let Refusals { moved, ask, try_again, down } = refusals;
        for (event, count) in [
            (MOVED, moved),
            (ASK, ask),
            (TRY_AGAIN, try_again),
            (DOWN, down),
            (BY_REPLICA, by_replica),
        ] {
            seen.add(event, count);
        }
    }
    seen.add(MOVES, cluster.moves);
    seen.add(FAULTS, faults);
    seen
}

impl Cluster {
    fn new(log: &Log, rng: &mut Rng, ttl: Duration, is_hasty: bool) -> Self {
        let clock_rate = rng.within(996_000..=1_004_000);
        // If a failover may lose the counter, the clocks must not go back. They are not quite the
        // same, or two masters would give out the same numbers.
        let apart = if is_hasty { 200 } else { rng.within(1..=MOST_APART) };
        let nodes: Vec<_> = (0..2 * SHARDS as u64)
            .map(|number| {
                let resp3 = rng.chance(90);
                let fake = Fake::new(Traits { resp3, clock_rate }, log.clone());
                fake.set_clock(fake.clock_us() + number * apart);
                fake.tell_process(number, Duration::from_secs(3_600));
                fake
            })
            .collect();
        // At least a millisecond: within one, two masters do not tell before from after.
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
        Self { shards, view, hot, net, log, rng, is_hasty, moves: 0, unconfirmed: Vec::new() }
    }

    fn nodes(&self) -> impl Iterator<Item = &Fake> {
        self.shards.iter().flat_map(|shard| &shard.servers)
    }

    /// When leases may overlap if no replica has confirmed them.
    fn windows(&self) -> Vec<RangeInclusive<u128>> {
        self.shards.iter().flat_map(|shard| shard.windows.clone()).collect()
    }

    /// The slot moves, until `end` and to the end of the last move.
    async fn moves_until(&mut self, end: Instant) {
        loop {
            sleep(self.rng.ms(50..=1_500)).await;
            if Instant::now() >= end {
                return;
            }
            self.move_slot_for_good().await;
        }
    }

    /// The slot moves and masters fail, one after the other, until `end` and to the end of the
    /// last change.
    async fn changes_until(&mut self, end: Instant) {
        loop {
            sleep(self.rng.ms(50..=2_000)).await;
            if Instant::now() >= end {
                return;
            }
            let has_slot = self.view.shard(self.hot);
            if self.rng.chance(30) {
                self.move_slot_for_good().await;
            } else if self.is_hasty && self.rng.chance(30) {
                self.lose_what_moves().await;
            } else {
                // A failover of the other shard is seldom noticed.
                let shard = if self.rng.chance(80) { has_slot } else { 1 - has_slot };
                self.shards[shard].may_lag().await;
                let end = self.rng.one_of(ENDS);
                self.fail_over(shard, end).await;
            }
        }
    }

    /// The slot moves to a master that fails before its replica has the keys: no one asks replicas
    /// whether they have what moves. So counter, locks and queues are lost.
    async fn lose_what_moves(&mut self) {
        let to = 1 - self.view.shard(self.hot);
        let before = self.shards[to].windows.len();
        self.shards[to].stops();
        self.move_slot().await;
        // While a master has no replica, it grants nothing that has to be confirmed. The soonest
        // to have one is that of an order.
        let end = if self.rng.chance(70) { End::Ordered } else { End::Killed };
        self.fail_over(to, end).await;
        self.unconfirmed.extend_from_slice(&self.shards[to].windows[before..]);
    }

    async fn fail_over(&mut self, shard: usize, end: End) {
        let pair = &mut self.shards[shard];
        let (old, numbered) = (pair.ruler().clone(), 2 * shard + pair.master);
        if end == End::CutOff {
            let serves = self.rng.ms(0..=NODE_TIMEOUT);
            old.is_down_since(Some(Instant::now() + serves));
        }
        pair.end(end).await;
        pair.promote();
        let (new, began) = (pair.ruler().clone(), now());
        self.view.epoch += 1;
        self.view.shards[shard].swap(0, 1);
        new.learn(self.view.clone());
        let longest = match end {
            End::HandedOver => 0,
            End::Ordered => LONGEST_GOSSIP,
            End::Killed | End::Unreachable | End::CutOff => LONGEST_ABSENCE,
        };
        let ends_at = Instant::now() + self.rng.ms(0..=longest);
        self.spread(Some(numbered));
        sleep_until(ends_at).await;
        old.is_down_since(None);
        old.learn(self.view.clone());
        self.shards[shard].retire(end, began).await;
    }

    /// Moves the slot to the other shard. Both replicas have what moved when this ends.
    async fn move_slot_for_good(&mut self) {
        self.move_slot().await;
        self.shards[self.view.shard(self.hot)].is_level().await;
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
            let longest = match self.rng.below(100) {
                0..80 => 10,
                80..97 => 400,
                _ => LONGEST_STEP,
            };
            sleep(self.rng.ms(0..=longest)).await;
        }
        self.view.epoch += 1;
        self.view.ranges = ranges(hot, to);
        target.learn(self.view.clone());
        self.log.note(|| format!("the slot is at {there}"));
        self.moves += 1;
        self.spread(None);
        // The source learns of it as well. Until then it sends on what comes.
        sleep(self.rng.ms(0..=200)).await;
        source.learn(self.view.clone());
        // A key that comes back when its former master fails would be in the way of the next move.
        self.shards[from].is_level().await;
    }

    /// The nodes learn how the cluster is now, each after a while, except one that is cut off.
    fn spread(&mut self, cut_off: Option<usize>) {
        let nodes: Vec<_> = self.nodes().cloned().enumerate().collect();
        for (number, node) in nodes {
            let (way, view) = (self.rng.ms(0..=LONGEST_GOSSIP), self.view.clone());
            if cut_off == Some(number) {
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
fn ranges(hot: u16, shard: usize) -> Vec<(RangeInclusive<u16>, usize)> {
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
