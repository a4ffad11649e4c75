//! Those of this process who want one key, and what is known about it.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::handed::{Handed, Pledge};
use super::queue::Queue;
use super::{Address, NoSeat, Registry, Situation};
use crate::driver::Janitor;
use crate::store::{Name, RECENTLY, WaitEvent};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Deadline, Instant};

/// With less time than this a claim may not be answered before the wait is over, so that its outcome
/// would be unknown; that others of this process had the lock meanwhile is known.
const TIME_TO_ASK: Duration = Duration::from_millis(10);

/// One key's line. It exists while its seat is taken.
pub(crate) struct Line {
    registry: Arc<Registry>,
    address: Address,
    state: Mutex<State>,
}

struct State {
    situation: Situation,
    /// The last answer of the store, and until when it was true.
    before: Option<(Situation, Instant)>,
    queue: Queue,
    /// What the first in line was given and has not taken yet.
    call: Option<Call>,
    /// What those were told who are impatient and have not heard it yet.
    told: Vec<(u64, Situation)>,
    /// What wakes the one on the seat while it waits for the store.
    claimant: Option<Waker>,
}

/// What the first in line is given.
enum Call {
    Seat,
    Claim(Pledge),
    Lease(Handed),
}

/// What one who stands in line asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// Wants to know what the task on the seat achieves rather than stand behind it.
    pub(crate) impatient: bool,
    /// For how long it wants the lease.
    pub(crate) ttl: Duration,
    /// Whether it needs a fencing token.
    pub(crate) fencing: bool,
}

/// What one who stood in line gets.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The right to ask the store; with the claim of one who gave up, if there is one.
    Seat(Seat, Option<Pledge>),
    /// The lock itself, at this time, from another holder of this process.
    Lease(Seat, Handed, Instant),
}

/// The right to act on a key for this process.
pub(crate) struct Seat {
    line: Arc<Line>,
    /// Whether dropping it passes it on.
    live: bool,
}

impl Line {
    /// The line of a key that nobody wanted, and its seat.
    pub(super) fn begin(registry: Arc<Registry>, address: Address) -> (Arc<Self>, Seat) {
        let state = State {
            situation: Situation::Asking,
            before: None,
            queue: Queue::default(),
            call: None,
            told: Vec::new(),
            claimant: None,
        };
        let line = Arc::new(Self { registry, address, state: Mutex::new(state) });
        (Arc::clone(&line), Seat { line, live: true })
    }

    /// Joins the line, unless what is known is enough.
    pub(super) fn join(self: &Arc<Self>, wants: Wants) -> Result<Waiter, NoSeat> {
        let mut state = self.lock();
        if wants.impatient && state.situation.is_answer() {
            return Err(NoSeat::Taken(state.situation.clone()));
        }
        let place = state.queue.join(wants);
        drop(state);
        Ok(Waiter { line: Arc::clone(self), place, wants, stands: true })
    }

    /// What wakes those who wait in the line or before it.
    pub(super) fn wakers(&self) -> Vec<Waker> {
        let mut state = self.lock();
        let mut wakers = state.queue.wakers();
        wakers.extend(state.claimant.take());
        wakers
    }

