//! Who wants to know when a lease ends.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use crate::error::LostReason;
use crate::held::Lease;
use crate::time::Deadline;

/// A task's interest in the end of a lease; gone when dropped, so that those who come and go leave nothing.
#[derive(Debug)]
pub(crate) struct Watch {
    lease: Lease,
    place: Option<u64>,
}

impl Watch {
    pub(crate) fn new(lease: Lease) -> Self {
        Self { lease, place: None }
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Ready when the lease is over. Wakes the task of `cx` then: when somebody says so, and by `deadline`, which is
    /// more exact than the renewer's schedule.
    pub(crate) fn poll_end(
        &mut self,
        deadline: Pin<&mut Deadline>,
        cx: &mut Context<'_>,
    ) -> Poll<LostReason> {
        if let Some(reason) = self.lease.0.watch(&mut self.place, cx) {
            return Poll::Ready(reason);
        }
        let mut end = LostReason::Expired;
        let held = &self.lease.0;
        ready!(deadline.poll(|| held.observe().map_err(|reason| end = reason).ok(), cx));
        Poll::Ready(end)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.lease.0.unwatch(place);
        }
    }
}

/// Tasks to wake; the first without an allocation, for mostly there is one.
#[derive(Default)]
pub(crate) struct Watchers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
    next_place: u64,
}

impl Watchers {
    /// Has `waker` woken, at its `place` if it has one already.
    pub(crate) fn register(&mut self, place: &mut Option<u64>, waker: &Waker) {
        if let Some(set) = place.and_then(|place| self.find(place)) {
            set.clone_from(waker);
            return;
        }
        let watcher = (self.next_place, waker.clone());
        *place = Some(self.next_place);
        self.next_place += 1;
        match &self.first {
            None => self.first = Some(watcher),
            Some(_) => self.more.push(watcher),
        }
    }

    pub(crate) fn remove(&mut self, place: u64) {
        self.first.take_if(|(watcher, _)| *watcher == place);
        self.more.retain(|(watcher, _)| *watcher != place);
    }

    pub(crate) fn wake(self) {
        for (_, waker) in self.first.into_iter().chain(self.more) {
            waker.wake();
        }
    }

    fn find(&mut self, place: u64) -> Option<&mut Waker> {
        let mut all = self.first.iter_mut().chain(&mut self.more);
        all.find(|(watcher, _)| *watcher == place).map(|(_, waker)| waker)
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }
}
