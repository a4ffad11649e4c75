//! One simulation: clients on machines, the server, and the faults of a seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, Seeded, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::Rng;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::fake::Fake;
use crate::history::History;
use crate::log::{Log, Reader};
use crate::net::{Instead, Machine, Net};
use crate::plan::{Counts, Plan};
use crate::resource::Resource;
use crate::workload::Task;
use crate::world::{Told, World};

/// The outcome of a simulation.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// Of leases, without the excused ones.
    pub(crate) overlaps: usize,
    pub(crate) violations: Vec<String>,
    pub(crate) log: String,
}

/// Faults begin within this time, and each lasts for `LONGEST_FAULT` at most.
const FAULTS_BEGIN: u64 = 3_000;
/// Answers are lost from within this time on, when all clients are still at work.
const ANSWERS_LOST: u64 = 500;
const LONGEST_FAULT: u64 = 2_500;
/// When the last fault is over, all turns end within this time.
const ALL_SERVED: Duration = Duration::from_secs(70);
/// Then abandoned locks are released within this time.
const SETTLED: Duration = Duration::from_secs(5);
/// The loss of an answer may strike a release that comes long after: it is sent again, in vain if
/// the connection is silent, and then on another one.
const LOST_ANSWER: Duration = Duration::from_secs(3);
/// Drains begin within this time. They may exceed their limit by `SLACK`.
const DRAINS_BEGIN: u64 = 1_500;
const SLACK: Duration = Duration::from_millis(60);
/// The server keeps the queue of a dead waiter this long.
const QUEUE_LIFE: Duration = Duration::from_secs(125);

/// Runs the simulation of `seed`.
pub(crate) fn run(seed: u64, reader: Reader) -> Outcome {
    run_with(seed, reader, |_| {})
}

/// As [`run`], with the plan changed by `change`.
pub(crate) fn run_with(seed: u64, reader: Reader, change: impl FnOnce(&mut Plan)) -> Outcome {
    let _seeded = Seeded::with(seed);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    let mut rng = Rng::new(seed);
    let mut plan = Plan::roll(&mut rng);
    change(&mut plan);
    runtime.block_on(simulate(plan, rng, reader))
}

/// Runs the clients of a machine one after another, each until all its tasks have had their turns
/// and all locks are released.
async fn live(world: World, machine: Machine, number: usize, mut rng: Rng) {
    if world.plan.drains && rng.chance(50) {
        serve(&world, machine.clone(), number, rng.split(), Some(rng.ms(0..=DRAINS_BEGIN))).await;
        world.log.note(|| format!("client {number} starts again"));
    }
    serve(&world, machine, number, rng, None).await;
    world.log.note(|| format!("client {number} is done"));
}

/// Runs a client and its tasks until all turns are done or the client is drained.
async fn serve(
    world: &World,
    machine: Machine,
    number: usize,
    mut rng: Rng,
    drained_after: Option<Duration>,
) {
    let store = RedisStore::builder("redis://simulated/")
        .with_connector(machine)
        .with_request_timeout(world.plan.request_timeout)
        .connect_lazy()
        .unwrap();
    let options = LockOptions::new().with_ttl(world.plan.ttl);
    let client = LockClient::builder(store).with_defaults(options).build().unwrap();
    let draining = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..rng.within(1..=3) as usize {
        let owner = number * 10 + task;
        let task = Task {
            world: world.clone(),
            client: client.clone(),
            draining: Arc::clone(&draining),
            asked_before_drain: true,
            owner,
            rng: rng.split(),
        };
        tasks.spawn(task.run());
    }
    if let Some(after) = drained_after {
        let limit = rng.ms(50..=3_000);
        let (world, client) = (world.clone(), client.clone());
        tasks.spawn(async move {
            sleep(after).await;
            draining.store(true, Ordering::Relaxed);
            world.log.note(|| format!("client {number} drains for {limit:?}"));
            let start = Instant::now();
            let drained = client.drain(limit).await;
            world.log.note(|| format!("client {number} is drained: {drained:?}"));
            if start.elapsed() > limit + SLACK {
                let took = start.elapsed();
                world.violation(format!("client {number}: a drain took {took:?}, not {limit:?}"));
            }
            world.count(|counts| counts.drained += 1);
            world.told.lock().unwrap().left_to_ttl |= !drained.is_clean();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            world.violation(format!("client {number}: a task ended by {error}"));
        }
    }
    let limit = SETTLED + LOST_ANSWER * u32::try_from(world.plan.lost_answers).unwrap();
    if timeout_at(Instant::now().max(world.calm) + limit, wait_idle(&client)).await.is_err() {
        world.violation(format!("client {number} does not settle: {:?}", ClientStats::of(&client)));
    } else if !ClientStats::of(&client).is_idle() {
        world.violation(format!("client {number} is not idle: {:?}", ClientStats::of(&client)));
    }
}

pub(crate) struct Life {
    pub(crate) machine: Machine,
    pub(crate) task: JoinHandle<()>,
}

/// Everything that a fault can strike.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) fake: Fake,
    pub(crate) net: Net,
    pub(crate) lives: Vec<Life>,
    pub(crate) rng: Rng,
}

