//! The clock by which leases are judged, and the one place that reads it.
//!
//! A lease is a promise about elapsed time, so the clock must count the time that the machine
//! spends suspended (the server's TTL runs on meanwhile) and must not follow the wall clock. Rust's
//! own `Instant` stops in suspend on Linux, hence [`Instant`] here: `CLOCK_BOOTTIME` on Linux and
//! Android, `CLOCK_MONOTONIC_RAW` on Apple's systems, the performance counter on Windows. Other
//! systems get Rust's own: there a lease is believed in for too long if the machine was suspended
//! meanwhile.
//!
//! With the feature `test-util`, code that runs under a *paused* tokio clock reads that one, so
//! that tests can let leases expire without waiting. An unpaused clock is never replaced.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::Sleep;

/// A point on the boot-time clock of this machine.
///
/// Comparable only with points read in the same boot of the same machine. Kept in nanoseconds, of
/// which there are enough for 584 years.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(u64);

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

    /// The point that lies `elapsed` after the clock's origin, for pure tests of time arithmetic.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(nanos(elapsed))
    }

    /// This point moved `by` later, or the last one there is.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// How long after `earlier` this point lies; zero if it does not.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
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
        write!(f, "Instant({:?})", Duration::from_nanos(self.0))
    }
}

/// The future took longer than it was given.
#[derive(Debug)]
pub(crate) struct Late;

/// Drives `future` until `deadline`.
pub(crate) async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Late> {
    tokio::time::timeout(deadline.remaining(), future).await.map_err(|_| Late)
}

/// Sleeps until the boot-time clock shows `deadline`, whatever tokio's timer thinks of a suspend.
pub(crate) async fn sleep_until(deadline: Instant) {
    loop {
        let left = deadline.remaining();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// Sleeps until `deadline`; for ever if there is none.
pub(crate) async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pin_project! {
    /// A timer that is set when it is first needed, and not at all outside a runtime: there whoever
    /// waits depends on being woken.
    #[derive(Debug, Default)]
    pub(crate) struct Deadline {
        #[pin]
        timer: Option<Sleep>,
    }
}

impl Deadline {
    /// Ready when the time is over: when `left` says `None`. That is asked when the timer is set
    /// and when it fires, so that whoever polls often reads no clock.
    pub(crate) fn poll<F>(mut self: Pin<&mut Self>, mut left: F, cx: &mut Context<'_>) -> Poll<()>
    where
        F: FnMut() -> Option<Duration>,
    {
        loop {
            let mut timer = self.as_mut().project().timer;
            if timer.is_none() {
                let Some(left) = left() else { return Poll::Ready(()) };
                if Handle::try_current().is_err() {
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

    /// Ready when `until` has passed; never without one.
    pub(crate) fn poll_at(
        self: Pin<&mut Self>,
        until: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(until) = until else { return Poll::Pending };
        self.poll(|| Some(until.remaining()).filter(|left| !left.is_zero()), cx)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod boot {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    pub(super) fn elapsed() -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Boot time is never negative and its nanoseconds are below 10^9.
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}

#[cfg(target_vendor = "apple")]
mod boot {
    use std::time::Duration;

    use nix::time::ClockId;

    pub(super) fn elapsed() -> Duration {
        // Apple's CLOCK_MONOTONIC follows wall-clock adjustments; the raw one does not, and both
        // count sleep.
        ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW)
            .now()
            .map(Duration::from)
            .expect("BUG: CLOCK_MONOTONIC_RAW exists on every supported Apple system")
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod boot {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    // Windows' performance counter counts sleep, so the standard clock will do. On other systems it
    // may not.
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
    /// tokio does not say whether its clock is paused, but two readings of a paused one are equal.
    /// Two equal readings of a running clock do no harm: it stands at the same place of the axis,
    /// unless the machine was suspended since the first one.
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
