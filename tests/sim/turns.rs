//! Clients that take turns on a few keys while faults strike, and what must be true of that on
//! servers of any kind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_core::LockClient;
use lock_core::testing::{ClientStats, wait_idle};
use lock_testkit::Rng;
use lock_testkit::history::{Turn, misnumbered, now, overlaps};
use tokio::time::{Instant, sleep, timeout};

use crate::resource::Resource;

/// When no fault strikes any more, connections are dialled anew, and all get a lock in this time.
pub(crate) const CALM: Duration = Duration::from_secs(20);
/// Nothing of a token can be left then.
pub(crate) const SETTLED: Duration = Duration::from_secs(60);
/// How much longer than its limit a wait may take: a store's grace, and the granularity of timers.
const SLACK: Duration = Duration::from_millis(60);

/// What the clients of a simulation did. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    told: Arc<Mutex<Told>>,
    resource: Resource,
}

#[derive(Default)]
struct Told {
    by_key: BTreeMap<&'static str, Vec<Turn>>,
    lost: usize,
    refused: usize,
    violations: Vec<String>,
}

/// A task that takes turns.
pub(crate) struct Worker {
    pub(crate) client: LockClient,
    pub(crate) owner: usize,
    pub(crate) keys: &'static [&'static str],
    pub(crate) rng: Rng,
    pub(crate) turns: Turns,
}

impl Worker {
    /// Takes and holds a lock again and again until `end`.
    pub(crate) async fn work(mut self, end: Instant) {
        while Instant::now() < end {
            sleep(self.rng.ms(0..=60)).await;
            let (key, wait) = (self.rng.one_of(self.keys), self.rng.ms(50..=4_000));
            let mutex = self.client.mutex(key).with_wait(wait);
            let (requested, start) = (now(), Instant::now());
            let patience = if self.rng.chance(20) { self.rng.ms(0..=300) } else { CALM };
            let answer = timeout(patience, mutex.lock()).await;
            if start.elapsed() > wait + SLACK {
                let (owner, took) = (self.owner, start.elapsed());
                self.turns.violation(format!("{owner}: a wait took {took:?}, not {wait:?}"));
            }
            let Ok(Ok(guard)) = answer else {
                self.turns.lock().refused += 1;
                continue;
            };
            // Some outlive their ttl by renewals.
            let is_short = self.rng.chance(80);
            let span = if is_short { self.rng.ms(0..=40) } else { self.rng.ms(500..=4_000) };
            let (enter, fence, owner) = (now(), guard.fencing_token().get(), self.owner);
            let turn = Turn { owner, requested, enter, exit: enter, deadline: u128::MAX, fence };
            self.turns.hold(key, turn, guard, span, self.rng.ms(0..=5)).await;
        }
    }
}

impl Turns {
    /// Holds the lock for `span`, or until it is lost. What its holder writes is under way for so
    /// long.
    async fn hold(
        &self,
        key: &'static str,
        mut turn: Turn,
        guard: lock_core::MutexGuard,
        span: Duration,
        way: Duration,
    ) {
        let (this, written) = (self.clone(), turn);
        let _arrives = tokio::spawn(async move {
            sleep(way).await;
            if let Err(what) = this.resource.write(&key, written) {
                this.violation(what);
            }
        });
        let is_lost = tokio::select! {
            biased;
            _reason = guard.lost() => true,
            () = sleep(span) => false,
        };
        turn.exit = now();
        drop(guard);
        let mut told = self.lock();
        told.lost += usize::from(is_lost);
        told.by_key.entry(key).or_default().push(turn);
    }

    /// Asserts that each client gets each lock now, and is idle then.
    pub(crate) async fn all_are_served(&self, clients: &[LockClient], keys: &[&'static str]) {
        for (owner, client) in clients.iter().enumerate() {
            for key in keys {
                let requested = now();
                let guard = client.mutex(*key).with_wait(CALM).lock().await;
                let guard = guard.unwrap_or_else(|error| panic!("{owner}: {error:?}"));
                let (enter, fence) = (now(), guard.fencing_token().get());
                let deadline = u128::MAX;
                let turn = Turn { owner, requested, enter, exit: enter, deadline, fence };
                self.hold(key, turn, guard, Duration::ZERO, Duration::ZERO).await;
            }
        }
        for client in clients {
            let settled = timeout(SETTLED, wait_idle(client)).await;
            assert!(settled.is_ok(), "{:?}", ClientStats::of(client));
        }
    }

    pub(crate) fn violation(&self, what: String) {
        self.lock().violations.push(what);
    }

    /// Pairs of turns on one key that overlap.
    pub(crate) fn overlaps(&self) -> Vec<(Turn, Turn)> {
        self.lock().by_key.values().flat_map(|turns| overlaps(turns)).collect()
    }

    /// Asserts that fencing tokens grew, and that no violation was reported.
    pub(crate) fn check(&self) {
        let told = self.lock();
        assert!(told.violations.is_empty(), "{:#?}", told.violations);
        for turns in told.by_key.values() {
            let misnumbered = misnumbered(turns, |turn| turn.handed_on() == 0);
            assert!(misnumbered.is_empty(), "{misnumbered:?}");
        }
    }

    /// How many turns there were.
    pub(crate) fn count(&self) -> usize {
        self.lock().by_key.values().map(Vec::len).sum()
    }

    /// How many leases were lost.
    pub(crate) fn lost(&self) -> usize {
        self.lock().lost
    }

    /// How many waits ended without a lock.
    pub(crate) fn refused(&self) -> usize {
        self.lock().refused
    }

    /// How many writes were stale, and refused.
    pub(crate) fn stale(&self) -> usize {
        self.resource.refused()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }
}
