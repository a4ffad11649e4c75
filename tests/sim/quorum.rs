//! A quorum of simulated servers: clocks that are apart, restarts without data one after the other,
//! messages that are late or lost, and clients that give up at any moment.

use std::sync::Mutex;
use std::time::Duration;

use lock_core::store::QuorumStore;
use lock_core::{LockClient, LockOptions};
use lock_testkit::{Rng, scale};
use tokio::time::{Instant, sleep, timeout};

use crate::fake::{Fake, Traits};
use crate::log::Log;
use crate::net::{Latency, Machine, Net};
use crate::stress;
use crate::topology::{log_of, release_all, simulated, strike};
use crate::turns::{CALM, SETTLED, Turns, Worker};

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
const KEYS: &[&str] = &["k"];
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

/// Exclusion and order of tokens, the state that remains, and progress, under random faults.
#[test]
fn promises_of_a_quorum_hold_under_random_faults() {
    let total = Mutex::new(Seen::default());
    stress::each(0..scale(SEEDS) as u64, |seed| {
        let Seen { turns, restarts, faults, lost, refused } = simulated(seed, simulate(seed));
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

async fn simulate(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let log = log_of(seed);
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
        let (rng, turns) = (rng.split(), turns.clone());
        let worker = Worker { client: client.clone(), owner, keys: KEYS, rng, turns };
        tasks.push(tokio::spawn(worker.work(end)));
        clients.push(client);
        machines.extend(ways);
    }
    let (restarts, faults) = storm(&members, &machines, &log, &mut rng, end).await;
    for task in tasks {
        timeout(CALM, task).await.expect("a task ends").unwrap();
    }
    turns.all_are_served(&clients, KEYS).await;
    sleep(SETTLED).await;
    for member in &members {
        let remains = member.fake.leftovers();
        assert!(remains.is_empty(), "{remains:?}");
    }
    assert!(turns.overlaps().is_empty(), "{:?}", turns.overlaps());
    turns.check();
    let (lost, refused) = (turns.lost(), turns.refused());
    Seen { turns: turns.count(), restarts, faults, lost, refused }
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

/// Injects faults until `end`. Returns how often a member restarted, and how many other faults
/// there were.
async fn storm(
    members: &[Member],
    machines: &[Machine],
    log: &Log,
    rng: &mut Rng,
    end: Instant,
) -> (usize, usize) {
    let servers: Vec<_> = members.iter().map(|member| member.fake.clone()).collect();
    let (mut of_age_at, mut restarts, mut faults) = (Instant::now(), 0, 0);
    while Instant::now() < end {
        sleep(rng.ms(20..=400)).await;
        // One after the other: the next one only when the last one votes again and was repaired.
        if rng.chance(20) && of_age_at <= Instant::now() {
            let member = &members[rng.below(MEMBERS as u64) as usize];
            of_age_at = Instant::now() + RESTART_DELAY * 2;
            member.net.take_server_down(0);
            sleep(rng.ms(5..=200)).await;
            member.fake.forget_all();
            member.net.bring_server_up(0);
            restarts += 1;
        } else {
            strike(rng, machines, &servers, log);
            faults += 1;
        }
    }
    release_all(machines);
    (restarts, faults)
}
