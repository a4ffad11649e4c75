//! The clock that leases are measured with, and the one place that reads it.
//!
//! A lease is a promise about elapsed time, so the clock must count the time that the machine
//! spends suspended (the server's TTL keeps running) and must not follow the wall clock. Rust's own
//! `Instant` stops in suspend on Linux, so this module has its own [`Instant`]: `CLOCK_BOOTTIME` on
//! Linux and Android, `CLOCK_MONOTONIC_RAW` on Apple's systems, the performance counter on Windows.
//! Other systems use Rust's own: there a lease counts as valid for too long if the machine was
//! suspended in the meantime.
//!
//! With the feature `test-util`, code that runs under a *paused* tokio clock reads that clock, so
//! that tests can let leases expire without waiting. A running clock is never replaced.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::sync::Once;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::probe;

/// A point on the boot-time clock of this machine.
///
/// Comparable only with points of the same boot of the same machine. Kept in nanoseconds, enough
/// for 584 years. An `Option` of it takes no more room.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(NonZeroU64);

impl Instant {
    /// Reads the clock.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(feature = "test-util")]
        if let Some(paused) = paused::now() {
            return Self::from_origin(paused);
        }
        Self::from_origin(boot::elapsed())
    }

    /// The point `elapsed` after the clock's origin. On Linux, Android and Apple's systems the
    /// processes of one boot share the origin, unless the clock is paused for a test.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos(elapsed)))
    }

    /// This point moved `by` later, or the last point that can be represented.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This point moved `by` earlier, or the clock's origin.
    #[cfg(feature = "redis-quorum")]
    pub(crate) const fn saturating_sub(self, by: Duration) -> Self {
        match NonZeroU64::new(self.0.get().saturating_sub(nanos(by))) {
            Some(earlier) => Self(earlier),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// How long after `earlier` this point is; zero if it is not after it.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// How much of the time until this point is left; zero when it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_since(Self::now())
    }
}

const fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos() as u64)
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({:?})", Duration::from_nanos(self.0.get() - 1))
    }
}

/// The future took longer than it was given.
#[derive(Debug)]
pub(crate) struct Late;

/// Drives `future` until the boot-time clock shows `deadline`.
pub(crate) async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Late> {
    let mut future = pin!(future);
    loop {
        let left = deadline.remaining();
        match tokio::time::timeout(left, &mut future).await {
            Ok(output) => return Ok(output),
            Err(_) if deadline.remaining().is_zero() => return Err(Late),
            Err(_) => woken_early(left, deadline),
        }
    }
}

/// Sleeps until the boot-time clock shows `deadline`, even if tokio's timer does not count a
/// suspend, or tokio's clock is paused.
pub(crate) async fn sleep_until(deadline: Instant) {
    loop {
        let left = deadline.remaining();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
        woken_early(left, deadline);
    }
}

/// A timer for `left` has fired, perhaps long before `deadline`: then tokio's clock was paused
/// after the lock was taken. That is logged once, since no call is there to return it.
fn woken_early(left: Duration, deadline: Instant) {
    static LOGGED: Once = Once::new();
    if deadline.remaining() > left / 2 && left > NOT_EARLY {
        LOGGED.call_once(|| {
            tracing::error!(
                target: "lock_core",
                "timers of tokio fire long before their time: its clock is paused, which leases do \
                 not follow. Enable the feature `test-util` of `lock-core` in tests"
            );
        });
    }
}

/// Clocks that run differ by less.
const NOT_EARLY: Duration = Duration::from_millis(20);

/// Sleeps until `deadline`; for ever if there is none.
pub(crate) async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pin_project! {
    /// A timer that is set when it is first needed. Outside a runtime with timers it is never set:
    /// there a task depends on another wake-up.
    #[derive(Debug, Default)]
    pub(crate) struct Deadline {
        #[pin]
        timer: Option<Sleep>,
    }
}

impl Deadline {
    /// Ready when `left` returns `None`. It is called when the timer is set and when it fires, so
    /// that frequent polls do not read the clock.
    pub(crate) fn poll<F>(mut self: Pin<&mut Self>, mut left: F, cx: &mut Context<'_>) -> Poll<()>
    where
        F: FnMut() -> Option<Duration>,
    {
        loop {
            let mut timer = self.as_mut().project().timer;
            if timer.is_none() {
                let Some(left) = left() else { return Poll::Ready(()) };
                if !probe::has_timers_here() {
                    return Poll::Pending;
                }
                timer.set(Some(tokio::time::sleep(left)));
            }
            if let Some(set) = timer.as_mut().as_pin_mut() {
                ready!(set.poll(cx));
            }
            timer.set(None);
        }
    }

    /// Ready when `until` has passed; never ready if it is `None`.
    pub(crate) fn poll_at(
        self: Pin<&mut Self>,
        until: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(until) = until else { return Poll::Pending };
        self.poll(|| Some(until.remaining()).filter(|left| !left.is_zero()), cx)
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod boot {
    use std::time::Duration;

    use nix::time::ClockId;

    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    /// Apple's CLOCK_MONOTONIC follows wall-clock adjustments; the raw clock does not. Both count
    /// sleep.
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW);

    /// By the C library. A program that reads the vDSO by itself, as rustix does, crashes under
    /// valgrind, which replaces the vDSO (rustix#1559).
    pub(super) fn elapsed() -> Duration {
        let now = CLOCK.now().expect("BUG: the clock exists on every supported system");
        Duration::from(now)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod boot {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    // Windows' performance counter counts sleep, so the standard clock is right. On other systems
    // it may not count it.
    #[allow(clippy::disallowed_methods)]
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn elapsed() -> Duration {
        ORIGIN.elapsed()
    }
}

#[cfg(feature = "test-util")]
mod paused {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    #[allow(clippy::disallowed_methods)]
    static ANCHOR: LazyLock<(Instant, Duration)> =
        LazyLock::new(|| (Instant::now(), super::boot::elapsed()));

    /// The time of a paused tokio clock, placed on the boot-time axis; `None` if the clock runs.
    ///
    /// tokio has no call for whether its clock is paused, but two readings of a paused clock are
    /// equal. Two equal readings of a running clock do no harm: it has the same place on the axis,
    /// unless the machine was suspended since the anchor was read.
    pub(super) fn now() -> Option<Duration> {
        tokio::runtime::Handle::try_current().ok()?;
        let (first, second) = (tokio::time::Instant::now(), tokio::time::Instant::now());
        if first != second {
            return None;
        }
        let (std, boot) = *ANCHOR;
        let here = first.into_std();
        Some(match here.checked_duration_since(std) {
            Some(later) => boot + later,
            None => boot.saturating_sub(std.saturating_duration_since(here)),
        })
    }
}
