//! A future that cannot outlive its lease.
//!
//! A timer or `select!` around a body may poll the body once more after a late wake-up: it polls
//! the body first, or in random order. Here the clock is read before each poll, so no poll *starts*
//! at or after the deadline. How long one poll takes is up to the body.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tracing::Span;
use tracing::field::Empty;

use crate::error::{Error, LostReason};
use crate::held::{Lease, LostWatch, Scoped};
use crate::time::Deadline;

pin_project! {
    /// Drives a future while its lease is good; made by
    /// [`MutexGuard::run_until_lost`](crate::MutexGuard::run_until_lost).
    ///
    /// On loss the future is dropped, at an await, before the error is returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the future. The guard keeps the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let guard = client.mutex("sum").lock().await?;
    /// let sum = guard.run_until_lost(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub struct RunUntilLost<F> {
        watch: LostWatch,
        #[pin]
        body: Option<Scoped<F>>,
        #[pin]
        deadline: Deadline,
        // Not entered while the body runs: the body's own records belong to its caller's span.
        span: Span,
    }
}

impl<F> RunUntilLost<F> {
    pub(crate) fn new(lease: Lease, body: Scoped<F>) -> Self {
        let span = tracing::debug_span!(
            target: "lock_core", "lock.held",
            key = lease.key().label(), fence = lease.fencing_token().get(), held_seconds = Empty, outcome = Empty,
        );
        Self {
            watch: LostWatch::new(lease.0),
            body: Some(body),
            deadline: Deadline::default(),
            span,
        }
    }
}

impl<F: Future> Future for RunUntilLost<F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Err(reason) = this.watch.lease().observe() {
            return Poll::Ready(Err(end(this.body, this.watch, this.span, reason)));
        }
        let body = this.body.as_mut().as_pin_mut().expect("BUG: polled after it was ready");
        if let Poll::Ready(output) = body.poll(cx) {
            this.body.set(None);
            report(this.watch, this.span, "done");
            return Poll::Ready(Ok(output));
        }
        // Only after the first poll: a body that never waits needs no timer. What happened
        // meanwhile is noticed here.
        let reason = ready!(this.watch.poll_lost(this.deadline, cx));
        Poll::Ready(Err(end(this.body, this.watch, this.span, reason)))
    }
}

/// Drops the body of a lease that has ended.
fn end<F>(
    mut body: Pin<&mut Option<Scoped<F>>>,
    watch: &LostWatch,
    span: &Span,
    reason: LostReason,
) -> Error {
    body.set(None);
    report(watch, span, "lost");
    Error::lost(reason)
}

fn report(watch: &LostWatch, span: &Span, outcome: &'static str) {
    if !span.is_disabled() {
        let key = watch.lease().key.label();
        let held_seconds = watch.lease().held_for().as_secs_f64();
        span.record("held_seconds", held_seconds);
        span.record("outcome", outcome);
        span.in_scope(
            || tracing::debug!(target: "lock_core", key, held_seconds, outcome, "body ended"),
        );
    }
}

impl<F> fmt::Debug for RunUntilLost<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunUntilLost").field("lease", self.watch.lease()).finish_non_exhaustive()
    }
}
