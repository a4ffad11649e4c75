//! Where background work is spawned, and whether it still runs.
//!
//! Connections outlive the call that opens them. They run on the runtime that was given to the
//! client or the store, else on the caller's. A blocking call on a plain thread runs in a runtime
//! that ends with the call; there the runtime of the client's background tasks is used instead.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
#[cfg(feature = "redis")]
use tokio::runtime::RuntimeFlavor;

use crate::error::{Error, ErrorKind};
use crate::probe;

thread_local! {
    static SPAWN_HANDLE: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// Makes [`spawn_handle`] return another runtime on this thread, until dropped.
#[derive(Debug)]
pub(crate) struct EnterGuard(Option<Handle>);

impl EnterGuard {
    pub(crate) fn enter(runtime: Option<Handle>) -> Self {
        Self(SPAWN_HANDLE.replace(runtime))
    }
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        SPAWN_HANDLE.set(self.0.take());
    }
}

/// The runtime for tasks that outlive the current call, if none was given for them: the caller's.
/// Exception: a caller on a `current_thread` runtime, which one body can block, goes on with a
/// `multi_thread` runtime that has run such tasks `before`.
#[cfg(feature = "redis")]
pub(crate) fn spawn_handle(before: Option<Handle>) -> Result<Handle, Error> {
    let here = match SPAWN_HANDLE.with_borrow(Clone::clone) {
        Some(runtime) => runtime,
        None => current()?,
    };
    let has_one_thread = here.runtime_flavor() == RuntimeFlavor::CurrentThread;
    let is_better = |before: &Handle| {
        before.runtime_flavor() == RuntimeFlavor::MultiThread && has_not_shut_down(before)
    };
    Ok(before.filter(|before| has_one_thread && is_better(before)).unwrap_or(here))
}

/// A runtime that has shut down ends each task at once.
#[cfg(feature = "redis")]
fn has_not_shut_down(runtime: &Handle) -> bool {
    let task = runtime.spawn(std::future::pending::<()>());
    let goes_on = !task.is_finished();
    task.abort();
    goes_on
}

/// The runtime of the caller, if it can do what locks need.
pub(crate) fn current() -> Result<Handle, Error> {
    let runtime = with_timers()?;
    probe::clock(&runtime)?;
    Ok(runtime)
}

/// The runtime of the caller, if it has timers.
pub(crate) fn with_timers() -> Result<Handle, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::of(ErrorKind::NoRuntime))?;
    probe::timers(&runtime)?;
    Ok(runtime)
}

/// The error for tasks that were to run on a given runtime, which has shut down.
pub(crate) fn given_one_is_gone() -> Error {
    Error::plain(
        ErrorKind::NoRuntime,
        "the runtime that was given to the lock client, or to its store, is gone",
    )
}

/// Tells whether a task still runs. The task keeps the [`AliveGuard`]; the flag falls when the
/// guard is dropped: when the task ends, and when its runtime does.
#[derive(Clone, Debug, Default)]
pub(crate) struct AliveFlag(Arc<AtomicBool>);

impl AliveFlag {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Raises the flag.
    pub(crate) fn raise(&self) -> AliveGuard {
        self.0.store(true, Ordering::Release);
        AliveGuard(self.clone())
    }
}

/// Keeps an [`AliveFlag`] raised.
#[derive(Debug)]
pub(crate) struct AliveGuard(AliveFlag);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}
