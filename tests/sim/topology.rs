//! What the simulations of several servers have in common: how they are run by seed, what they
//! count, and the faults that strike any of them.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::testing::Seeded;
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::Turn;
use lock_testkit::{Experiment, Rng, number};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::fake::Fake;
use crate::log::{Log, Reader};
use crate::net::{Instead, Machine, Net, Way};
use crate::stress;
use crate::turns::{CALM, SETTLED, Turns, Worker};

/// A seed costs as much as so many of the simulation of one server.
const COST: u64 = 100;
/// How long a client waits for an answer.
pub(crate) const REQUEST: Duration = Duration::from_millis(200);
/// How long a fault lasts at most, in milliseconds.
const LONGEST_FAULT: u64 = 900;
const CLIENTS: usize = 3;
const TASKS: usize = 2;

pub(crate) const TURNS: &str = "turns";
pub(crate) const FAILOVERS: &str = "failovers";
pub(crate) const LIVED_ON: &str = "masters that lived on";
pub(crate) const CHANGES_LOST: &str = "changes that a failover lost";
pub(crate) const OVERLAPS: &str = "overlaps after a failover without acknowledgement";
pub(crate) const FAULTS: &str = "faults of network and servers";
pub(crate) const LOST: &str = "leases lost";
pub(crate) const REFUSED: &str = "waits that ended without a lock";
pub(crate) const STALE: &str = "stale writes, refused";

/// What happened, in numbers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Seen(BTreeMap<&'static str, usize>);

impl Seen {
    pub(crate) fn add(&mut self, event: &'static str, count: usize) {
        *self.0.entry(event).or_default() += count;
    }

    pub(crate) fn count(&self, event: &'static str) -> usize {
        self.0.get(event).copied().unwrap_or(0)
    }

    /// The same with all of `event` counted as `other`.
    pub(crate) fn with(mut self, event: &'static str, other: &'static str) -> Self {
        let count = self.0.remove(event).unwrap_or(0);
        self.add(other, count);
        self
    }

    /// The same without other events than these.
    pub(crate) fn only(mut self, events: &[&str]) -> Self {
        self.0.retain(|event, _| events.contains(event));
        self
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(event, count)| self.add(event, *count));
    }
}

/// Runs an experiment for as many seeds as the environment says, or so many at least. `run`
/// asserts what is promised.
pub(crate) fn experiment(mut experiment: Experiment, usual: u64, run: impl Fn(u64) -> Seen + Sync) {
    let seeds = seeds(usual);
    let count = seeds.end - seeds.start;
    experiment.ran(usize::try_from(count).unwrap());
    let total = Mutex::new(Seen::default());
    stress::each(seeds, |seed| {
        let seen = run(seed);
        total.lock().unwrap().add_all(&seen);
    });
    for (event, count) in total.into_inner().unwrap().0 {
        println!("{count} {event}");
        experiment.saw(event, count);
    }
    // Fewer do not see every event.
    if count >= usual {
        experiment.finish();
    }
}

fn seeds(usual: u64) -> Range<u64> {
    if let Some(seed) = number::<u64>("LOCK_SIM_SEED") {
        return seed..seed + 1;
    }
    let of_one_server = || usual.max(number::<u64>("LOCK_SIM_SEEDS").unwrap_or(0) / COST);
    0..number("LOCK_SIM_TOPOLOGY_SEEDS").unwrap_or_else(of_one_server)
}

/// Runs `what` under simulated time, by the choices of `seed`.
pub(crate) fn simulated<T>(seed: u64, what: impl Future<Output = T>) -> T {
    let _seeded = Seeded::with(seed);
    let runtime = { tokio::runtime::Builder::new_current_thread() }
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(what)
}

/// The log of `seed`, which is shown if it is the only one.
pub(crate) fn log_of(seed: u64) -> Log {
    let is_watched = number::<u64>("LOCK_SIM_SEED") == Some(seed);
    Log::new(if is_watched { Reader::Human } else { Reader::None })
}

/// What the clients of a simulation have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) url: &'static str,
    pub(crate) keys: &'static [&'static str],
    pub(crate) ttl: Duration,
    /// Whether replicas have to confirm grants.
    pub(crate) needs_acks: bool,
    /// When their tasks begin no more turns.
    pub(crate) end: Instant,
}

