//! The two tasks of a client. A store may have some of its own.
//!
//! Their queues belong to the client, not to the tasks. The tasks run on the runtime of the client's first use,
//! or on the one given to the builder; when that runtime is gone they are started again where the
//! client is used next, and what was queued is done then.

mod home;
mod janitor;
mod renewer;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

pub(crate) use self::home::AtHome;
#[cfg(feature = "redis")]
pub(crate) use self::home::home;
pub(crate) use self::janitor::{Janitor, Job};
pub(crate) use self::renewer::{Due, Renewer};
use crate::error::{Error, ErrorKind};

/// Where the tasks run, and whether they still do.
#[derive(Debug)]
pub(crate) struct Runtime {
    chosen: Option<Handle>,
    alive: Arc<AtomicBool>,
    /// Where they were started last.
    started: Mutex<Option<Handle>>,
}

impl Runtime {
    pub(crate) fn new(chosen: Option<Handle>) -> Self {
        Self { chosen, alive: Arc::default(), started: Mutex::default() }
    }

    /// Whether the tasks run.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The runtime of the tasks, if they were ever started.
    pub(crate) fn started(&self) -> Option<Handle> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The runtime for new tasks.
    pub(crate) fn handle(&self) -> Result<Handle, Error> {
        if let Some(chosen) = &self.chosen {
            return Ok(chosen.clone());
        }
        Handle::try_current().map_err(|_| Error::of(ErrorKind::NoRuntime))
    }

    /// Starts `task` unless one runs.
    pub(crate) fn start<F>(&self, task: impl FnOnce() -> F) -> Result<(), Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // One at a time.
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_alive() {
            return Ok(());
        }
        let handle = self.handle()?;
        self.alive.store(true, Ordering::Release);
        // Dropped with the task: when it ends, and when its runtime does.
        let sign = SignOfLife(Arc::clone(&self.alive));
        let task = task();
        handle.spawn(async move {
            let _sign = sign;
            task.await;
        });
        *started = Some(handle);
        // A runtime that is gone drops what is spawned on it at once.
        if !self.is_alive() {
            return Err(Error::plain(
                ErrorKind::NoRuntime,
                "the runtime that was given to the lock client is gone",
            ));
        }
        Ok(())
    }
}

struct SignOfLife(Arc<AtomicBool>);

impl Drop for SignOfLife {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
