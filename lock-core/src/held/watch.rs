//! Waiting for the end of a lease.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::inner::LeaseInner;
use crate::error::LostReason;
use crate::time::Deadline;

/// A task's registration with a lease. Removed when dropped, so that tasks that come and go leave
/// nothing behind.
#[derive(Debug)]
pub(crate) struct LostWatch {
    lease: Arc<LeaseInner>,
    id: Option<u64>,
}

impl LostWatch {
    pub(crate) fn new(lease: Arc<LeaseInner>) -> Self {
        Self { lease, id: None }
    }

    pub(crate) fn lease(&self) -> &Arc<LeaseInner> {
        &self.lease
    }

    /// Ready when the lease has ended. Until then the task of `cx` is woken when an event ends the
    /// lease, and by `deadline`, which is more exact than the renewer's schedule.
    pub(crate) fn poll_lost(
        &mut self,
        deadline: Pin<&mut Deadline>,
        cx: &mut Context<'_>,
    ) -> Poll<LostReason> {
        if let Some(reason) = self.lease.watch(&mut self.id, cx) {
            return Poll::Ready(reason);
        }
        let mut end = LostReason::Expired;
        let lease = &self.lease;
        ready!(deadline.poll(|| lease.observe().map_err(|reason| end = reason).ok(), cx));
        Poll::Ready(end)
    }
}

impl Drop for LostWatch {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.lease.unwatch(id);
        }
    }
}
