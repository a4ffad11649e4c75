//! A master and a replica under three sentinels: failovers at any moment that lose the last writes,
//! masters that live on beside their successors, and messages that are late or lost.
//!
//! Both servers run by one clock, but for what clocks are apart that are kept in step. A client
//! takes a failover for a step of the server's clock.

use std::ops::RangeInclusive;
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::now;
use lock_testkit::{Experiment, Rng};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::fake::{Fake, Feed, MASTER_NAME, Named, Role, Traits};
use crate::log::Log;
use crate::net::{Latency, Machine, Net};
use crate::topology::{
    REQUEST, Seen, check_overlaps, experiment, log_of, release_all, simulated, strike,
};
use crate::turns::{CALM, SETTLED, Turns, Worker};

/// Each takes about half a second without optimization: its clients wait for each other, and ask
/// the sentinels again and again.
const SEEDS: u64 = 30;
const SENTINELS: usize = 3;
const CLIENTS: usize = 3;
const TASKS: usize = 2;
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
/// How long a change is under way to the replica at most, in milliseconds.
const LONGEST_LAG: u64 = 60;
/// How long a copy of all keys takes at most, in milliseconds.
const LONGEST_COPY: u64 = 500;

const EVENTS: &[&str] =
    &[TURNS, FAILOVERS, LIVED_ON, CHANGES_LOST, OVERLAPS, FAULTS, LOST, REFUSED, STALE, LEFT];
const TURNS: &str = "turns";
const FAILOVERS: &str = "failovers";
const LIVED_ON: &str = "masters that lived on";
const CHANGES_LOST: &str = "changes that a failover lost";
const OVERLAPS: &str = "overlaps after a failover without acknowledgement";
const FAULTS: &str = "faults of network and servers";
const LOST: &str = "leases lost";
const REFUSED: &str = "waits that ended without a lock";
const STALE: &str = "stale writes, refused";
const LEFT: &str = "connections to a replaced master that were left";

/// What ends the rule of a master.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    /// Its process is killed, with its data.
    Killed,
    /// It is cut off from all.
    Unreachable,
    /// It is cut off from its replica and the sentinels, and lives on.
    CutOff,
    /// An operator orders it; it lives on until it is demoted.
    Ordered,
}

/// The servers, and who of them is the master.
struct Servers {
    /// In the network they are 0 and 1.
    servers: [Fake; 2],
    /// In the network they follow the servers.
    sentinels: Vec<Fake>,
    net: Net,
    log: Log,
    rng: Rng,
    master: usize,
    epoch: u64,
    /// From the master to the replica.
    feed: Feed,
    ttl: Duration,
    /// When leases may overlap if no replica has to confirm them.
    windows: Vec<RangeInclusive<u128>>,
    seen: Seen,
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
    let net = servers.net.clone();
    let (turns, end) = (Turns::default(), Instant::now() + STORM);
    let (mut clients, mut machines, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CLIENTS {
        let machine = net.machine();
        let store =
            RedisStore::builder(URL).with_connector(machine.clone()).with_request_timeout(REQUEST);
        let store = if needs_acks { store.with_replica_acks(1) } else { store };
        let defaults = LockOptions::new().with_ttl(ttl);
        let client = LockClient::builder(store.connect_lazy().unwrap());
        let client = client.with_defaults(defaults).build().unwrap();
        for task in 0..TASKS {
            let (owner, rng) = (number * TASKS + task, rng.split());
            let (client, turns) = (client.clone(), turns.clone());
            let worker = Worker { client, owner, keys: KEYS, rng, turns };
            tasks.push(tokio::spawn(worker.work(end)));
        }
        clients.push(client);
        machines.push(machine);
    }
    let both = servers.servers.clone();
    let weather = storm(&net, &both, &machines, &log, rng.split(), end);
    let (faults, ()) = tokio::join!(weather, servers.fail_over_until(end));
    release_all(&machines);
    log.note(|| "all faults are over".to_owned());
    for task in tasks {
        timeout(CALM, task).await.expect("a task ends").unwrap();
    }
    turns.all_are_served(&clients, KEYS).await;
    let left = servers.are_left().await;
    turns.all_are_served(&clients, KEYS).await;
    sleep(SETTLED).await;
    for server in &servers.servers {
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    }
    let overlaps = turns.overlaps();
    check_overlaps(&overlaps, &servers.windows, needs_acks);
    turns.check();
    let mut seen = std::mem::take(&mut servers.seen);
    for (event, count) in [
        (TURNS, turns.count()),
        (OVERLAPS, overlaps.len()),
        (FAULTS, faults),
        (LOST, turns.lost()),
        (REFUSED, turns.refused()),
        (STALE, turns.stale()),
        (LEFT, left),
    ] {
        seen.add(event, count);
    }
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
        let feed = servers[0].feed(Duration::ZERO, LONGEST_LAG, rng.split());
        servers[1].become_a(Role::Replica(feed.clone()));
        let this = Self {
            servers,
            sentinels,
            net,
            log: log.clone(),
            rng: rng.split(),
            master: 0,
            epoch: 0,
            feed,
            ttl,
            windows: Vec::new(),
            seen: Seen::default(),
        };
        (0..SENTINELS).for_each(|number| this.name_master(number));
        this
    }

