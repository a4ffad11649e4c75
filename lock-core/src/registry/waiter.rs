//! A task that waits in a [`WaitList`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::hand_off::{HandedClaim, HandedLease};
use super::wait_list::{Assignment, LocalTurn, Rejected, WaitList};
use crate::options::ResolvedOptions;
use crate::time::{Deadline, Instant};

/// A claim needs at least this long to get a reply. With less time left, a waiter gives up instead
/// of claiming: its outcome would be unknown, while what the task before it learned is known.
const TIME_TO_CLAIM: Duration = Duration::from_millis(10);

/// What a waiter gets.
#[derive(Debug)]
pub(crate) enum Wakeup {
    /// The right to claim the lock; with the claim of a task that gave up, if there is one.
    Turn(LocalTurn, Option<HandedClaim>),
    /// The lock itself, from another holder of this process, taken at this time.
    Lease(LocalTurn, HandedLease, Instant),
}

/// A place in the queue. What it was assigned and has not taken is passed on when it is dropped.
pub(crate) struct LocalWaiter {
    list: Arc<WaitList>,
    place: u64,
    options: ResolvedOptions,
    queued: bool,
}

impl LocalWaiter {
    pub(super) fn join(list: &Arc<WaitList>, options: ResolvedOptions) -> Result<Self, Rejected> {
        let place = list.join(options)?;
        Ok(Self { list: Arc::clone(list), place, options, queued: true })
    }

    /// Waits for the turn, or for the lease of the holder before; until `until`, for ever if
    /// `None`.
    pub(crate) fn poll(
        &mut self,
        until: Option<Instant>,
        timer: Pin<&mut Deadline>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Wakeup, Rejected>> {
        if let Poll::Ready(wakeup) = self.poll_wakeup(until, cx) {
            return Poll::Ready(wakeup);
        }
        ready!(timer.poll_at(until, cx));
        Poll::Ready(Err(Rejected::Taken(self.list.lock().known())))
    }

    fn poll_wakeup(
        &mut self,
        until: Option<Instant>,
        cx: &Context<'_>,
    ) -> Poll<Result<Wakeup, Rejected>> {
        let mut state = self.list.lock();
        // Read under the list's lock: `drain` sets it before it collects the wakers.
        if self.list.is_draining() {
            return Poll::Ready(Err(Rejected::Draining));
        }
        if let Some(index) = state.notices.iter().position(|(place, _)| *place == self.place) {
            let (_, status) = state.notices.swap_remove(index);
            self.queued = false;
            return Poll::Ready(Err(Rejected::Taken(status)));
        }
        if !state.is_assigned(self.place) {
            state.queue.set_waker(self.place, cx.waker());
            return Poll::Pending;
        }
        let claim = match state.assigned.take() {
            None => return Poll::Pending,
            Some(Assignment::Nothing) => None,
            Some(Assignment::Claim(claim)) => Some(claim),
            Some(Assignment::Lease(lease)) => {
                let now = Instant::now();
                let good = lease.is_good_for(&self.options, now);
                if good {
                    state.queue.leave(self.place);
                    self.queued = false;
                } else {
                    // Polled so late that too little is left of the lease. This waiter stays the
                    // first, and gets the turn behind the release.
                    state.queue.set_waker(self.place, cx.waker());
                }
                drop(state);
                let turn = LocalTurn::of(Arc::clone(&self.list));
                if good {
                    return Poll::Ready(Ok(Wakeup::Lease(turn, lease, now)));
                }
                turn.give_back_lease(lease, now);
                return Poll::Pending;
            }
        };
        let late = until.is_some_and(|until| until.remaining() < TIME_TO_CLAIM);
        let known = if late { Some(state.known()) } else { None };
        state.queue.leave(self.place);
        drop(state);
        self.queued = false;
        let turn = LocalTurn::of(Arc::clone(&self.list));
        match known {
            None => Poll::Ready(Ok(Wakeup::Turn(turn, claim))),
            // The turn goes to the next waiter, which has time for a reply.
            Some(status) => {
                if let Some(claim) = claim {
                    turn.pass_on_claim(claim);
                }
                Poll::Ready(Err(Rejected::Taken(status)))
            }
        }
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        if !self.queued {
            return;
        }
        let mut state = self.list.lock();
        let assigned = if state.is_assigned(self.place) { state.assigned.take() } else { None };
        state.queue.leave(self.place);
        state.notices.retain(|(place, _)| *place != self.place);
        drop(state);
        let Some(assigned) = assigned else { return };
        let turn = LocalTurn::of(Arc::clone(&self.list));
        match assigned {
            Assignment::Nothing => drop(turn),
            Assignment::Claim(claim) => turn.pass_on_claim(claim),
            Assignment::Lease(lease) => turn.pass_on_lease(lease),
        }
    }
}
