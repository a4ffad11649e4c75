//! One simulation: clients on machines, the server, and the faults of a seed.

use std::ops::AddAssign;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::testing::{Seeded, Vitals, settled};
use lock_core::{LockClient, LockOptions};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dice::Dice;
use crate::fake::{Fake, Traits};
use crate::history::History;
use crate::log::{Log, Reader};
use crate::net::{Latency, Machine, Net, Way};
use crate::task::Task;

/// What all tasks of a simulation share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) log: Log,
    pub(crate) history: History,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    counts: Counts,
    violations: Vec<String>,
}

/// The circumstances.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    clients: u64,
    traits: Traits,
    latency: Latency,
    request_timeout: Duration,
    faults: u64,
    may_forget: bool,
}

macro_rules! counts {
    ($($name:ident: $what:literal,)+) => {
        /// What happened, in numbers.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: usize,)+ }

        impl Counts {
            pub(crate) const NAMES: &[&str] = &[$($what,)+];

            pub(crate) fn all(&self) -> Vec<(&'static str, usize)> {
                vec![$(($what, self.$name),)+]
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counts! {
    turns: "turns",
    contended: "contended grants",
    handed_on: "hand-offs in a process",
    queued: "places in a queue",
    busy: "busy answers",
    unavailable: "unavailable answers",
    ambiguous: "ambiguous outcomes",
    cancelled: "cancellations",
    extended: "extensions",
    lost: "lost leases",
    excused: "overlaps after the server forgot",
    voids: "void claims",
    unheard: "lost messages",
    killed: "killed clients",
    forgotten: "servers that forgot",
    faults: "faults",
}

/// What came of a simulation.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) violations: Vec<String>,
    pub(crate) log: String,
}

/// Faults begin within this time, and each is over after the other at most.
const FAULTS_BEGIN: u64 = 3_000;
const LONGEST_FAULT: u64 = 2_500;
/// When the last fault is over, all turns end within this time.
const ALL_SERVED: Duration = Duration::from_secs(60);
/// And what was given up is released this soon.
const SETTLED: Duration = Duration::from_secs(5);
/// The queue of one who is gone is kept this long by the server.
const QUEUE_LIFE: Duration = Duration::from_secs(125);

/// Runs the simulation of `seed`.
pub(crate) fn run(seed: u64, reader: Reader) -> Outcome {
    let _seeded = Seeded::with(seed);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulate(Dice::new(seed), reader))
}

impl Plan {
    fn roll(dice: &mut Dice) -> Self {
        let usual = dice.within(0..=5);
        let longest = dice.one_of(&[5, 20, 200]);
        Self {
            ttl: Duration::from_millis(dice.one_of(&[300, 1_000, 3_000])),
            clients: dice.within(2..=4),
            traits: Traits {
                resp3: dice.chance(80),
                // As far apart as the promises allow.
                clock_rate: dice.within(990_000..=1_010_000),
            },
            latency: Latency { usual, longest: longest.max(usual), slow: dice.within(0..=20) },
            request_timeout: Duration::from_millis(dice.one_of(&[100, 500])),
            faults: dice.within(0..=6),
            may_forget: dice.chance(25),
        }
    }
}

impl World {
    pub(crate) fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = Counts::default();
        count(&mut counts);
        self.told.lock().unwrap().counts += counts;
    }

    pub(crate) fn violation(&self, what: String) {
        self.log.note(|| format!("VIOLATION {what}"));
        self.told.lock().unwrap().violations.push(what);
    }
}

/// A client and its tasks, until all have had their turns and all is released.
async fn live(world: World, machine: Machine, number: usize, mut dice: Dice) {
    let store = RedisStore::builder("redis://simulated/")
        .with_connector(machine)
        .with_request_timeout(world.plan.request_timeout)
        .connect_lazy()
        .unwrap();
    let options = LockOptions::new().with_ttl(world.plan.ttl);
    let client = LockClient::builder(store).with_defaults(options).build().unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..dice.within(1..=4) as usize {
        let (world, client, dice) = (world.clone(), client.clone(), dice.split());
        let owner = number * 10 + task;
        tasks.spawn(Task { world, client, owner, dice }.run());
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            world.violation(format!("client {number}: a task ended by {error}"));
        }
    }
    if timeout(SETTLED + Duration::from_millis(LONGEST_FAULT), settled(&client)).await.is_err() {
        world.violation(format!("client {number} does not settle: {:?}", Vitals::of(&client)));
    } else if !Vitals::of(&client).is_idle() {
        world.violation(format!("client {number} is not idle: {:?}", Vitals::of(&client)));
    }
    world.log.note(|| format!("client {number} is done"));
}

struct Life {
    machine: Machine,
    task: JoinHandle<()>,
}

struct Stage {
    world: World,
    fake: Fake,
    net: Net,
    lives: Vec<Life>,
    dice: Dice,
}

