//! A quorum of simulated servers: clocks that are apart, restarts without data one after the other,
//! messages that are late or lost, and clients that give up at any moment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::QuorumStore;
use lock_core::testing::{ClientStats, Seeded, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::{Turn, misnumbered, now, overlaps};
use lock_testkit::{Rng, scale};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::fake::{Fake, Traits};
use crate::log::{Log, Reader};
use crate::net::{Instead, Latency, Machine, Net, Way};
use crate::stress;

/// Each takes about three seconds: its clients wait for each other, and try again and again.
const SEEDS: usize = 16;
const MEMBERS: usize = 3;
const CLIENTS: usize = 4;
const TTL: Duration = Duration::from_millis(1_000);
/// The shortest that is allowed.
const RESTART_DELAY: Duration = Duration::from_secs(3);
const REQUEST: Duration = Duration::from_millis(100);
/// Faults begin within this time.
const STORM: Duration = Duration::from_secs(20);
/// After the storm, connections are dialled anew, members are of age again, and all get a lock.
const CALM: Duration = Duration::from_secs(20);
/// Nothing of a token can be left then.
const SETTLED: Duration = Duration::from_secs(60);
/// Members whose clocks are as far apart as most are on one network, in microseconds.
const MOST_APART: u64 = 20_000;

#[derive(Clone)]
struct Member {
    fake: Fake,
    net: Net,
}

/// What happened, in numbers.
#[derive(Debug, Default)]
struct Seen {
    turns: usize,
    restarts: usize,
    faults: usize,
    lost: usize,
    refused: usize,
}

type Turns = Arc<Mutex<(Vec<Turn>, Seen)>>;

/// Exclusion and order of tokens, the state that remains, and progress, under random faults.
#[test]
fn promises_of_a_quorum_hold_under_random_faults() {
    let total = Mutex::new(Seen::default());
    stress::each(0..scale(SEEDS) as u64, |seed| {
        let Seen { turns, restarts, faults, lost, refused } = run(seed);
        assert!(turns > CLIENTS, "seed {seed}: {turns} turns");
        let mut total = total.lock().unwrap();
        total.turns += turns;
        total.restarts += restarts;
        total.faults += faults;
        total.lost += lost;
        total.refused += refused;
    });
    let total = total.into_inner().unwrap();
    println!("{total:?}");
    let Seen { turns, restarts, faults, lost, refused } = total;
    for (what, count) in [
        ("turns", turns),
        ("restarts", restarts),
        ("faults", faults),
        ("lost leases", lost),
        ("refusals", refused),
    ] {
        assert!(count > 0, "no {what}");
    }
}

fn run(seed: u64) -> Seen {
    let _seeded = Seeded::with(seed);
    let runtime = { tokio::runtime::Builder::new_current_thread() }
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(simulate(seed))
}

async fn simulate(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let reader = if lock_testkit::number::<u64>("LOCK_SIM_SEED") == Some(seed) {
        Reader::Human
    } else {
        Reader::None
    };
    let log = Log::new(reader);
    let members: Vec<_> =
        (0..MEMBERS as u64).map(|number| member(number, &log, &mut rng)).collect();
    let turns = Turns::default();
    let end = Instant::now() + STORM;
    let (mut clients, mut machines, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for owner in 0..CLIENTS {
        let ways: Vec<_> = members.iter().map(|member| member.net.machine()).collect();
        let urls = (0..MEMBERS).map(|number| format!("redis://member{number}/"));
        let store = QuorumStore::builder(urls)
            .with_connectors(ways.clone())
            .with_request_timeout(REQUEST)
            .with_restart_delay(RESTART_DELAY)
            .connect_lazy()
            .unwrap();
        let defaults = LockOptions::new().with_ttl(TTL);
        let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
        let task = work(client.clone(), owner, rng.split(), Arc::clone(&turns), end);
        tasks.push(tokio::spawn(task));
        clients.push(client);
        machines.extend(ways);
    }
    storm(&members, &machines, &mut rng, &turns, end).await;
    for task in tasks {
        timeout(CALM, task).await.expect("a task ends").unwrap();
    }
    for (owner, client) in clients.iter().enumerate() {
        let guard = client.mutex("k").with_wait(CALM).lock().await;
        let guard = guard.unwrap_or_else(|error| panic!("seed {seed}, {owner}: {error:?}"));
        let (turn, _) = hold(guard, owner, now(), Duration::ZERO).await;
        turns.lock().unwrap().0.push(turn);
    }
    for client in &clients {
        let settled = timeout(SETTLED, wait_idle(client)).await;
        assert!(settled.is_ok(), "seed {seed}: {:?}", ClientStats::of(client));
    }
    sleep(SETTLED).await;
    for member in &members {
        let remains = member.fake.leftovers();
        assert!(remains.is_empty(), "seed {seed}: {remains:?}");
    }
    let (turns, mut seen) = std::mem::take(&mut *turns.lock().unwrap());
    assert!(overlaps(&turns).is_empty(), "seed {seed}: {:?}", overlaps(&turns));
    let misnumbered = misnumbered(&turns, |turn| turn.handed_on() == 0);
    assert!(misnumbered.is_empty(), "seed {seed}: {misnumbered:?}");
    seen.turns = turns.len();
    seen
}

fn member(number: u64, log: &Log, rng: &mut Rng) -> Member {
    let clock_rate = rng.within(992_000..=1_008_000);
    let fake = Fake::new(Traits { resp3: rng.chance(80), clock_rate }, log.clone());
    fake.set_clock(fake.clock_us() + rng.within(0..=MOST_APART));
    // Older than the restart delay: a member that has forgotten nothing.
    fake.tell_process(number, RESTART_DELAY * 10);
    let latency = Latency { usual: rng.within(0..=3), longest: 20, slow: rng.within(0..=10) };
    Member { net: Net::new(fake.clone(), latency, REQUEST, rng.split()), fake }
}

/// Takes and holds the lock again and again.
async fn work(client: LockClient, owner: usize, mut rng: Rng, turns: Turns, end: Instant) {
    while Instant::now() < end {
        sleep(rng.ms(0..=60)).await;
        let mutex = client.mutex("k").with_wait(rng.ms(50..=4_000));
        let requested = now();
        let patience = if rng.chance(20) { rng.ms(0..=300) } else { CALM };
        let Ok(Ok(guard)) = timeout(patience, mutex.lock()).await else {
            turns.lock().unwrap().1.refused += 1;
            continue;
        };
        // Some outlive their ttl by renewals.
        let span = if rng.chance(80) { rng.ms(0..=40) } else { rng.ms(500..=4_000) };
        let (turn, is_lost) = hold(guard, owner, requested, span).await;
        let mut turns = turns.lock().unwrap();
        turns.0.push(turn);
        turns.1.lost += usize::from(is_lost);
    }
}

/// Holds the lock for `span`, or until it is lost. Gives the turn, and whether it was lost.
pub(crate) async fn hold(
    guard: lock_core::MutexGuard,
    owner: usize,
    requested: u128,
    span: Duration,
) -> (Turn, bool) {
    let (enter, fence) = (now(), guard.fencing_token().get());
    let is_lost = tokio::select! {
        biased;
        _reason = guard.lost() => true,
        () = sleep(span) => false,
    };
    let exit = now();
    let turn = Turn { owner, requested, enter, exit, deadline: u128::MAX, fence };
    drop(guard);
    (turn, is_lost)
}

/// Injects faults until `end`.
async fn storm(
    members: &[Member],
    machines: &[Machine],
    rng: &mut Rng,
    turns: &Turns,
    end: Instant,
) {
    let mut of_age_at = Instant::now();
    while Instant::now() < end {
        sleep(rng.ms(20..=400)).await;
        let machine = machines[rng.below(machines.len() as u64) as usize].clone();
        let member = members[rng.below(MEMBERS as u64) as usize].clone();
        let way = rng.one_of(&[Way::Up, Way::Down]);
        let span = rng.ms(10..=900);
        match rng.within(0..=8) {
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
            5 => member.fake.stall(span),
            6 => member.fake.lose_messages(span),
            // One after the other: the next one only when the last one votes again and was
            // repaired.
            _ if of_age_at <= Instant::now() => {
                of_age_at = Instant::now() + RESTART_DELAY * 2;
                member.net.take_server_down();
                sleep_until(Instant::now() + rng.ms(5..=200)).await;
                member.fake.forget_all();
                member.net.bring_server_up();
                turns.lock().unwrap().1.restarts += 1;
            }
            _ => continue,
        }
        turns.lock().unwrap().1.faults += 1;
    }
    for machine in machines {
        machine.release(Way::Up);
        machine.release(Way::Down);
    }
}
