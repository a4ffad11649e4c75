//! The tasks of this process that want one key, and what is known about the key.
//!
//! A [`WaitList`] exists while a task has the key's [`LocalTurn`]: the right to claim the key in
//! the store, to hold it, and to give it back. Other tasks queue behind the turn. At most one claim
//! per key and client is in the store.
//!
//! When the task with the turn is done, it assigns one of three things to the first waiter and
//! wakes it: the turn alone, the turn with a claim to go on with, or the turn with the lease
//! itself. The assignment stays here until the waiter is polled. If the waiter is dropped first, it
//! passes the assignment on. When no task waits, the list is removed from the registry under the
//! shard's lock, so that a newcomer finds either the list with its turn or no list.
//!
//! Meanwhile the task with the turn reports its [`Status`]. A waiter that does not want to wait for
//! another holder leaves at the first definite status. A waiter that gives up returns the last one.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use super::hand_off::{HandedClaim, HandedLease};
use super::map::ShardedMap;
use super::queue::LocalQueue;
use crate::activity::WaitingTasks;
use crate::driver::Releaser;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::lease::LeaseEnd;
use crate::options::ResolvedOptions;
use crate::store::{Name, RECENTLY, Release, Token, WaitEvent};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::time::Instant;

/// What the lists of a client share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) lists: ShardedMap<Arc<WaitList>>,
    pub(super) draining: AtomicBool,
    /// Gets the leases and claims that no local waiter takes.
    pub(super) releaser: Arc<Releaser<LocalTurn>>,
}

/// What is known about the task that has the turn.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    /// It has claimed the lock and has no reply yet.
    Claiming,
    /// It waits, and this is what it met last.
    Waiting(WaitEvent),
    /// It holds the lock until about this time.
    Held(Instant),
    /// It gives the lock back, which takes no longer than a round trip.
    Releasing,
}

/// Why a task did not get the turn.
#[derive(Debug)]
pub(crate) enum Rejected {
    /// Another task has it, and the caller did not wait, or waited long enough.
    Taken(Status),
    Draining,
}

/// The tasks that want one key.
pub(super) struct WaitList {
    shared: Arc<Shared>,
    name: Name,
    /// The label of the task that began the list: what readers may see of the name.
    label: &'static str,
    state: Mutex<ListState>,
}

pub(super) struct ListState {
    status: Status,
    /// The last definite status, and until when it held.
    previous: Option<(Status, Instant)>,
    pub(super) queue: LocalQueue,
    /// What the first waiter was given and has not taken yet.
    assigned: Option<Assignment>,
    /// Statuses for waiters that have left the queue and were not polled since, by their ids.
    notices: Vec<(u64, Status)>,
    /// Wakes the task with the turn while it waits for the store.
    claimant: Option<Waker>,
}

/// What the first waiter is given with the turn.
#[derive(Debug)]
pub(crate) enum Assignment {
    /// The turn alone: the right to claim the lock.
    Turn,
    /// The claim of a task that gave up.
    Claim(HandedClaim),
    /// The lock itself, from another holder of this process: enough was left of it at this time.
    Lease(HandedLease, Instant),
}

/// The right to act on a key for this process. Dropping it passes it on.
pub(crate) struct LocalTurn {
    list: Arc<WaitList>,
    /// Whether this value is still the turn: it may have been assigned to a waiter.
    live: bool,
}

impl Shared {
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

impl WaitList {
    /// The list of a key that no task of this process wanted, and its turn.
    pub(super) fn begin(
        shared: Arc<Shared>,
        name: Name,
        label: &'static str,
    ) -> (Arc<Self>, LocalTurn) {
        let state = ListState {
            status: Status::Claiming,
            previous: None,
            queue: LocalQueue::default(),
            assigned: None,
            notices: Vec::new(),
            claimant: None,
        };
        let list = Arc::new(Self { shared, name, label, state: Mutex::new(state) });
        (Arc::clone(&list), LocalTurn::of(list))
    }

    /// Joins the queue and returns the id of the waiter, unless the present status is all that
    /// the caller needs.
    pub(super) fn join(&self, options: ResolvedOptions) -> Result<u64, Rejected> {
        let mut state = self.lock();
        if !options.waits() && state.status.answers_a_try() {
            return Err(Rejected::Taken(state.status.clone()));
        }
        Ok(state.queue.join(options))
    }

    /// The wakers of all tasks that wait in the list, or for the store.
    pub(super) fn wakers(&self) -> Vec<Waker> {
        let mut state = self.lock();
        let mut wakers = state.queue.wakers();
        wakers.extend(state.claimant.take());
        wakers
    }

