//! A master and a replica under three sentinels: failovers at any moment that lose the last writes,
//! masters that live on beside their successors, and messages that are late or lost.
//!
//! Both servers run by one clock, but for what clocks are apart that are kept in step. A client
//! takes a failover for a step of the server's clock.

use std::time::Duration;

use lock_testkit::history::now;
use lock_testkit::{Experiment, Rng};
use tokio::time::{Instant, sleep, sleep_until};

use crate::fake::{Fake, MASTER_NAME, Named, Role, Traits};
use crate::log::Log;
use crate::net::{Latency, Machine, Net};
use crate::pair::{End, Pair};
use crate::topology::{
    CHANGES_LOST, Crowd, FAILOVERS, FAULTS, LIVED_ON, LOST, OVERLAPS, REFUSED, REQUEST, STALE,
    Seen, Setup, TURNS, experiment, log_of, simulated, strike,
};

/// Each takes about half a second without optimization: its clients wait for each other, and ask
/// the sentinels again and again.
const SEEDS: u64 = 30;
const SENTINELS: usize = 3;
const KEYS: &[&str] = &["k"];
const URL: &str = "redis+sentinel://sentinel0,sentinel1,sentinel2/shop";
/// Faults begin within this time.
const STORM: Duration = Duration::from_secs(15);
/// A client leaves a master that was replaced within this time of the sentinels, although no event
/// arrives.
const LEAVES: Duration = Duration::from_secs(6);
/// How far the servers' clocks are apart at most, in microseconds: with the rates below, less than
/// what a client leaves of the shortest ttl.
const MOST_APART: u64 = 4_000;
const EVENTS: &[&str] =
    &[TURNS, FAILOVERS, LIVED_ON, CHANGES_LOST, OVERLAPS, FAULTS, LOST, REFUSED, STALE, LEFT];
const LEFT: &str = "connections to a replaced master that were left";

/// What ends the rule of a master here.
const ENDS: &[End] = &[End::Killed, End::Unreachable, End::CutOff, End::Ordered];

/// The servers, and those that watch them.
struct Servers {
    /// In the network they are 0 and 1.
    pair: Pair,
    /// In the network they follow the servers.
    sentinels: Vec<Fake>,
    net: Net,
    epoch: u64,
}

/// Exclusion if replicas confirm; overlaps only about a failover if not. Order of tokens, bounded
/// waits, progress, the state that remains, and masters that are left.
#[test]
fn promises_under_sentinels_hold_under_random_failovers() {
    let about = Experiment::new(
        73,
        "under sentinels: no two turns at once if replicas confirm, numbers grow, waits are bounded, nothing left behind",
        "failovers that lose changes, masters that live on, messages late or lost, sentinels down, by seed",
        EVENTS,
    );
    experiment(about, SEEDS, |seed| simulated(seed, simulate(seed)));
}

/// The same seed is the same simulation.
#[test]
fn seed_under_sentinels_repeats_itself() {
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
    let mut servers = Servers::new(&log, &mut rng, ttl, needs_acks);
    let (net, end) = (servers.net.clone(), Instant::now() + STORM);
    let setup = Setup { url: URL, keys: KEYS, ttl, needs_acks, end };
    let mut crowd = Crowd::start(setup, &net, &mut rng);
    let both = servers.pair.servers.clone();
    let weather = storm(&net, &both, &crowd.machines, &log, rng.split(), end);
    let (faults, ()) = tokio::join!(weather, servers.fail_over_until(end));
    log.note(|| "all faults are over".to_owned());
    crowd.ends().await;
    let left = servers.are_left().await;
    crowd.is_served().await;
    let windows = if needs_acks { &[] } else { servers.pair.windows.as_slice() };
    let mut seen = crowd.check(&both, windows).await;
    seen.add_all(&servers.pair.seen);
    seen.add(FAULTS, faults);
    seen.add(LEFT, left);
    seen
}

