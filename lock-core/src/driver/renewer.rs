//! One task that renews all leases of a client, in the order in which they are due.
//!
//! Leases that are due at about the same time go to the store together; each has its own answer. One that fails delays no
//! other, and for one that hangs the others wait no longer than leaves each of them time for another try. The same schedule ends
//! leases that are not renewed, so that those who watch or wait behind them learn of it on time.

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
use crate::store::{Renewal, Renewed, Store};
use crate::time::{Instant, Late, sleep_until_some, timeout_at};

/// A place in the schedule.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Due {
    at: Instant,
    number: u64,
}

impl Due {
    /// Whether it was scheduled later than `other`.
    pub(crate) fn came_after(self, other: Self) -> bool {
        self.number > other.number
    }
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
    /// Those that are on their way from there to here.
    taken: Vec<Weak<Held>>,
    next_number: u64,
    /// Until when the task sleeps; `None`: until it is woken.
    asleep_until: Option<Instant>,
}

/// What is due within this span goes along now: waking up for each costs more than renewing early.
const TOGETHER: Duration = Duration::from_millis(20);
/// Renewals with less time than this go alone, so that they hear of theirs however long others take. Those with more go together:
/// mostly a store has connected and given up waiting by then, and where it has more patience they lose one of several tries.
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
        let at_work = schedule.at_work.values().flatten().chain(&schedule.taken);
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
            self.lock().taken.clear();
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
            let mut call = store.renew(&renewals);
            let answers = loop {
                let Some(until) = at_work.patience(&renewals) else { break Vec::new() };
                match timeout_at(until, &mut call).await {
                    Ok(answers) => break answers,
                    // The call is answered when the last of its renewals is, and that one may have far more time.
                    Err(Late) => at_work.give_up(&renewals),
                }
            };
            at_work.settle(answers);
        }
    }

    /// They are in `taken` until they have their place again, or a new one.
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
                        let gone = first.remove();
                        schedule.taken.push(gone);
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

/// Leases that are being renewed by one call. If the task's runtime goes away they return to the schedule.
struct AtWork<'a> {
    renewer: &'a Renewer,
    number: u64,
    /// In the order of their renewals; `None`: no answer is waited for any more.
    leases: Vec<Option<Arc<Held>>>,
}

impl<'a> AtWork<'a> {
    fn new(renewer: &'a Renewer, leases: Vec<Arc<Held>>) -> Self {
        let mut schedule = renewer.lock();
        let number = schedule.next_number;
        schedule.next_number += 1;
        schedule.at_work.insert(number, leases.iter().map(Arc::downgrade).collect());
        drop(schedule);
        Self { renewer, number, leases: leases.into_iter().map(Some).collect() }
    }

    /// When the first of those that wait for an answer has no more use for it.
    fn patience(&self, renewals: &[Renewal]) -> Option<Instant> {
        let waiting = self.leases.iter().zip(renewals).filter(|(lease, _)| lease.is_some());
        waiting.map(|(_, renewal)| renewal.until).min()
    }

    /// Has those tried again whose patience is over, while the others wait on.
    fn give_up(&mut self, renewals: &[Renewal]) {
        let now = Instant::now();
        for (lease, _) in
            self.leases.iter_mut().zip(renewals).filter(|(_, renewal)| renewal.until <= now)
        {
            settle(lease, Err(Error::of(ErrorKind::Unknown)));
        }
    }

    /// Gives each its answer.
    fn settle(&mut self, answers: Vec<Result<Renewed, Error>>) {
        let mut answers = answers.into_iter();
        for lease in &mut self.leases {
            settle(lease, answers.next().unwrap_or_else(|| Err(Error::of(ErrorKind::Unknown))));
        }
    }
}

/// Gives a lease its answer, if it waits for one. It has its place in the schedule again then, or is over.
fn settle(lease: &mut Option<Arc<Held>>, answer: Result<Renewed, Error>) {
    if let Some(lease) = lease.take() {
        lease.on_renewed(answer, random::byte());
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.renewer.lock().at_work.remove(&self.number);
        for lease in self.leases.drain(..).flatten() {
            lease.schedule(Instant::now());
        }
    }
}