    /// From now on this sentinel names the master of now.
    fn name_master(&self, sentinel: usize) {
        let named = Named { host: name(self.master), epoch: self.epoch, is_moving: false };
        self.sentinels[sentinel].become_a(Role::Sentinel(named));
    }

    /// Failovers, until `end` and to the end of the last one.
    async fn fail_over_until(&mut self, end: Instant) {
        loop {
            sleep(self.rng.ms(300..=4_000)).await;
            if Instant::now() >= end {
                return;
            }
            if self.rng.chance(60) {
                self.feed.hold_until(Instant::now() + self.rng.ms(10..=900));
                sleep(self.rng.ms(1..=900)).await;
            }
            self.fail_over().await;
        }
    }

    async fn fail_over(&mut self) {
        let ends = [End::Killed, End::Unreachable, End::CutOff, End::Ordered];
        let (end, old) = (self.rng.one_of(&ends), self.master);
        self.log.note(|| format!("FAULT the rule of {old} ends: {end:?}"));
        if end != End::Ordered {
            self.seen.add(CHANGES_LOST, self.feed.cut());
            match end {
                End::Killed => self.net.take_server_down(old),
                End::Unreachable => self.net.cut_server_off(old),
                End::CutOff | End::Ordered => {}
            }
            // Until the sentinels agree.
            sleep(self.rng.ms(100..=1_500)).await;
        }
        self.promote().await;
        let began = now();
        let lives_on = matches!(end, End::CutOff | End::Ordered);
        self.seen.add(LIVED_ON, usize::from(lives_on));
        // The one that leads tells the others.
        let leads = self.rng.below(SENTINELS as u64) as usize;
        let mut told_at = [self.rng.ms(0..=1_000); SENTINELS];
        for (sentinel, at) in told_at.iter_mut().enumerate() {
            if sentinel != leads {
                *at += self.rng.ms(0..=1_500);
            }
        }
        let ends_at = Instant::now() + self.rng.ms(20..=7_000);
        let mut steps: Vec<_> = (0..SENTINELS).map(|it| (told_at[it], it)).collect();
        steps.sort();
        let start = Instant::now();
        for (at, sentinel) in steps {
            sleep_until(start + at).await;
            self.name_master(sentinel);
            if self.rng.chance(40) {
                let (old, new) = (name(old), name(self.master));
                let event = format!("{MASTER_NAME} {old} 6379 {new} 6379");
                self.sentinels[sentinel].tell("+switch-master", &event);
            }
        }
        sleep_until(ends_at).await;
        if end == End::Killed {
            self.servers[old].forget_all();
        }
        let ended = if lives_on { now() } else { began };
        self.windows.push(began..=ended + self.ttl.as_nanos());
        self.demote(old).await;
    }

    /// The replica becomes the master.
    async fn promote(&mut self) {
        let (old, new) = (self.master, 1 - self.master);
        self.epoch += 1;
        let leads = self.rng.below(SENTINELS as u64) as usize;
        let moving = Named { host: name(old), epoch: self.epoch, is_moving: true };
        self.sentinels[leads].become_a(Role::Sentinel(moving));
        sleep(self.rng.ms(1..=300)).await;
        self.seen.add(CHANGES_LOST, self.feed.cut());
        self.servers[new].become_a(Role::Master);
        self.master = new;
        self.seen.add(FAILOVERS, 1);
        self.log.note(|| format!("{new} is the master"));
    }

    /// The former master becomes a replica, and has a copy of all when this ends.
    async fn demote(&mut self, old: usize) {
        self.log.note(|| format!("{old} is a replica"));
        let (copy, rng) = (self.rng.ms(5..=LONGEST_COPY), self.rng.split());
        self.feed = self.servers[self.master].feed(copy, LONGEST_LAG, rng);
        self.servers[old].become_a(Role::Replica(self.feed.clone()));
        // A sentinel ends the connections of its clients; an order to the server does not.
        if self.rng.chance(70) {
            self.net.break_streams(old);
        }
        self.net.bring_server_up(old);
        while !self.feed.is_level() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asserts that all clients leave a master that was replaced, in time, although it lives on and
    /// no event tells of it. Returns how many connections they had there.
    async fn are_left(&mut self) -> usize {
        let old = self.master;
        self.promote().await;
        (0..SENTINELS).for_each(|sentinel| self.name_master(sentinel));
        // One that only listens stays until the next waiter, and what it hears does not count.
        let streams = || {
            let streams = self.net.streams_to(old).into_iter();
            streams.filter(|stream| !self.servers[old].only_listens(*stream)).count()
        };
        let before = streams();
        sleep(LEAVES).await;
        assert_eq!(streams(), 0, "of {before}");
        self.demote(old).await;
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