impl Servers {
    fn new(log: &Log, rng: &mut Rng, ttl: Duration, needs_acks: bool) -> Self {
        let clock_rate = rng.within(994_000..=1_006_000);
        // Without acknowledgement a failover may lose the counter, so the clocks must not go back.
        // They are not quite the same, or two masters would give out the same numbers.
        let apart = if needs_acks { rng.within(1..=MOST_APART) } else { 500 };
        let server = |number: u64, resp3: bool| {
            let fake = Fake::new(Traits { resp3, clock_rate }, log.clone());
            fake.set_clock(fake.clock_us() + number * apart);
            fake.tell_process(number, Duration::from_secs(3_600));
            fake
        };
        let servers = [0, 1].map(|number| server(number, rng.chance(80)));
        // At least a millisecond: within one, two masters do not tell before from after.
        let latency = Latency { usual: rng.within(1..=4), longest: 20, slow: rng.within(0..=10) };
        let net = Net::new(servers[0].clone(), latency, REQUEST, rng.split());
        net.add("server1", servers[1].clone());
        let sentinels: Vec<_> = (0..SENTINELS)
            .map(|number| {
                let sentinel = Fake::new(Traits { resp3: false, clock_rate }, log.clone());
                net.add(format!("sentinel{number}"), sentinel.clone());
                sentinel
            })
            .collect();
        servers[0].publishes_to(&servers[1], rng.split());
        servers[1].publishes_to(&servers[0], rng.split());
        let pair = Pair::new(servers, 0, &net, log, rng, ttl);
        let this = Self { pair, sentinels, net, epoch: 0 };
        (0..SENTINELS).for_each(|number| this.name_master(number));
        this
    }

    /// From now on this sentinel names the master of now.
    fn name_master(&self, sentinel: usize) {
        let named = Named { host: name(self.pair.master), epoch: self.epoch, is_moving: false };
        self.sentinels[sentinel].become_a(Role::Sentinel(named));
    }

    /// Failovers, until `end` and to the end of the last one.
    async fn fail_over_until(&mut self, end: Instant) {
        loop {
            sleep(self.pair.rng.ms(300..=4_000)).await;
            if Instant::now() >= end {
                return;
            }
            self.pair.may_lag().await;
            self.fail_over().await;
        }
    }

    async fn fail_over(&mut self) {
        let (end, old) = (self.pair.rng.one_of(ENDS), self.pair.master);
        self.pair.end(end).await;
        self.promote().await;
        let began = now();
        // The one that leads tells the others.
        let rng = &mut self.pair.rng;
        let leads = rng.below(SENTINELS as u64) as usize;
        let mut told_at = [rng.ms(0..=1_000); SENTINELS];
        for (sentinel, at) in told_at.iter_mut().enumerate() {
            if sentinel != leads {
                *at += rng.ms(0..=1_500);
            }
        }
        let ends_at = Instant::now() + rng.ms(20..=7_000);
        let mut steps: Vec<_> = (0..SENTINELS).map(|it| (told_at[it], it)).collect();
        steps.sort();
        let start = Instant::now();
        for (at, sentinel) in steps {
            sleep_until(start + at).await;
            self.name_master(sentinel);
            if self.pair.rng.chance(40) {
                let (old, new) = (name(old), name(self.pair.master));
                let event = format!("{MASTER_NAME} {old} 6379 {new} 6379");
                self.sentinels[sentinel].tell("+switch-master", &event);
            }
        }
        sleep_until(ends_at).await;
        self.pair.retire(end, began).await;
    }

    /// The replica becomes the master.
    async fn promote(&mut self) {
        self.epoch += 1;
        let leads = self.pair.rng.below(SENTINELS as u64) as usize;
        let (host, epoch) = (name(self.pair.master), self.epoch);
        let moving = Named { host, epoch, is_moving: true };
        self.sentinels[leads].become_a(Role::Sentinel(moving));
        sleep(self.pair.rng.ms(1..=300)).await;
        self.pair.promote();
    }

    /// Asserts that all clients leave a master that was replaced, in time, although it lives on and
    /// no event tells of it. Returns how many connections they had there.
    async fn are_left(&mut self) -> usize {
        let old = self.pair.master;
        self.promote().await;
        (0..SENTINELS).for_each(|sentinel| self.name_master(sentinel));
        // One that only listens stays until the next waiter, and what it hears does not count.
        let streams = || {
            let streams = self.net.streams_to(old).into_iter();
            streams.filter(|stream| !self.pair.servers[old].only_listens(*stream)).count()
        };
        let before = streams();
        sleep(LEAVES).await;
        assert_eq!(streams(), 0, "of {before}");
        self.pair.demote().await;
        before
    }
}

fn name(server: usize) -> String {
    format!("server{server}")
}

/// Injects faults until `end`. Returns how many.
async fn storm(
    net: &Net,
    servers: &[Fake; 2],
    machines: &[Machine],
    log: &Log,
    mut rng: Rng,
    end: Instant,
) -> usize {
    let mut faults = 0;
    while Instant::now() < end {
        sleep(rng.ms(20..=600)).await;
        if rng.chance(90) {
            strike(&mut rng, machines, servers, log);
        } else {
            let (net, sentinel) = (net.clone(), 2 + rng.below(SENTINELS as u64) as usize);
            net.take_server_down(sentinel);
            let span = rng.ms(10..=3_000);
            let _ended = tokio::spawn(async move {
                sleep(span).await;
                net.bring_server_up(sentinel);
            });
        }
        faults += 1;
    }
    faults
}