    /// Whether certainly nobody waited a moment ago.
    fn is_empty(self: &Arc<Self>) -> bool {
        // Whoever waits has the line in hand, besides the registry and the seat.
        Arc::strong_count(self) <= 2
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the few lines that hold this lock leaves the line whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Calls the first in line to take `call`, by waking it if it sleeps.
    fn call(&mut self, call: Call) -> Option<Waker> {
        self.call = Some(call);
        if mutant!("unlock-wakes-nobody") {
            return None;
        }
        self.queue.first_waker()
    }

    /// Whether the one at `place` was called.
    fn is_called(&mut self, place: u64) -> bool {
        self.call.is_some() && self.queue.first().is_some_and(|(first, _)| first == place)
    }

    /// Notes what is going on, at `now` if the clock was read; gives what wakes those who wait for nothing more than that.
    fn set(&mut self, situation: Situation, now: Option<Instant>) -> Vec<(u64, Option<Waker>)> {
        if !matches!(situation, Situation::Busy(_) | Situation::Failed(_)) {
            // It does not wait for the store any more.
            self.claimant = None;
        }
        let old = std::mem::replace(&mut self.situation, situation);
        if old.is_answer() && !self.situation.is_answer() {
            self.before = Some((old, now.unwrap_or_else(Instant::now)));
        }
        if !self.situation.is_answer() {
            return Vec::new();
        }
        let told = self.queue.take_impatient();
        for (place, _) in &told {
            self.told.push((*place, self.situation.clone()));
        }
        told
    }

    /// What one who gives up now can be told.
    fn known(&self) -> Situation {
        match &self.before {
            Some((before, until))
                if !self.situation.is_answer()
                    && Instant::now() < until.saturating_add(RECENTLY) =>
            {
                before.clone()
            }
            _ => self.situation.clone(),
        }
    }
}

impl Seat {
    pub(super) fn name(&self) -> &Name {
        self.line.address.name()
    }

    pub(super) fn janitor(&self) -> &Arc<Janitor> {
        &self.line.registry.janitor
    }

