//! Whether a body is polled after its lease.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lock_core::Lease;
use lock_testkit::history::now;

/// Counts the polls of a body that begin when its lease is over already.
///
/// The body itself cannot check the clock: if the process is stopped in the middle of a poll that
/// began in time, the body finds its lease over through no fault of the lock.
#[derive(Clone, Default)]
pub(crate) struct Polls(Arc<Shared>);

#[derive(Default)]
struct Shared {
    lease: OnceLock<Lease>,
    /// Whether it was over before the poll that is under way.
    is_over: AtomicBool,
    /// When that poll began, as `now` gives it.
    since: AtomicU64,
    late: AtomicU64,
}

impl Polls {
    /// Drives the future that polls the body, and checks the lease before each poll.
    pub(crate) async fn of<F: Future>(&self, bound: F) -> F::Output {
        let mut bound = pin!(bound);
        poll_fn(|cx| {
            let is_over = self.0.lease.get().is_some_and(|lease| !lease.is_valid());
            self.0.is_over.store(is_over, Ordering::Relaxed);
            let since = u64::try_from(now()).unwrap_or(u64::MAX);
            self.0.since.store(since, Ordering::Relaxed);
            bound.as_mut().poll(cx)
        })
        .await
    }

    /// The body begins, under this lease.
    pub(crate) fn begin(&self, lease: &Lease) {
        assert!(self.0.lease.set(lease.clone()).is_ok(), "one body each");
    }

    /// Whether the body has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.lease.get().is_some()
    }

    /// When the poll that is under way began.
    pub(crate) fn since(&self) -> u128 {
        u128::from(self.0.since.load(Ordering::Relaxed))
    }

    /// The body has been polled. Returns whether the poll was late.
    pub(crate) fn polled(&self) -> bool {
        let is_late = self.0.is_over.load(Ordering::Relaxed);
        self.0.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
        is_late
    }

    pub(crate) fn late(&self) -> u64 {
        self.0.late.load(Ordering::Relaxed)
    }
}
