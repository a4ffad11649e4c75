//! Timestamps that can be compared across processes, and precise waits.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Nanoseconds on `CLOCK_MONOTONIC`, which is the same for all processes of the machine.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds of CPU time that all threads of this process have used.
pub(crate) fn process_cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// A timerfd, because tokio's timer rounds up to milliseconds: a wait of 1 ms may take 2 ms.
pub(crate) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    // The replacement is `unsafe` because the descriptor must stay open; an `OwnedFd` does.
    #[allow(deprecated)]
    pub(crate) fn new() -> Self {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Self(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags).unwrap()).unwrap())
    }

    /// Waits until the timestamp `at`.
    pub(crate) async fn until(&self, at: u64) {
        if at <= now() {
            return;
        }
        let timer = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: (at / SECOND).cast_signed(),
                tv_nsec: (at % SECOND).cast_signed(),
            },
        };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &timer).unwrap();
        loop {
            let mut ready = self.0.readable().await.unwrap();
            match rustix::io::read(self.0.get_ref(), &mut [0; 8]) {
                Ok(_) => return,
                // A stale readiness event of the previous wait.
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => panic!("timerfd: {error}"),
            }
        }
    }
}
