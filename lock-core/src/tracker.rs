//! Counts what is under way, and waits until nothing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A counter that a task can wait on until it is zero.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    count: AtomicUsize,
    /// Whether a task has ever waited for zero. Until then no notification is needed.
    watched: AtomicBool,
    emptied: Notify,
}

/// One unit of a [`Tracker`]'s count, until it is dropped.
#[derive(Debug)]
pub(crate) struct TrackerToken(Arc<Tracker>);

impl Tracker {
    /// Counts one more.
    pub(crate) fn token(self: &Arc<Self>) -> TrackerToken {
        self.count.fetch_add(1, Ordering::AcqRel);
        TrackerToken(Arc::clone(self))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until the count is zero.
    pub(crate) async fn emptied(&self) {
        // SeqCst, with the decrement in `drop`: either this call sees zero, or the last token sees
        // that a task waits.
        self.watched.store(true, Ordering::SeqCst);
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl Drop for TrackerToken {
    fn drop(&mut self) {
        let last = self.0.count.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.watched.load(Ordering::SeqCst) {
            self.0.emptied.notify_waiters();
        }
    }
}