async fn simulate(plan: Plan, mut rng: Rng, reader: Reader) -> Outcome {
    let log = Log::new(reader);
    log.note(|| format!("{plan:?}"));
    let fake = Fake::new(plan.traits, log.clone());
    let net = Net::new(fake.clone(), plan.latency, plan.request_timeout, rng.split());
    let world = World {
        plan: Arc::new(plan),
        log,
        history: History::default(),
        resource: Resource::default(),
        fake: fake.clone(),
        calm: Instant::now() + Duration::from_millis(FAULTS_BEGIN + LONGEST_FAULT),
        told: Arc::default(),
    };
    let mut stage = Stage {
        world: world.clone(),
        fake: fake.clone(),
        net: net.clone(),
        lives: Vec::new(),
        rng,
    };
    for _ in 0..world.plan.clients {
        stage.start_client();
    }
    stage.lose_answers();
    let killed = stage.inject_faults().await;
    stage.all_served().await;
    let mut remains = fake.leftovers();
    // Keys that a drain left when it had to end are not released, either.
    if killed || world.told.lock().unwrap().left_to_ttl {
        sleep(QUEUE_LIFE).await;
        remains = fake.leftovers();
    }
    if !remains.is_empty() {
        world.violation(format!("left on the server: {remains:?}"));
    }
    let inside = world.plan.is_inside();
    let (excused, overlaps) = world.history.check_exclusion();
    for overlap in overlaps.iter().filter(|_| inside) {
        world.violation(overlap.clone());
    }
    world.history.check_fences(|what| world.violation(what));
    let served = fake.counts();
    world.count(|counts| {
        counts.turns = world.history.turns().len();
        counts.excused = excused;
        counts.ambiguous = net.ambiguous();
        counts.faults += net.answers_lost();
        counts.stale = world.resource.refused();
        counts.queued = served.queued;
        counts.voids = served.voids;
        counts.unheard = served.unheard;
    });
    let Told { counts, violations, .. } = std::mem::take(&mut *world.told.lock().unwrap());
    Outcome { counts, overlaps: overlaps.len(), violations, log: world.log.text() }
}

impl Stage {
    pub(crate) fn start_client(&mut self) {
        let machine = self.net.machine();
        let life = live(self.world.clone(), machine.clone(), self.lives.len(), self.rng.split());
        self.lives.push(Life { machine, task: tokio::spawn(life) });
    }

    /// Injects the faults, and waits until all are over. Returns whether clients were killed.
    async fn inject_faults(&mut self) -> bool {
        let start = Instant::now();
        let mut times: Vec<_> =
            (0..self.world.plan.faults).map(|_| self.rng.ms(0..=FAULTS_BEGIN)).collect();
        times.sort();
        let mut killed = false;
        let mut over = start;
        for time in times {
            sleep_until(start + time).await;
            let span = self.rng.ms(10..=LONGEST_FAULT);
            over = over.max(Instant::now() + span);
            killed |= self.inject(span);
        }
        sleep_until(over).await;
        self.world.log.note(|| "all faults are over".to_owned());
        killed
    }

    /// Loses answers. Each is the first one on a machine after some time, and so strikes in the
    /// middle of its work.
    fn lose_answers(&mut self) {
        for _ in 0..self.world.plan.lost_answers {
            let chosen = self.rng.within(0..=self.lives.len() as u64 - 1) as usize;
            let machine = self.lives[chosen].machine.clone();
            let instead = self.rng.one_of(&[Instead::Break, Instead::FallSilent]);
            let (after, log) = (self.rng.ms(0..=ANSWERS_LOST), self.world.log.clone());
            let _ended = tokio::spawn(async move {
                sleep(after).await;
                log.note(|| format!("FAULT the next answer is lost: client {chosen}, {instead:?}"));
                machine.lose_next_answer(instead);
            });
        }
    }

    async fn all_served(&mut self) {
        let end = Instant::now() + ALL_SERVED;
        for (number, Life { machine, task }) in self.lives.iter_mut().enumerate() {
            if machine.is_dead() {
                continue;
            }
            match timeout_at(end, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.world.violation(format!("client {number}: {error}")),
                Err(_) => self.world.violation(format!("client {number} is not served")),
            }
        }
    }
}