    /// How many tasks wait in the list, or for the store.
    pub(super) fn waiting(&self) -> Option<WaitingTasks> {
        let state = self.lock();
        // A waiter that was assigned the turn is still in the queue.
        let claims = state.assigned.is_none()
            && matches!(state.status, Status::Claiming | Status::Waiting(_));
        let tasks = state.queue.len() + usize::from(claims);
        drop(state);
        if tasks == 0 {
            return None;
        }
        let key = Key::labelled(self.name.key(), self.label).ok()?;
        Some(WaitingTasks::new(key, tasks))
    }

    pub(super) fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ListState> {
        // A panic in the few lines that hold this lock leaves the list whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether certainly no task waited a moment ago: each waiter keeps a reference to the list,
    /// besides the registry's and the turn's.
    fn is_empty(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= 2
    }
}

impl ListState {
    /// Takes what the waiter `id` was assigned.
    pub(super) fn take_assigned(&mut self, id: u64) -> Option<Assignment> {
        self.assigned.take_if(|_| self.queue.first().is_some_and(|(first, _)| first == id))
    }

    /// Takes the status that was left for the waiter `id`.
    pub(super) fn take_notice(&mut self, id: u64) -> Option<Status> {
        let index = self.notices.iter().position(|(waiter, _)| *waiter == id)?;
        Some(self.notices.swap_remove(index).1)
    }

    /// What a waiter that gives up now returns: the present status, or the one before if that is
    /// definite and recent.
    pub(super) fn known(&self) -> Status {
        match &self.previous {
            Some((previous, until))
                if !self.status.answers_a_try()
                    && Instant::now() < until.saturating_add(RECENTLY) =>
            {
                previous.clone()
            }
            _ => self.status.clone(),
        }
    }

    /// Gives `assignment` to the first waiter; returns its waker if it sleeps.
    fn assign(&mut self, assignment: Assignment) -> Option<Waker> {
        self.assigned = Some(assignment);
        self.queue.first_waker()
    }

    /// Sets the status at `now`, if the caller has read the clock. Returns the wakers of the
    /// waiters that needed no more than this.
    fn set_status(&mut self, status: Status, now: Option<Instant>) -> Vec<(u64, Option<Waker>)> {
        if !matches!(status, Status::Waiting(_)) {
            // The task with the turn no longer waits for the store.
            self.claimant = None;
        }
        let old = std::mem::replace(&mut self.status, status);
        if old.answers_a_try() && !self.status.answers_a_try() {
            self.previous = Some((old, now.unwrap_or_else(Instant::now)));
        }
        if !self.status.answers_a_try() {
            return Vec::new();
        }
        let leaving = self.queue.take_not_waiting();
        for (id, _) in &leaving {
            self.notices.push((*id, self.status.clone()));
        }
        leaving
    }
}

impl LocalTurn {
    /// The turn that a waiter of `list` was assigned.
    pub(super) fn of(list: Arc<WaitList>) -> Self {
        Self { list, live: true }
    }

