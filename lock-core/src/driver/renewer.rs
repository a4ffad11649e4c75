//! One task that renews all leases of a client, in the order in which they are due.
//!
//! Leases that are due at about the same time go to the store in one call; each has its own reply.
//! A renewal that fails does not delay another. If one hangs, the others wait only as long as
//! leaves each of them time for another try. The same schedule ends leases that are not renewed, so
//! that their watchers and the tasks that wait for their keys learn of it on time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::activity::HeldLock;
use crate::error::{Error, ErrorKind, LostReason};
use crate::fencing::FencingToken;
use crate::metrics;
use crate::random;
use crate::store::{Renewal, Renewed, Store, Token};
use crate::time::{Instant, Late, sleep_until_some, timeout_at};

/// A lease as the renewer sees it.
pub(crate) trait Renewable: Send + Sync {
    /// What to do now that the lease is due.
    fn on_due(self: Arc<Self>) -> OnDue;

    /// Takes the reply to the renewal, and schedules the lease again unless it has ended.
    fn on_renewed(self: Arc<Self>, reply: Result<Renewed, Error>, jitter: u8);

    /// Schedules the lease for `at`.
    fn schedule(self: Arc<Self>, at: Instant);

    /// Whether the next due time is a regular renewal, which may as well be sent a little earlier.
    fn may_renew_early(&self) -> bool;

    /// Its fencing token, if it is held with `token`.
    fn holds(&self, token: Token) -> Option<FencingToken>;

    /// What a reader may know of it, unless it has ended.
    fn describe(&self) -> Option<HeldLock>;

    /// Ends the lease for `reason`, unless it has ended.
    fn lose(&self, reason: LostReason);
}

/// What the renewer does with a lease that is due.
pub(crate) enum OnDue {
    /// Nothing: it has ended.
    Forget,
    /// Looks at it again at that time.
    LookAgain(Instant),
    Renew(Renewal),
}

/// An entry of the schedule.
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
#[derive(Default)]
pub(crate) struct Renewer {
    schedule: Mutex<RenewalSchedule>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Default)]
struct RenewalSchedule {
    leases: BTreeMap<Due, Weak<dyn Renewable>>,
    /// Leases that are being renewed, by the number of the call that renews them.
    in_flight: BTreeMap<u64, Vec<Weak<dyn Renewable>>>,
    /// Leases on their way from `leases` to `in_flight`.
    taken: Vec<Weak<dyn Renewable>>,
    next_number: u64,
    /// Until when the task sleeps; `None`: until it is notified.
    asleep_until: Option<Instant>,
}

/// What is due within this span is renewed now: a wake-up for each costs more than renewing early.
const AHEAD: Duration = Duration::from_millis(20);
/// Renewals with less time than this go in calls of their own, so that they get their reply however
/// long others take. Renewals with more time share calls: within it a store has usually connected
/// or given up, and where it takes longer they lose one of several tries.
const PRESSING: Duration = Duration::from_secs(2);
/// Renewals per call to the store.
const BATCH: usize = 256;

impl std::fmt::Debug for Renewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewer").finish_non_exhaustive()
    }
}