    /// Whether the client drains; if not yet, the task of `cx` is woken when it does.
    pub(crate) fn is_drained(&self, cx: &Context<'_>) -> bool {
        let mut state = self.line.lock();
        let drained = self.line.registry.is_draining();
        if !drained {
            match &mut state.claimant {
                Some(set) => set.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        drained
    }

    /// Tells those who stand behind what is going on.
    pub(crate) fn set(&self, situation: Situation) {
        let told = self.line.lock().set(situation, None);
        wake(told);
    }

    /// The same for one who has just read the clock.
    pub(crate) fn set_at(&self, situation: Situation, now: Instant) {
        let told = self.line.lock().set(situation, Some(now));
        wake(told);
    }

    /// Passes on what a waiting claim reports.
    pub(crate) fn report(&self, progress: WaitEvent) {
        self.set(match progress {
            WaitEvent::Busy(left) => Situation::Busy(left),
            WaitEvent::Failed(error) => Situation::Failed(error),
        });
    }

    /// Gives the seat, and the lease with it, to the first in line, if that one may have it.
    pub(crate) fn hand_on(mut self, lease: Handed, now: Instant) -> Result<(), Self> {
        if self.line.is_empty() {
            return Err(self);
        }
        let mut state = self.line.lock();
        let suits = match state.queue.first() {
            // Those who wait while the client drains are told so.
            Some((_, wants)) => !self.line.registry.is_draining() && lease.suits(&wants, now),
            None => false,
        };
        if !suits {
            drop(state);
            return Err(self);
        }
        // The lock is held all the time, though its holder may not know it yet.
        state.situation = Situation::Held(lease.deadline);
        let waker = state.call(Call::Lease(lease));
        drop(state);
        self.live = false;
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Gives the seat to the first in line, and with it a claim to go on with.
    pub(super) fn pledge(mut self, pledge: Pledge) -> Result<(), Self> {
        if self.line.is_empty() {
            return Err(self);
        }
        let mut state = self.line.lock();
        if self.line.registry.is_draining() || state.queue.first().is_none() {
            drop(state);
            return Err(self);
        }
        state.claimant = None;
        let waker = state.call(Call::Claim(pledge));
        drop(state);
        self.live = false;
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// The seat goes to the next in line; with nobody there the key is forgotten.
    fn pass_on(&self) {
        let line = &self.line;
        if !line.is_empty() {
            let mut state = line.lock();
            // No answer, so there is nobody to tell.
            drop(state.set(Situation::Asking, None));
            if state.queue.first().is_some() {
                let waker = state.call(Call::Seat);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            }
        }
        // Newcomers find the line in the registry, so that has to be locked to be sure that none comes.
        let mut shard = line.registry.shard(&line.address);
        let mut state = line.lock();
        drop(state.set(Situation::Asking, None));
        let (waker, forgotten) = match state.queue.first() {
            Some(_) => (state.call(Call::Seat), None),
            None => (None, shard.remove(&line.address)),
        };
        drop(state);
        drop(shard);
        drop(forgotten);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn wake(waiters: Vec<(u64, Option<Waker>)>) {
    waiters.into_iter().filter_map(|(_, waker)| waker).for_each(Waker::wake);
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.live {
            self.pass_on();
        }
    }
}

/// One who stands in line. Whatever it was given and has not taken goes on when it is dropped.
pub(crate) struct Waiter {
    line: Arc<Line>,
    place: u64,
    wants: Wants,
    stands: bool,
}

impl Waiter {
    /// The seat, or the lease from the holder before. Waits in line until `until`, for ever if `None`.
    pub(crate) fn poll(
        &mut self,
        until: Option<Instant>,
        timer: Pin<&mut Deadline>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Turn, NoSeat>> {
        if let Poll::Ready(turn) = self.poll_turn(until, cx) {
            return Poll::Ready(turn);
        }
        ready!(timer.poll_at(until, cx));
        Poll::Ready(Err(NoSeat::Taken(self.line.lock().known())))
    }

    fn poll_turn(
        &mut self,
        until: Option<Instant>,
        cx: &Context<'_>,
    ) -> Poll<Result<Turn, NoSeat>> {
        let mut state = self.line.lock();
        // Read under the line's lock: `drain` sets it before it looks for whom to wake.
        if self.line.registry.is_draining() {
            return Poll::Ready(Err(NoSeat::Draining));
        }
        if let Some(index) = state.told.iter().position(|(place, _)| *place == self.place) {
            let (_, situation) = state.told.swap_remove(index);
            self.stands = false;
            return Poll::Ready(Err(NoSeat::Taken(situation)));
        }
        if !state.is_called(self.place) {
            state.queue.set_waker(self.place, cx.waker());
            return Poll::Pending;
        }
        match state.call.take() {
            None => Poll::Pending,
            Some(call @ (Call::Seat | Call::Claim(_))) => {
                let late = until.is_some_and(|until| until.remaining() < TIME_TO_ASK);
                let known = if late { Some(state.known()) } else { None };
                state.queue.leave(self.place);
                drop(state);
                self.stands = false;
                let seat = Seat { line: Arc::clone(&self.line), live: true };
                let pledge = if let Call::Claim(pledge) = call { Some(pledge) } else { None };
                match known {
                    // The seat goes to the next one, who has time for an answer.
                    Some(situation) => {
                        if let Some(pledge) = pledge {
                            pledge.pass_on(seat);
                        }
                        Poll::Ready(Err(NoSeat::Taken(situation)))
                    }
                    None => Poll::Ready(Ok(Turn::Seat(seat, pledge))),
                }
            }
            Some(Call::Lease(lease)) => {
                let now = Instant::now();
                let good = lease.is_good_for(&self.wants, now);
                if good {
                    state.queue.leave(self.place);
                    self.stands = false;
                } else {
                    // It was taken so late that it is as good as over. This one stays the first in line, and
                    // gets the seat behind the release.
                    state.queue.set_waker(self.place, cx.waker());
                }
                drop(state);
                let seat = Seat { line: Arc::clone(&self.line), live: true };
                if good {
                    return Poll::Ready(Ok(Turn::Lease(seat, lease, now)));
                }
                lease.give_back(seat, now);
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.stands {
            return;
        }
        let mut state = self.line.lock();
        let call = if state.is_called(self.place) { state.call.take() } else { None };
        state.queue.leave(self.place);
        state.told.retain(|(place, _)| *place != self.place);
        drop(state);
        let Some(call) = call else { return };
        let seat = Seat { line: Arc::clone(&self.line), live: true };
        match call {
            Call::Seat => drop(seat),
            Call::Claim(pledge) => pledge.pass_on(seat),
            Call::Lease(lease) => lease.pass_on(seat),
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("live", &self.live).finish_non_exhaustive()
    }
}
