//! Fifty processes in a queue, of which some die.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_testkit::{Experiment, Rng, ms};
use tokio::time::{Instant, sleep, timeout};

use crate::fake::Traits;
use crate::net::Machine;
use crate::setting::{EXACT, Setting, simulated};
use crate::stress;

const WAITERS: usize = 50;
/// Between two who come, so that the order of their claims is known.
const APART: Duration = ms(25);
/// How long each holds the lock.
const HOLD: Duration = ms(5);
/// From one live waiter to the next with no dead one between them: the hold, the release and the
/// message.
const STEP: Duration = ms(40);
/// No longer than a claim.
const TTL: Duration = ms(3_000);
/// What a dead waiter costs the waiters behind it: its claim (at most 3 s; if it died as the
/// holder, it may have extended it to a full ttl), and the time until another waiter retries, which
/// each does once a second.
const DEAD: Duration = ms(3_000 + 1_100);
const SEEDS: usize = 12;

/// A waiter in a process of its own.
struct Waiter {
    machine: Machine,
    task: tokio::task::JoinHandle<()>,
    dead: bool,
}

/// Who was served, and when.
type Served = Arc<Mutex<Vec<(usize, Instant)>>>;

/// What a seed saw.
struct Seen {
    dead: usize,
    /// Of those, how many got the lock and kept it to its end.
    costly: usize,
    longest: Duration,
}

/// Live waiters are served in turn. None overtakes another, and a dead one costs no more than its
/// claim.
#[test]
fn live_waiters_are_served_in_order_although_some_die() {
    let mut experiment = Experiment::new(
        14,
        "first come, first served; the dead cost at most their claims",
        "50 processes wait, and up to 12 of them are killed at random moments, half of them silently",
        &["served", "killed waiters", "claims of the dead that ran out"],
    );
    let total = Mutex::new((0, 0, 0, Duration::ZERO));
    let seeds = lock_testkit::scale(SEEDS);
    stress::each(0..seeds as u64, |seed| {
        let traits = Traits { resp3: !seed.is_multiple_of(3), ..EXACT };
        let seen = simulated(seed, traits, async |setting| queue(setting, seed).await);
        let total = &mut *total.lock().unwrap();
        total.0 += WAITERS - seen.dead;
        total.1 += seen.dead;
        total.2 += seen.costly;
        total.3 = total.3.max(seen.longest);
    });
    let (served, dead, costly, longest) = total.into_inner().unwrap();
    println!("{served} served, {dead} killed, {costly} claims ran out, longest step {longest:?}");
    experiment.ran(seeds);
    experiment.saw("served", served);
    experiment.saw("killed waiters", dead);
    experiment.saw("claims of the dead that ran out", costly);
    experiment.finish();
}

async fn queue(mut setting: Setting, seed: u64) -> Seen {
    let (holder, _) = setting.client().await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let served = Served::default();
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        waiters.push(waiter(&setting, number, &served).await);
        sleep(APART).await;
    }
    let free = Instant::now();
    guard.release().await.unwrap();
    let mut rng = setting.rng.split();
    let deaths = rng.within(4..=12);
    for _ in 0..deaths {
        sleep(rng.ms(0..=120)).await;
        kill_one(&mut waiters, &mut rng, &served);
    }
    let limit = STEP * WAITERS as u32 + DEAD * deaths as u32;
    for (number, waiter) in waiters.iter_mut().enumerate().filter(|(_, waiter)| !waiter.dead) {
        let ended = timeout(limit, &mut waiter.task).await;
        assert!(matches!(ended, Ok(Ok(()))), "seed {seed}: {number} was not served: {ended:?}");
    }
    check(&served.lock().unwrap(), &waiters, free, seed)
}

async fn waiter(setting: &Setting, number: usize, served: &Served) -> Waiter {
    let (client, machine) = setting.client_with(TTL).await;
    let served = Arc::clone(served);
    let task = tokio::spawn(async move {
        let guard = client.mutex("k").wait_forever().lock().await.unwrap();
        served.lock().unwrap().push((number, Instant::now()));
        sleep(HOLD).await;
        guard.release().await.unwrap();
    });
    Waiter { machine, task, dead: false }
}

/// Kills a waiter that has not been served yet.
fn kill_one(waiters: &mut [Waiter], rng: &mut Rng, served: &Served) {
    let served: Vec<_> = served.lock().unwrap().iter().map(|(number, _)| *number).collect();
    let waiting = waiters.iter_mut().enumerate();
    let mut waiting: Vec<_> =
        waiting.filter(|(number, one)| !one.dead && !served.contains(number)).collect();
    if waiting.is_empty() {
        return;
    }
    // Usually one near the head of the queue.
    let far = (waiting.len() - 1).min(if rng.chance(70) { 5 } else { WAITERS });
    let (_, one) = &mut waiting[rng.within(0..=far as u64) as usize];
    one.machine.kill(rng.chance(50));
    one.task.abort();
    one.dead = true;
}

fn check(served: &[(usize, Instant)], waiters: &[Waiter], free: Instant, seed: u64) -> Seen {
    let dead = waiters.iter().filter(|waiter| waiter.dead).count();
    assert_eq!(served.len(), WAITERS - dead, "seed {seed}: all who live are served, each once");
    let (mut behind, mut before) = (0, free);
    let mut seen = Seen { dead, costly: 0, longest: Duration::ZERO };
    for (number, at) in served {
        assert!(*number >= behind, "seed {seed}: {number} came behind {behind}: {served:?}");
        let died = waiters[behind..*number].iter().filter(|waiter| waiter.dead).count();
        assert_eq!(died, number - behind, "seed {seed}: a waiter was overtaken: {served:?}");
        let took = *at - before;
        let limit = STEP + DEAD * died as u32;
        assert!(took <= limit, "seed {seed}: {number} waited for {took:?}, not {limit:?}");
        seen.costly += usize::from(took > STEP);
        seen.longest = seen.longest.max(took);
        (behind, before) = (number + 1, *at);
    }
    seen
}

/// R21: a waiter keeps its place for as long as it goes on claiming.
#[test]
fn waiter_keeps_its_place_for_ten_minutes() {
    simulated(1, EXACT, async |setting| {
        let (holder, _) = setting.client().await;
        let (first, _) = setting.client().await;
        let (second, _) = setting.client().await;
        let guard = holder.mutex("k").lock().await.unwrap();
        let wait = ms(1_200_000);
        let early = tokio::spawn(first.mutex("k").with_wait(wait).lock());
        sleep(ms(500)).await;
        let late = tokio::spawn(second.mutex("k").with_wait(wait).lock());
        sleep(ms(600_000)).await;
        assert!(guard.is_valid());
        guard.release().await.unwrap();
        let guard = timeout(ms(1_000), early).await.unwrap().unwrap().unwrap();
        assert!(!late.is_finished());
        guard.release().await.unwrap();
        let guard = timeout(ms(1_000), late).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
        setting.nothing_remains(&first).await;
    });
}