/// The clients of a simulation, at work.
pub(crate) struct Crowd {
    setup: Setup,
    /// Each client has one.
    pub(crate) machines: Vec<Machine>,
    clients: Vec<LockClient>,
    tasks: Vec<JoinHandle<()>>,
    turns: Turns,
}

impl Crowd {
    pub(crate) fn start(setup: Setup, net: &Net, rng: &mut Rng) -> Self {
        let (machines, clients, tasks) = (Vec::new(), Vec::new(), Vec::new());
        let mut this = Self { setup, machines, clients, tasks, turns: Turns::default() };
        for number in 0..CLIENTS {
            let machine = net.machine();
            let store = RedisStore::builder(setup.url)
                .with_connector(machine.clone())
                .with_request_timeout(REQUEST);
            let store = if setup.needs_acks { store.with_replica_acks(1) } else { store };
            let defaults = LockOptions::new().with_ttl(setup.ttl);
            let client = LockClient::builder(store.connect_lazy().unwrap());
            let client = client.with_defaults(defaults).build().unwrap();
            for task in 0..TASKS {
                let (owner, rng) = (number * TASKS + task, rng.split());
                let (client, turns) = (client.clone(), this.turns.clone());
                let worker = Worker { client, owner, keys: setup.keys, rng, turns };
                this.tasks.push(tokio::spawn(worker.work(setup.end)));
            }
            this.clients.push(client);
            this.machines.push(machine);
        }
        this
    }

    /// All faults are over: what is held up arrives, and all tasks end.
    pub(crate) async fn ends(&mut self) {
        release_all(&self.machines);
        for task in self.tasks.drain(..) {
            timeout(CALM, task).await.expect("a task ends").unwrap();
        }
        self.is_served().await;
    }

    /// Asserts that each client gets each lock now, and is idle then.
    pub(crate) async fn is_served(&self) {
        self.turns.all_are_served(&self.clients, self.setup.keys).await;
    }

    /// Asserts what has to be true of all turns, and that nothing is left on `servers`. Leases may
    /// overlap within one of `windows` only. Returns what happened.
    pub(crate) async fn check<'a>(
        &self,
        servers: impl IntoIterator<Item = &'a Fake>,
        windows: &[RangeInclusive<u128>],
    ) -> Seen {
        sleep(SETTLED).await;
        for server in servers {
            assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
        }
        let (turns, overlaps) = (&self.turns, self.turns.overlaps());
        check_overlaps(&overlaps, windows);
        turns.check();
        let mut seen = Seen::default();
        for (event, count) in [
            (TURNS, turns.count()),
            (OVERLAPS, overlaps.len()),
            (LOST, turns.lost()),
            (REFUSED, turns.refused()),
            (STALE, turns.stale()),
        ] {
            seen.add(event, count);
        }
        seen
    }
}

fn check_overlaps(overlaps: &[(Turn, Turn)], windows: &[RangeInclusive<u128>]) {
    for (one, two) in overlaps {
        let (from, to) = (two.enter, one.exit.min(two.exit));
        let is_inside = |it: &RangeInclusive<u128>| it.contains(&from) && it.contains(&to);
        assert!(windows.iter().any(is_inside), "nothing excuses {one:?} and {two:?}");
    }
}

/// Lets one fault strike a client's network or a server.
pub(crate) fn strike(rng: &mut Rng, machines: &[Machine], servers: &[Fake], log: &Log) {
    let client = rng.below(machines.len() as u64) as usize;
    let number = rng.below(servers.len() as u64) as usize;
    let (machine, server) = (machines[client].clone(), &servers[number]);
    let (way, span) = (rng.one_of(&[Way::Up, Way::Down]), rng.ms(10..=LONGEST_FAULT));
    let fault = rng.within(0..=7);
    log.note(|| format!("FAULT {fault}: client {client}, {way:?}, server {number}, {span:?}"));
    match fault {
        0 | 1 => {
            machine.hold(way);
            let _ended = tokio::spawn(async move {
                sleep(span).await;
                machine.release(way);
            });
        }
        2 => machine.reset(rng.chance(50)),
        3 => machine.silence(way),
        4 => machine.lose_next_answer(rng.one_of(&[Instead::Break, Instead::FallSilent])),
        5 => server.stall(span),
        6 => server.lose_messages(span),
        _ => server.forget_scripts(),
    }
}

/// What is held up arrives.
pub(crate) fn release_all(machines: &[Machine]) {
    for machine in machines {
        machine.release(Way::Up);
        machine.release(Way::Down);
    }
}