async fn simulate(mut dice: Dice, reader: Reader) -> Outcome {
    let plan = Plan::roll(&mut dice);
    let log = Log::new(reader);
    log.note(|| format!("{plan:?}"));
    let fake = Fake::new(plan.traits, log.clone());
    let net = Net::new(fake.clone(), plan.latency, dice.split());
    let world =
        World { plan: Arc::new(plan), log, history: History::default(), told: Arc::default() };
    let mut stage =
        Stage { world: world.clone(), fake: fake.clone(), net, lives: Vec::new(), dice };
    for _ in 0..world.plan.clients {
        stage.start_client();
    }
    let killed = stage.wreak_havoc().await;
    stage.all_served().await;
    let mut remains = fake.remains();
    if killed {
        sleep(QUEUE_LIFE).await;
        remains = fake.remains();
    }
    if !remains.is_empty() {
        world.violation(format!("left on the server: {remains:?}"));
    }
    let excused = world.history.check_exclusion(|what| world.violation(what));
    world.history.check_fences(|what| world.violation(what));
    let served = fake.counts();
    world.count(|counts| {
        counts.turns = world.history.turns().len();
        counts.excused = excused;
        counts.queued = served.queued;
        counts.voids = served.voids;
        counts.unheard = served.unheard;
    });
    let Told { counts, violations } = std::mem::take(&mut *world.told.lock().unwrap());
    Outcome { counts, violations, log: world.log.text() }
}

impl Stage {
    fn start_client(&mut self) {
        let machine = self.net.machine();
        let life = live(self.world.clone(), machine.clone(), self.lives.len(), self.dice.split());
        self.lives.push(Life { machine, task: tokio::spawn(life) });
    }

    /// Injects the faults, and waits until all are over. Whether clients were killed.
    async fn wreak_havoc(&mut self) -> bool {
        let start = Instant::now();
        let mut times: Vec<_> =
            (0..self.world.plan.faults).map(|_| self.dice.ms(0..=FAULTS_BEGIN)).collect();
        times.sort();
        let mut killed = false;
        let mut over = start;
        for time in times {
            sleep_until(start + time).await;
            let span = self.dice.ms(10..=LONGEST_FAULT);
            over = over.max(Instant::now() + span);
            killed |= self.inject(span);
            self.world.count(|counts| counts.faults += 1);
        }
        sleep_until(over).await;
        self.world.log.note(|| "all faults are over".to_owned());
        killed
    }

    fn inject(&mut self, span: Duration) -> bool {
        let Self { world, fake, net, .. } = self;
        let chosen = self.dice.within(0..=self.lives.len() as u64 - 1) as usize;
        let machine = self.lives[chosen].machine.clone();
        let way = self.dice.one_of(&[Way::Up, Way::Down]);
        let note = |what: &str| {
            world.log.note(|| format!("FAULT {what}: client {chosen}, {way:?}, {span:?}"))
        };
        match self.dice.within(0..=11) {
            0 | 1 => {
                note("packets in one direction are held up");
                machine.hold(way);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(way);
                });
            }
            2 => {
                note("the network is down");
                machine.hold(Way::Up);
                machine.hold(Way::Down);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(Way::Up);
                    machine.release(Way::Down);
                });
            }
            9 | 10 => {
                note("packets on open streams are held up");
                machine.hold_open_streams(way);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(way);
                });
            }
            3 => {
                note("streams break, with what was asked for");
                machine.reset(false);
            }
            4 => {
                note("streams break behind what was asked for");
                machine.reset(true);
            }
            5 => {
                note("streams fall silent");
                machine.silence(way);
            }
            6 => {
                note("the client is killed");
                if machine.is_dead() {
                    return false;
                }
                machine.kill(self.dice.chance(50));
                self.lives[chosen].task.abort();
                world.count(|counts| counts.killed += 1);
                self.start_client();
                return true;
            }
            7 => {
                note("the server stalls");
                fake.stall(span);
            }
            8 => {
                note("messages are lost");
                fake.lose_messages(span);
            }
            _ if world.plan.may_forget => {
                note("the server is gone, and forgets");
                net.take_server_down();
                let at = world.log.note(|| "forgotten".to_owned());
                world.history.forgotten(at, fake.clock_us());
                fake.forget_all();
                world.count(|counts| counts.forgotten += 1);
                let net = net.clone();
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    net.bring_server_up();
                });
            }
            _ => {
                note("scripts are forgotten");
                fake.forget_scripts();
            }
        }
        false
    }

    async fn all_served(&mut self) {
        let end = Instant::now() + ALL_SERVED;
        for (number, Life { machine, task }) in self.lives.iter_mut().enumerate() {
            if machine.is_dead() {
                continue;
            }
            match tokio::time::timeout_at(end, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.world.violation(format!("client {number}: {error}")),
                Err(_) => self.world.violation(format!("client {number} is not served")),
            }
        }
    }
}
