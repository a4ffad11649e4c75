//! A future that cannot outlive its lease.
//!
//! A timer or `select!` around a body polls it once more after a late wake-up: both look at the body
//! first or at random. Here the clock is read before each poll, so no poll *starts* at or after the
//! deadline. (What one poll does, and how long it takes, is the body's own affair.)

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tracing::Span;
use tracing::field::Empty;

use crate::error::{Error, LostReason};
use crate::held::Lease;
use crate::scope::Scoped;
use crate::time::Deadline;
use crate::watch::Watch;

pin_project! {
    /// Drives a future while its lease is good; made by [`MutexGuard::run_until_lost`](crate::MutexGuard::run_until_lost).
    ///
    /// On loss the future is dropped, at an await, before the error is given.
    #[must_use = "futures do nothing unless polled"]
    pub struct RunUntilLost<F> {
        watch: Watch,
        #[pin]
        body: Option<Scoped<F>>,
        #[pin]
        deadline: Deadline,
        // Not entered while the body runs: what the body records belongs to the span that its author sees.
        span: Span,
    }
}

impl<F> RunUntilLost<F> {
    pub(crate) fn new(lease: Lease, body: Scoped<F>) -> Self {
        let span = tracing::debug_span!(
            target: "lock_core", "lock.held",
            key = lease.key().label(), fence = lease.fencing_token().get(), held = Empty, outcome = Empty,
        );
        Self { watch: Watch::new(lease), body: Some(body), deadline: Deadline::default(), span }
    }
}

impl<F: Future> Future for RunUntilLost<F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Err(reason) = this.watch.lease().0.observe()
            && !mutant!("body-beside-a-timer")
        {
            return Poll::Ready(Err(end(this.body, this.watch, this.span, reason)));
        }
        let body = this.body.as_mut().as_pin_mut().expect("BUG: polled after it was ready");
        if let Poll::Ready(output) = body.poll(cx) {
            this.body.set(None);
            report(this.watch, this.span, "done");
            return Poll::Ready(Ok(output));
        }
        // Only now, for most bodies that never wait need no timer: whatever happened meanwhile is seen here.
        let reason = ready!(this.watch.poll_end(this.deadline, cx));
        Poll::Ready(Err(end(this.body, this.watch, this.span, reason)))
    }
}

/// Drops the body, for the lease is over.
fn end<F>(
    mut body: Pin<&mut Option<Scoped<F>>>,
    watch: &Watch,
    span: &Span,
    reason: LostReason,
) -> Error {
    body.set(None);
    report(watch, span, "lost");
    Error::lost(reason)
}

fn report(watch: &Watch, span: &Span, outcome: &'static str) {
    if !span.is_disabled() {
        let (key, held) = (watch.lease().key().label(), watch.lease().0.held_for());
        span.record("held", tracing::field::debug(held));
        span.record("outcome", outcome);
        span.in_scope(|| tracing::debug!(target: "lock_core", key, ?held, outcome, "body ended"));
    }
}

impl<F> fmt::Debug for RunUntilLost<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunUntilLost").field("lease", self.watch.lease()).finish_non_exhaustive()
    }
}
