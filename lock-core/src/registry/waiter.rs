//! A task that waits in a [`WaitList`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::wait_list::{Assignment, LocalTurn, Rejected, WaitList};
use crate::options::ResolvedOptions;
use crate::time::{Deadline, Instant};

/// A claim needs at least this long to get a reply. With less time left, a waiter gives up instead
/// of claiming: its outcome would be unknown, while what the task before it learned is known.
const TIME_TO_CLAIM: Duration = Duration::from_millis(10);

/// A waiter in the queue. What it was assigned and has not taken is passed on when it is dropped.
pub(crate) struct LocalWaiter {
    list: Arc<WaitList>,
    id: u64,
    options: ResolvedOptions,
    queued: bool,
}

impl LocalWaiter {
    pub(super) fn join(list: &Arc<WaitList>, options: ResolvedOptions) -> Result<Self, Rejected> {
        let id = list.join(options)?;
        Ok(Self { list: Arc::clone(list), id, options, queued: true })
    }

    /// Waits for the turn, and for what is assigned with it; until `until`, for ever if `None`.
    pub(crate) fn poll(
        &mut self,
        until: Option<Instant>,
        timer: Pin<&mut Deadline>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(LocalTurn, Assignment), Rejected>> {
        if let Poll::Ready(taken) = self.poll_assignment(until, cx) {
            return Poll::Ready(taken);
        }
        ready!(timer.poll_at(until, cx));
        Poll::Ready(Err(Rejected::Taken(self.list.lock().known())))
    }

    fn poll_assignment(
        &mut self,
        until: Option<Instant>,
        cx: &Context<'_>,
    ) -> Poll<Result<(LocalTurn, Assignment), Rejected>> {
        let mut state = self.list.lock();
        // Read under the list's lock: `drain` sets it before it collects the wakers.
        if self.list.is_draining() {
            return Poll::Ready(Err(Rejected::Draining));
        }
        if let Some(status) = state.take_notice(self.id) {
            self.queued = false;
            return Poll::Ready(Err(Rejected::Taken(status)));
        }
        let Some(assignment) = state.take_assigned(self.id) else {
            state.queue.set_waker(self.id, cx.waker());
            return Poll::Pending;
        };
        let (assignment, late) = match assignment {
            Assignment::Lease(lease, _) => {
                let now = Instant::now();
                if !lease.is_good_for(&self.options, now) {
                    // Polled so late that too little is left of the lease. This waiter stays the
                    // first, and gets the turn behind the release.
                    state.queue.set_waker(self.id, cx.waker());
                    drop(state);
                    LocalTurn::of(Arc::clone(&self.list)).give_back_lease(lease, now);
                    return Poll::Pending;
                }
                (Assignment::Lease(lease, now), false)
            }
            to_claim @ (Assignment::Turn | Assignment::Claim(_)) => {
                (to_claim, until.is_some_and(|until| until.remaining() < TIME_TO_CLAIM))
            }
        };
        let known = late.then(|| state.known());
        state.queue.leave(self.id);
        drop(state);
        self.queued = false;
        let turn = LocalTurn::of(Arc::clone(&self.list));
        let Some(status) = known else { return Poll::Ready(Ok((turn, assignment))) };
        // The turn goes to the next waiter, which has time for a reply.
        turn.pass_on(assignment);
        Poll::Ready(Err(Rejected::Taken(status)))
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        if !self.queued {
            return;
        }
        let mut state = self.list.lock();
        let assigned = state.take_assigned(self.id);
        state.queue.leave(self.id);
        drop(state.take_notice(self.id));
        drop(state);
        if let Some(assigned) = assigned {
            LocalTurn::of(Arc::clone(&self.list)).pass_on(assigned);
        }
    }
}
