//! What the tasks of a client do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Lease, LockClient, Mutex, MutexGuard, Released};
use lock_testkit::Rng;
use tokio::time::{Instant, sleep, timeout};

use crate::world::World;

/// One task.
pub(crate) struct Task {
    pub(crate) world: World,
    pub(crate) client: LockClient,
    /// Set when the client begins to drain.
    pub(crate) draining: Arc<AtomicBool>,
    /// Whether the last claim was made before that.
    pub(crate) asked_before_drain: bool,
    pub(crate) owner: usize,
    pub(crate) rng: Rng,
}

/// How much longer than its limit a call may take: a store's grace, and the granularity of timers.
const SLACK: Duration = Duration::from_millis(60);
/// The longest that a call without a wait takes: behind another call of its process, until the
/// store is given up.
const WITHOUT_WAIT: Duration = Duration::from_millis(1_500);
/// The longest hold in milliseconds. With the longest ttl, twice the ttl would be too long for the
/// waiters.
const LONGEST_HOLD: u64 = 6_000;
/// Two attempts, with a connection each.
const RELEASE: Duration = Duration::from_millis(3_000);

impl Task {
    pub(crate) async fn run(mut self) {
        for _ in 0..self.rng.within(2..=4) {
            sleep(self.rng.ms(0..=150)).await;
            let key = if self.rng.chance(70) { 0 } else { self.rng.within(0..=2) as usize };
            let mutex = self.client.mutex(format!("k{key}"));
            if self.is_draining() && self.rng.chance(50) {
                return;
            }
            match self.rng.within(0..=if self.world.plan.unfenced { 12 } else { 9 }) {
                0..=3 => self.take_turn(key, mutex).await,
                4 => self.give_up(key, mutex).await,
                5 => self.try_once(key, mutex).await,
                6 => self.extend(key, mutex).await,
                7 => {
                    let min_hold = self.rng.ms(10..=400);
                    self.take_turn(key, mutex.with_min_hold(min_hold)).await;
                }
                8 => self.run_bound(key, mutex).await,
                9 => self.without_renewal(key, mutex).await,
                _ => self.without_fencing(key, mutex).await,
            }
        }
    }

    /// How long to hold a lock. Usually short, so that other tasks of the process wait meanwhile.
    fn span(&mut self) -> Duration {
        if self.rng.chance(75) {
            return self.rng.ms(0..=30);
        }
        let ttl = self.world.plan.ttl.as_millis() as u64;
        self.rng.ms(0..=LONGEST_HOLD.min(2 * ttl))
    }

    async fn take_turn(&mut self, key: usize, mutex: Mutex) {
        if let Some((turn, guard)) = self.lock(key, mutex).await {
            let span = self.span();
            self.hold(turn, &guard, span).await;
            self.end(guard).await;
        }
    }

    async fn without_renewal(&mut self, key: usize, mutex: Mutex) {
        self.take_turn(key, mutex.without_renewal()).await;
    }

    async fn without_fencing(&mut self, key: usize, mutex: Mutex) {
        let mutex = mutex.without_fencing();
        if self.rng.chance(50) {
            self.take_turn(key, mutex).await;
        } else {
            self.try_once(key, mutex).await;
        }
    }

    async fn extend(&mut self, key: usize, mutex: Mutex) {
        if let Some((turn, guard)) = self.lock(key, mutex).await {
            let longer = self.world.plan.ttl + self.rng.ms(0..=1_000);
            match guard.extend(longer).await {
                Ok(()) => self.world.count(|counts| counts.extended += 1),
                Err(error) => self.failed("extend", &error),
            }
            let span = self.span();
            self.hold(turn, &guard, span).await;
            self.end(guard).await;
        }
    }

    /// Waits, but gives up early.
    async fn give_up(&mut self, key: usize, mutex: Mutex) {
        let patience = self.rng.ms(0..=400);
        let asked = self.asks("asks, impatiently", key);
        match timeout(patience, mutex.wait_forever().lock()).await {
            Ok(Ok(guard)) => {
                let turn = self.entered(key, asked, &guard);
                let span = self.span();
                // Cut off in the middle of its turn.
                if timeout(patience, self.hold(turn, &guard, span)).await.is_err() {
                    drop(guard);
                } else {
                    // Or in the middle of the release.
                    let patience = self.rng.ms(0..=5);
                    if timeout(patience, guard.release()).await.is_err() {
                        self.world.count(|counts| counts.cancelled += 1);
                    }
                }
            }
            Ok(Err(error)) => self.failed("lock", &error),
            Err(_) => {
                self.note("gives up", key);
                self.world.count(|counts| counts.cancelled += 1);
            }
        }
    }

    async fn try_once(&mut self, key: usize, mutex: Mutex) {
        let asked = self.asks("tries", key);
        let start = Instant::now();
        let answer = mutex.try_lock().await;
        self.in_time("try_lock", start, WITHOUT_WAIT);
        match answer {
            Ok(Some(guard)) => {
                let turn = self.entered(key, asked, &guard);
                let span = self.span();
                self.hold(turn, &guard, span).await;
                self.end(guard).await;
            }
            Ok(None) => {
                self.world.count(|counts| counts.busy += 1);
                self.note("finds it taken", key);
            }
            Err(error) => self.failed("try_lock", &error),
        }
    }

