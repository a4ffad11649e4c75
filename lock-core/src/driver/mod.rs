//! The background tasks of a client: the renewer and the releaser.
//!
//! Their queues belong to the client, not to the tasks. The tasks run on the runtime of the
//! client's first use, or on the one given to the builder. When that runtime has shut down, the
//! next use of the client starts them again, and they go on with what was queued.

mod releaser;
mod renewer;

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

pub(crate) use self::releaser::{PendingRelease, Releaser};
pub(crate) use self::renewer::{Due, OnDue, Renewable, Renewer};
use crate::error::Error;
use crate::runtime::{self, AliveFlag};

/// A task of the client. The first use starts it; when its runtime has shut down, the next use
/// starts it again.
#[derive(Debug)]
pub(crate) struct BackgroundTask {
    /// The runtime given to the builder.
    chosen: Option<Handle>,
    alive: AliveFlag,
    /// Where it was started last.
    started: Mutex<Option<Handle>>,
}

impl BackgroundTask {
    pub(crate) fn new(chosen: Option<Handle>) -> Self {
        Self { chosen, alive: AliveFlag::default(), started: Mutex::default() }
    }

    /// Whether the task runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    /// The runtime of the task, if it was ever started.
    pub(crate) fn started(&self) -> Option<Handle> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts `task` unless it runs.
    pub(crate) fn start<F>(&self, task: impl FnOnce() -> F) -> Result<(), Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Locked until the end, so that the task is started once.
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_alive() {
            return Ok(());
        }
        let handle = self.handle()?;
        let alive = self.alive.raise();
        let task = task();
        handle.spawn(async move {
            let _alive = alive;
            task.await;
        });
        *started = Some(handle);
        // A runtime that has shut down drops what is spawned on it at once.
        if !self.is_alive() {
            return Err(runtime::given_one_is_gone());
        }
        Ok(())
    }

    /// The runtime to start the task on.
    fn handle(&self) -> Result<Handle, Error> {
        match &self.chosen {
            Some(chosen) => Ok(chosen.clone()),
            None => runtime::current(),
        }
    }
}