    /// Whether the client drains. If not, the task of `cx` is woken when it starts to.
    pub(crate) fn is_draining(&self, cx: &Context<'_>) -> bool {
        let mut state = self.list.lock();
        let draining = self.list.is_draining();
        if !draining {
            match &mut state.claimant {
                Some(set) => set.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        draining
    }

    /// Tells the waiters behind this turn what is going on.
    pub(crate) fn set_status(&self, status: Status) {
        let leaving = self.list.lock().set_status(status, None);
        wake(leaving);
    }

    /// As [`set_status`](Self::set_status), for a caller that has just read the clock.
    pub(crate) fn set_status_at(&self, status: Status, now: Instant) {
        let leaving = self.list.lock().set_status(status, Some(now));
        wake(leaving);
    }

    /// Gives the turn and the lease to the first waiter, if that may have it; else returns both.
    pub(crate) fn hand_on(
        mut self,
        lease: HandedLease,
        now: Instant,
    ) -> Result<(), (Self, HandedLease)> {
        if self.list.is_empty() {
            return Err((self, lease));
        }
        let mut state = self.list.lock();
        let suits = match state.queue.first() {
            // Waiters of a draining client get an error instead.
            Some((_, options)) => !self.list.is_draining() && lease.suits(&options, now),
            None => false,
        };
        if !suits {
            drop(state);
            return Err((self, lease));
        }
        // The process holds the lock without a gap, though its next holder has not been polled yet.
        state.status = Status::Held(lease.confirmed_until);
        let waker = state.assign(Assignment::Lease(lease, now));
        drop(state);
        self.live = false;
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Gives the turn, and what was assigned with it, to the next waiter or back to the store.
    pub(super) fn pass_on(self, assignment: Assignment) {
        match assignment {
            // The drop passes the turn on.
            Assignment::Turn => drop(self),
            Assignment::Claim(claim) => self.pass_on_claim(claim),
            Assignment::Lease(lease, _) => {
                let now = Instant::now();
                if let Err((turn, lease)) = self.hand_on(lease, now) {
                    turn.give_back_lease(lease, now);
                }
            }
        }
    }

    /// Gives the lease back to the store. The next local waiter gets the turn behind the release.
    #[allow(clippy::needless_pass_by_value)] // it is given back once
    pub(super) fn give_back_lease(self, lease: HandedLease, now: Instant) {
        let HandedLease { token, chain, confirmed_until, label } = lease;
        let good_until = Some(confirmed_until).filter(|&until| now < until);
        let end = LeaseEnd { at: now, good_until, confirmed_until };
        self.release(token, label, chain.longest_ttl(), Some(end), now);
    }

    /// Hands the claim to the first waiter, or gives it back to the store if no task waits.
    pub(crate) fn pass_on_claim(self, claim: HandedClaim) {
        if let Err((turn, claim)) = self.hand_on_claim(claim) {
            turn.give_back_claim(claim);
        }
    }

    /// Gives the claim back to the store though another task may wait: that one gets the turn
    /// behind the release, and claims anew.
    #[allow(clippy::needless_pass_by_value)] // it is given back once
    pub(crate) fn give_back_claim(self, claim: HandedClaim) {
        let HandedClaim { token, longest_ttl, label } = claim;
        self.release(token, label, longest_ttl, None, Instant::now());
    }

    fn hand_on_claim(mut self, claim: HandedClaim) -> Result<(), (Self, HandedClaim)> {
        if self.list.is_empty() {
            return Err((self, claim));
        }
        let mut state = self.list.lock();
        if self.list.is_draining() || state.queue.first().is_none() {
            drop(state);
            return Err((self, claim));
        }
        state.claimant = None;
        let waker = state.assign(Assignment::Claim(claim));
        drop(state);
        self.live = false;
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Leaves the token to the releaser. The turn is passed on once the release is on its way.
    fn release(
        self,
        token: Token,
        label: &'static str,
        longest_ttl: Duration,
        end: Option<LeaseEnd>,
        now: Instant,
    ) {
        let releaser = Arc::clone(&self.list.shared.releaser);
        let release = Release::new(self.list.name.clone(), token, None);
        self.set_status_at(Status::Releasing, now);
        releaser.push(releaser.pending(release, Some(self), label, longest_ttl, end));
    }

    /// Gives the turn to the first waiter, or removes the key from the registry.
    fn end(&self) {
        let list = &self.list;
        if !list.is_empty() {
            let mut state = list.lock();
            // Not a definite status, so no waiter leaves.
            drop(state.set_status(Status::Claiming, None));
            if state.queue.first().is_some() {
                let waker = state.assign(Assignment::Turn);
                drop(state);
                waker.into_iter().for_each(Waker::wake);
                return;
            }
        }
        // Newcomers find the list in the registry, so the shard stays locked while the list is
        // looked at again.
        let mut shard = list.shared.lists.shard(&list.name);
        let mut state = list.lock();
        drop(state.set_status(Status::Claiming, None));
        let (waker, removed) = match state.queue.first() {
            Some(_) => (state.assign(Assignment::Turn), None),
            None => (None, shard.remove(&list.name)),
        };
        drop(state);
        drop(shard);
        drop(removed);
        waker.into_iter().for_each(Waker::wake);
    }
}

fn wake(waiters: Vec<(u64, Option<Waker>)>) {
    waiters.into_iter().filter_map(|(_, waker)| waker).for_each(Waker::wake);
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        if self.live {
            self.end();
        }
    }
}

impl Status {
    /// Whether a task that does not wait can return this instead of queueing.
    fn answers_a_try(&self) -> bool {
        match self {
            Self::Waiting(_) | Self::Held(_) => true,
            Self::Claiming | Self::Releasing => false,
        }
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Draining => Self::of(ErrorKind::Draining),
            Rejected::Taken(status) => status.into(),
        }
    }
}

impl From<Status> for Error {
    /// The error of a waiter that gives up at this status.
    fn from(status: Status) -> Self {
        match status {
            Status::Waiting(event) => event.into(),
            Status::Held(until) => Self::busy_here(until.remaining()),
            Status::Claiming | Status::Releasing => Self::plain(
                ErrorKind::Unknown,
                "the store did not reply in time to the claim or release that another task of this \
                 process sent first",
            ),
        }
    }
}

impl fmt::Debug for WaitList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitList").finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTurn").field("live", &self.live).finish_non_exhaustive()
    }
}
