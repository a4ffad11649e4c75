//! Whether a tokio runtime can do what locks need of it: timers, I/O, and a clock that runs.
//!
//! A runtime that was built without `enable_all` may lack timers or I/O, and tokio panics where
//! they are used: in the caller, and in each background task. So runtimes are probed before.
//!
//! tokio does not say what a runtime has (tokio#8361): neither its metrics nor the `Debug` text of
//! its handle do. The one way to learn it is to make a timer, or to register a socket, and to catch
//! the panic. The program's panic hook reports that one panic; replacing the hook, which belongs to
//! the program, would be worse.
//!
//! A program that is built to abort at panics is not probed, and ends where tokio panics.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::LocalKey;
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use crate::error::{ConfigError, Error, ErrorKind};

/// What is wrong with a runtime.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unfit {
    NoTimers,
    #[cfg(feature = "redis")]
    NoIo,
    #[cfg(any(test, not(feature = "test-util")))]
    PausedClock,
}

/// The last runtime that was probed on a thread, and what was found. tokio counts the ids up.
type Probed = Cell<Option<(Id, bool)>>;

thread_local! {
    static TIMERS: Probed = const { Cell::new(None) };
    #[cfg(feature = "redis")]
    static IO: Probed = const { Cell::new(None) };
}

/// Whether `probe` goes well on `runtime`. Tried once for each runtime and thread that asks.
fn goes_well(known: &'static LocalKey<Probed>, runtime: &Handle, probe: impl FnOnce()) -> bool {
    match known.get() {
        Some((last, went_well)) if last == runtime.id() => went_well,
        _ => {
            let _entered = runtime.enter();
            let went_well = !panics(probe);
            // A thread that panics does not probe.
            if !std::thread::panicking() {
                known.set(Some((runtime.id(), went_well)));
            }
            went_well
        }
    }
}

/// Whether a runtime that is given for background tasks has timers, and a clock that runs.
pub(crate) fn given(runtime: &Handle) -> Result<(), Unfit> {
    let _entered = runtime.enter();
    timers(runtime)?;
    clock(runtime)
}

/// Whether `runtime` has timers.
pub(crate) fn timers(runtime: &Handle) -> Result<(), Unfit> {
    let has_timers = goes_well(&TIMERS, runtime, || drop(tokio::time::sleep(Duration::ZERO)));
    if has_timers { Ok(()) } else { Err(Unfit::NoTimers) }
}

/// Whether `runtime` has I/O.
#[cfg(feature = "redis")]
pub(crate) fn io(runtime: &Handle) -> Result<(), Unfit> {
    let has_io = goes_well(&IO, runtime, || {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0));
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        // Without a socket to try, the dial will tell what is wrong.
        if let Ok(socket) = socket {
            drop(tokio::net::UdpSocket::from_std(socket));
        }
    });
    if has_io { Ok(()) } else { Err(Unfit::NoIo) }
}

/// Whether the caller runs in a runtime that has timers.
pub(crate) fn has_timers_here() -> bool {
    Handle::try_current().is_ok_and(|runtime| timers(&runtime).is_ok())
}

/// Whether the clock of `runtime`, which is the caller's, runs. Leases follow a paused one only
/// with the feature `test-util`; without it they would outlive all that the caller waits for.
#[cfg(not(feature = "test-util"))]
pub(crate) fn clock(runtime: &Handle) -> Result<(), Unfit> {
    use tokio::runtime::RuntimeFlavor;

    // tokio pauses no other clock.
    if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return Ok(());
    }
    if is_paused() { Err(Unfit::PausedClock) } else { Ok(()) }
}

#[cfg(feature = "test-util")]
#[allow(clippy::unnecessary_wraps)] // as its twin
pub(crate) fn clock(_runtime: &Handle) -> Result<(), Unfit> {
    Ok(())
}

/// tokio has no call for whether its clock is paused, but a paused one stands still. A running one
/// may do so for a moment, if its steps are large.
#[cfg(any(test, not(feature = "test-util")))]
#[allow(clippy::disallowed_methods)] // the clock that tokio's follows while it runs
fn is_paused() -> bool {
    let first = tokio::time::Instant::now();
    let mut since = None;
    while tokio::time::Instant::now() == first {
        let since = since.get_or_insert_with(std::time::Instant::now);
        if since.elapsed() > STANDSTILL {
            // Not if this thread was preempted in between.
            return tokio::time::Instant::now() == first;
        }
    }
    false
}

/// No clock in use has steps as large as this.
#[cfg(any(test, not(feature = "test-util")))]
const STANDSTILL: Duration = Duration::from_millis(1);

/// Whether `probe` panics.
fn panics(probe: impl FnOnce()) -> bool {
    // A thread that panics is on its way out of a scope anyway.
    if cfg!(panic = "abort") || std::thread::panicking() {
        return false;
    }
    catch_unwind(AssertUnwindSafe(probe)).is_err()
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTimers => "has no timers: build it with `enable_all`",
            #[cfg(feature = "redis")]
            Self::NoIo => "has no I/O: build it with `enable_all`",
            #[cfg(any(test, not(feature = "test-util")))]
            Self::PausedClock => {
                "has a paused clock, which leases do not follow: enable the feature `test-util` of \
                 `lock-core` in tests"
            }
        })
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        Self::plain(ErrorKind::NoRuntime, format!("this tokio runtime {unfit}"))
    }
}

impl From<Unfit> for ConfigError {
    fn from(unfit: Unfit) -> Self {
        Self::new("runtime", unfit.to_string())
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime(set: impl FnOnce(&mut Builder) -> &mut Builder) -> Runtime {
        set(&mut Builder::new_current_thread()).build().unwrap()
    }

    #[test]
    fn what_a_runtime_lacks_is_found() {
        let (all, no_time) = (runtime(Builder::enable_all), runtime(Builder::enable_io));
        let no_io = runtime(Builder::enable_time);
        for _ in 0..2 {
            assert_eq!(timers(all.handle()), Ok(()));
            assert_eq!(timers(no_time.handle()), Err(Unfit::NoTimers));
            assert_eq!(timers(no_io.handle()), Ok(()));
        }
        #[cfg(feature = "redis")]
        {
            assert_eq!(io(all.handle()), Ok(()));
            assert_eq!(io(no_time.handle()), Ok(()));
            assert_eq!(io(no_io.handle()), Err(Unfit::NoIo));
        }
        // Within another runtime, it is the given one that counts.
        let _inside = all.enter();
        assert_eq!(timers(no_time.handle()), Err(Unfit::NoTimers));
        drop(tokio::time::sleep(Duration::ZERO));
    }

    #[test]
    fn paused_clock_differs_from_a_running_one() {
        let runtime = runtime(Builder::enable_all);
        runtime.block_on(async {
            for _ in 0..1_000 {
                assert!(!is_paused());
            }
            tokio::time::pause();
            assert!(is_paused());
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(is_paused());
            tokio::time::resume();
            assert!(!is_paused());
        });
        assert!(Unfit::PausedClock.to_string().contains("`test-util`"));
    }
}
