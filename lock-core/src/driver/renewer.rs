//! One task that renews all leases of a client, in the order in which they are due.
//!
//! Leases that are due at about the same time go to the store together; each has its own answer,
//! and one that fails or hangs delays no other. The same schedule ends leases that are not renewed,
//! so that those who watch or wait behind them learn of it on time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind};
use crate::held::{Held, OnDue};
use crate::random;
use crate::store::{Renewal, Store};
use crate::time::{Instant, sleep_until_some, timeout_at};

/// A place in the schedule.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Due {
    at: Instant,
    number: u64,
}

/// The schedule of a client's leases.
#[derive(Debug, Default)]
pub(crate) struct Renewer {
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    leases: BTreeMap<Due, Weak<Held>>,
    /// Those that are being renewed, by the number of the call that renews them.
    at_work: BTreeMap<u64, Vec<Weak<Held>>>,
    next_number: u64,
    /// Until when the task sleeps; `None`: until it is woken.
    asleep_until: Option<Instant>,
}

/// What is due within this span goes along now: waking up for each costs more than renewing early.
const TOGETHER: Duration = Duration::from_millis(20);
/// Stores take no longer than this to connect and to wait for an answer, so renewals with more time than this end together.
const PRESSING: Duration = Duration::from_secs(2);
/// Renewals that go to the store in one call.
const BATCH: usize = 256;

impl Renewer {
    /// Has `lease` looked at when `at` comes.
    pub(crate) fn schedule(&self, lease: Weak<Held>, at: Instant) -> Due {
        let mut schedule = self.lock();
        let due = Due { at, number: schedule.next_number };
        schedule.next_number += 1;
        schedule.leases.insert(due, lease);
        if schedule.asleep_until.is_none_or(|until| at < until) {
            schedule.asleep_until = Some(at);
            drop(schedule);
            self.wake.notify_one();
        }
        due
    }

    /// Takes a lease out of the schedule.
    pub(crate) fn forget(&self, due: Due) {
        self.lock().leases.remove(&due);
    }

    /// All leases that are kept, those that are being renewed included.
    pub(crate) fn leases(&self) -> Vec<Arc<Held>> {
        let schedule = self.lock();
        let at_work = schedule.at_work.values().flatten();
        schedule.leases.values().chain(at_work).filter_map(Weak::upgrade).collect()
    }

    /// The task has nothing more to do.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The renewer's task.
    pub(crate) async fn run(self: Arc<Self>, store: Arc<dyn Store>) {
        let mut at_work = FuturesUnordered::new();
        while !self.closed.load(Ordering::Acquire) {
            let now = Instant::now();
            // A lease that has little time does not wait for the answers of those that have more.
            let (mut due, pressing): (Vec<_>, Vec<_>) = self
                .take_due()
                .into_iter()
                .partition(|(_, renewal)| renewal.until.saturating_since(now) >= PRESSING);
            at_work.extend(pressing.into_iter().map(|one| self.renew(vec![one], &*store)));
            while !due.is_empty() {
                let rest = due.split_off(due.len().min(BATCH));
                at_work.push(self.renew(due, &*store));
                due = rest;
            }
            let next = self.next();
            tokio::select! {
                biased;
                Some(()) = at_work.next() => {}
                () = sleep_until_some(next) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Renews leases that were taken out of the schedule. They are at work from now on, not from the first poll.
    fn renew<'a>(
        &'a self,
        due: Vec<(Arc<Held>, Renewal)>,
        store: &'a dyn Store,
    ) -> impl Future<Output = ()> + use<'a> {
        let (leases, renewals): (Vec<_>, Vec<_>) = due.into_iter().unzip();
        let mut at_work = AtWork::new(self, leases);
        async move {
            let last = renewals.iter().map(|renewal| renewal.until).max();
            let answers = match last {
                // A store keeps to `until` by itself, as a rule.
                Some(last) => timeout_at(last, store.renew(&renewals)).await.unwrap_or_default(),
                None => Vec::new(),
            };
            let mut answers = answers.into_iter();
            for lease in &at_work.leases {
                let answer = answers.next().unwrap_or_else(|| Err(Error::of(ErrorKind::Unknown)));
                lease.on_renewed(answer, random::byte());
            }
            // Each has its place in the schedule again, or is over.
            at_work.leases.clear();
        }
    }

    fn take_due(&self) -> Vec<(Arc<Held>, Renewal)> {
        let horizon = Instant::now();
        let mut renewals = Vec::new();
        loop {
            let lease = {
                let mut schedule = self.lock();
                let Some(first) = schedule.leases.first_entry() else { return renewals };
                if first.key().at > horizon.saturating_add(TOGETHER) {
                    return renewals;
                }
                let early = first.key().at > horizon;
                match first.get().upgrade() {
                    // Regular renewals may be anticipated; deadlines may not, and the pause before a retry is meant.
                    Some(lease) if early && !lease.is_renewed_regularly() => return renewals,
                    lease => {
                        first.remove();
                        lease
                    }
                }
            };
            let Some(lease) = lease else { continue };
            match lease.on_due() {
                OnDue::Forget => {}
                OnDue::LookAgain(at) => lease.schedule(at),
                OnDue::Renew(renewal) => renewals.push((lease, renewal)),
            }
        }
    }

    /// When to wake up next; from now on whoever is due earlier wakes the task.
    fn next(&self) -> Option<Instant> {
        let mut schedule = self.lock();
        schedule.asleep_until = schedule.leases.first_key_value().map(|(due, _)| due.at);
        schedule.asleep_until
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leases that are being renewed. If the task's runtime goes away they return to the schedule.
struct AtWork<'a> {
    renewer: &'a Renewer,
    number: u64,
    leases: Vec<Arc<Held>>,
}

impl<'a> AtWork<'a> {
    fn new(renewer: &'a Renewer, leases: Vec<Arc<Held>>) -> Self {
        let mut schedule = renewer.lock();
        let number = schedule.next_number;
        schedule.next_number += 1;
        schedule.at_work.insert(number, leases.iter().map(Arc::downgrade).collect());
        drop(schedule);
        Self { renewer, number, leases }
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.renewer.lock().at_work.remove(&self.number);
        for lease in self.leases.drain(..) {
            lease.schedule(Instant::now());
        }
    }
}