impl Renewer {
    /// Calls [`on_due`](Renewable::on_due) of `lease` at `at`.
    pub(crate) fn schedule(&self, lease: Weak<dyn Renewable>, at: Instant) -> Due {
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

    /// All leases, each once, those that are being renewed included.
    pub(crate) fn leases(&self) -> Vec<Arc<dyn Renewable>> {
        let schedule = self.lock();
        let in_flight = schedule.in_flight.values().flatten().chain(&schedule.taken);
        let leases = schedule.leases.values().chain(in_flight).filter_map(Weak::upgrade);
        let mut leases: Vec<_> = leases.collect();
        drop(schedule);
        // One is in flight and scheduled again until all of its batch are.
        let address = |lease: &Arc<dyn Renewable>| Arc::as_ptr(lease).cast::<()>();
        leases.sort_unstable_by_key(address);
        leases.dedup_by_key(|lease| address(lease));
        leases
    }

    /// No more leases will come. The task ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The renewer's task.
    pub(crate) async fn run(self: Arc<Self>, store: Arc<dyn Store>) {
        let mut in_flight = FuturesUnordered::new();
        while !self.closed.load(Ordering::Acquire) {
            let now = Instant::now();
            // A lease with little time does not wait for the replies of leases with more.
            let (mut due, pressing): (Vec<_>, Vec<_>) = self
                .take_due()
                .into_iter()
                .partition(|(_, renewal)| renewal.until.saturating_since(now) >= PRESSING);
            in_flight.extend(pressing.into_iter().map(|one| self.renew(vec![one], &*store)));
            while !due.is_empty() {
                let rest = due.split_off(due.len().min(BATCH));
                in_flight.push(self.renew(due, &*store));
                due = rest;
            }
            self.lock().taken.clear();
            let next = self.next();
            tokio::select! {
                biased;
                Some(()) = in_flight.next() => {}
                () = sleep_until_some(next) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Renews leases that were taken out of the schedule. They count as in flight from now on, not
    /// from the first poll.
    fn renew<'a>(
        &'a self,
        due: Vec<(Arc<dyn Renewable>, Renewal)>,
        store: &'a dyn Store,
    ) -> impl Future<Output = ()> + use<'a> {
        let (leases, renewals): (Vec<_>, Vec<_>) = due.into_iter().unzip();
        let mut in_flight = InFlight::new(self, leases);
        async move {
            let mut call = store.renew(&renewals);
            let replies = loop {
                let Some(until) = in_flight.patience(&renewals) else { break Vec::new() };
                match timeout_at(until, &mut call).await {
                    Ok(replies) => break replies,
                    // The call returns when the last of its renewals has a reply, which may have
                    // far more time.
                    Err(Late) => in_flight.give_up(&renewals),
                }
            };
            in_flight.resolve(replies);
        }
    }

    /// Takes the leases that are due out of the schedule. They stay in `taken` until they are in
    /// flight or scheduled again.
    fn take_due(&self) -> Vec<(Arc<dyn Renewable>, Renewal)> {
        let horizon = Instant::now();
        let mut renewals = Vec::new();
        loop {
            let lease = {
                let mut schedule = self.lock();
                let Some(first) = schedule.leases.first_entry() else { return renewals };
                if first.key().at > horizon.saturating_add(AHEAD) {
                    return renewals;
                }
                let (at, early) = (first.key().at, first.key().at > horizon);
                match first.get().upgrade() {
                    // Regular renewals may be sent early. Deadlines and the pause before a retry
                    // are exact.
                    Some(lease) if early && !lease.may_renew_early() => return renewals,
                    lease => {
                        let gone = first.remove();
                        schedule.taken.push(gone);
                        lease.map(|lease| (lease, at))
                    }
                }
            };
            let Some((lease, at)) = lease else { continue };
            match Arc::clone(&lease).on_due() {
                OnDue::Forget => {}
                OnDue::LookAgain(at) => lease.schedule(at),
                OnDue::Renew(renewal) => {
                    metrics::renewal_late(horizon.saturating_since(at));
                    renewals.push((lease, renewal));
                }
            }
        }
    }

    /// When to wake up next. From now on a lease that is due earlier notifies the task.
    fn next(&self) -> Option<Instant> {
        let mut schedule = self.lock();
        schedule.asleep_until = schedule.leases.first_key_value().map(|(due, _)| due.at);
        schedule.asleep_until
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RenewalSchedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leases that one call renews. If the task's runtime shuts down, they return to the schedule.
struct InFlight<'a> {
    renewer: &'a Renewer,
    number: u64,
    /// In the order of their renewals; `None`: the reply is no longer awaited.
    leases: Vec<Option<Arc<dyn Renewable>>>,
}

impl<'a> InFlight<'a> {
    fn new(renewer: &'a Renewer, leases: Vec<Arc<dyn Renewable>>) -> Self {
        let mut schedule = renewer.lock();
        let number = schedule.next_number;
        schedule.next_number += 1;
        schedule.in_flight.insert(number, leases.iter().map(Arc::downgrade).collect());
        drop(schedule);
        Self { renewer, number, leases: leases.into_iter().map(Some).collect() }
    }

    /// The earliest time at which a reply that is awaited becomes useless.
    fn patience(&self, renewals: &[Renewal]) -> Option<Instant> {
        let waiting = self.leases.iter().zip(renewals).filter(|(lease, _)| lease.is_some());
        waiting.map(|(_, renewal)| renewal.until).min()
    }

    /// Gives up the renewals whose time is over, so that they are tried again; the others go on.
    fn give_up(&mut self, renewals: &[Renewal]) {
        let now = Instant::now();
        for (lease, _) in
            self.leases.iter_mut().zip(renewals).filter(|(_, renewal)| renewal.until <= now)
        {
            resolve(lease, Err(Error::of(ErrorKind::Unknown)));
        }
    }

    /// Gives each lease its reply.
    fn resolve(&mut self, replies: Vec<Result<Renewed, Error>>) {
        let mut replies = replies.into_iter();
        for lease in &mut self.leases {
            resolve(lease, replies.next().unwrap_or_else(|| Err(Error::of(ErrorKind::Unknown))));
        }
    }
}

/// Gives a lease its reply, if it awaits one. It is then scheduled again, or has ended.
fn resolve(lease: &mut Option<Arc<dyn Renewable>>, reply: Result<Renewed, Error>) {
    if let Some(lease) = lease.take() {
        lease.on_renewed(reply, random::byte());
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.renewer.lock().in_flight.remove(&self.number);
        for lease in self.leases.drain(..).flatten() {
            lease.schedule(Instant::now());
        }
    }
}