    /// Runs a body that is bound to its lease, and notices polls after the lease.
    async fn run_bound(&mut self, key: usize, mutex: Mutex) {
        let asked = self.asks("asks, to run a body", key);
        let span = self.span();
        let (world, owner) = (self.world.clone(), self.owner);
        let body = async |lease: Lease| {
            let at =
                world.log.note(|| format!("{owner} runs on k{key}: {:?}", lease.fencing_token()));
            let fence = lease.fencing_token().get();
            let turn = world.history.enter(key, owner, [asked, at], fence);
            let end = Instant::now() + span;
            while Instant::now() < end {
                sleep(world.plan.ttl / 7).await;
                if !lease.is_valid() {
                    world.violation(format!("{owner}: its body was polled after its lease"));
                }
                world.history.still_good(turn, world.log.note(String::new));
            }
        };
        match mutex.wait_forever().run(body).await {
            Ok(()) => {}
            Err(error) if error.is_lost() => self.world.count(|counts| counts.lost += 1),
            Err(error) => self.failed("run", &error),
        }
    }

    async fn lock(&mut self, key: usize, mutex: Mutex) -> Option<(usize, MutexGuard)> {
        let wait = self.rng.one_of(&[Some(20), Some(300), Some(1_000), Some(3_000), None, None]);
        let asked = self.asks("asks", key);
        let held = self.world.is_held(key);
        let start = Instant::now();
        let answer = match wait.map(Duration::from_millis) {
            Some(wait) => {
                let answer = mutex.with_wait(wait).lock().await;
                self.in_time("lock", start, wait.max(Duration::from_millis(50)));
                answer
            }
            None => mutex.wait_forever().lock().await,
        };
        match answer {
            Ok(guard) => {
                self.world.count(|counts| counts.contended += usize::from(held));
                Some((self.entered(key, asked, &guard), guard))
            }
            Err(error) => {
                self.failed("lock", &error);
                None
            }
        }
    }

    fn entered(&self, key: usize, asked: u64, guard: &MutexGuard) -> usize {
        let fence = guard.fencing_token();
        let entered = self.world.log.note(|| format!("{} has k{key}: {fence:?}", self.owner));
        if !guard.is_valid() {
            self.world.violation(format!("{}: a lease was over when it was granted", self.owner));
        }
        if self.is_draining() && !self.asked_before_drain {
            self.world.violation(format!("{}: granted by a client that drains", self.owner));
        }
        let (owner, fence) = (self.owner, fence.get());
        self.world.check_lease(owner, key, guard.remaining());
        self.world.count(|counts| counts.unfenced += usize::from(fence == 0));
        let turn = self.world.history.enter(key, owner, [asked, entered], fence);
        let handed_on = self.world.history.turn(turn).1.handed_on() > 0;
        self.world.count(|counts| counts.handed_on += usize::from(handed_on));
        turn
    }

    /// Holds for some time and writes meanwhile, until it learns that the lease is lost.
    async fn hold(&mut self, turn: usize, guard: &MutexGuard, span: Duration) {
        let end = Instant::now() + span;
        loop {
            self.write(turn);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(self.world.plan.ttl / 7)).await;
            if !guard.is_valid() {
                self.world.count(|counts| counts.lost += 1);
                self.world.log.note(|| format!("{} has lost it", self.owner));
                return;
            }
            self.world.history.still_good(turn, self.world.log.note(String::new));
            let (key, turn) = self.world.history.turn(turn);
            self.world.check_lease(turn.owner, key, guard.remaining());
        }
    }

    /// Sends a write to the protected resource. Usually it arrives soon, but it may take longer
    /// than the lease lasts.
    fn write(&mut self, turn: usize) {
        let ttl = self.world.plan.ttl.as_millis() as u64;
        let way = if self.rng.chance(10) { self.rng.ms(0..=2 * ttl) } else { self.rng.ms(0..=5) };
        let world = self.world.clone();
        let (key, turn) = world.history.turn(turn);
        if turn.fence == 0 {
            return;
        }
        let _arrives = tokio::spawn(async move {
            sleep(way).await;
            if let Err(what) = world.resource.write(&key, turn) {
                world.violation(what);
            }
        });
    }

    async fn end(&mut self, guard: MutexGuard) {
        self.world.log.note(|| format!("{} releases", self.owner));
        if self.rng.chance(30) {
            return drop(guard);
        }
        let start = Instant::now();
        let was_good = guard.is_valid();
        let answer = guard.release().await;
        self.in_time("release", start, RELEASE);
        self.world.log.note(|| format!("{} got {answer:?}", self.owner));
        match answer {
            Ok(Released::InTime) => {}
            Ok(_) => self.world.count(|counts| counts.lost += usize::from(was_good)),
            Err(error) => self.failed("release", &error),
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Logs that the task begins to claim.
    fn asks(&mut self, how: &str, key: usize) -> u64 {
        self.asked_before_drain = !self.is_draining();
        self.note(how, key)
    }

    fn note(&self, what: &str, key: usize) -> u64 {
        self.world.log.note(|| format!("{} {what} k{key}", self.owner))
    }

    fn in_time(&self, what: &str, since: Instant, limit: Duration) {
        let took = since.elapsed();
        if took > limit + SLACK {
            self.world.violation(format!("{}: {what} took {took:?}, not {limit:?}", self.owner));
        }
    }

    /// Counts an error if it is a legal answer.
    fn failed(&self, what: &str, error: &Error) {
        self.world.log.note(|| format!("{} cannot {what}: {error}", self.owner));
        self.world.count(|counts| match error.kind() {
            ErrorKind::Busy { .. } => counts.busy += 1,
            ErrorKind::Unavailable => counts.unavailable += 1,
            ErrorKind::Unknown => counts.unknown += 1,
            ErrorKind::Lost { .. } if what == "extend" => counts.lost += 1,
            ErrorKind::Draining if self.is_draining() => counts.turned_away += 1,
            kind => self.world.violation(format!("{}: {what} gave {kind:?}", self.owner)),
        });
    }
}
