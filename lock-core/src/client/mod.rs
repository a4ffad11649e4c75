//! The handle that applications share.

mod builder;
mod drain;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

pub use self::builder::LockClientBuilder;
pub use self::drain::Drained;
use crate::driver::{BackgroundTask, Janitor, Renewer};
use crate::error::{ConfigError, Error, ErrorKind};
use crate::key::IntoKey;
use crate::mutex::Mutex;
use crate::options::{LockOptions, Terms};
use crate::registry::Registry;
use crate::runtime::EnterGuard;
use crate::scope;
use crate::store::{Capabilities, Store};
use crate::tracker::Tracker;

/// Makes locks on one store.
///
/// A cheap handle: clone it freely. Make one per process at start-up and [`install`](Self::install) it, so
/// that `#[distributed_lock]` finds it.
///
/// ```
/// use lock_core::{LockClient, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).with_namespace("shop").build()?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert!(client.mutex("order:42").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockClient(pub(crate) Arc<Inner>);

/// What all handles of a client share.
pub(crate) struct Inner {
    /// Tells clients apart: leases of another client's key are not re-entered.
    pub(crate) id: u64,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) namespace: Arc<str>,
    pub(crate) defaults: LockOptions,
    /// What results from the defaults.
    pub(crate) terms: Terms,
    pub(crate) registry: Arc<Registry>,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) held: Arc<Tracker>,
    renewing: BackgroundTask,
    cleaning: BackgroundTask,
}

static INSTALLED: OnceLock<LockClient> = OnceLock::new();

impl LockClient {
    /// Starts to build a client on `store`.
    pub fn builder(store: impl Store) -> LockClientBuilder {
        LockClientBuilder::new(Arc::new(store))
    }

    /// Makes this the client that `#[distributed_lock]` uses in this process.
    ///
    /// # Errors
    ///
    /// If one is installed already. Tests use [`scope`](Self::scope) instead.
    pub fn install(&self) -> Result<(), ConfigError> {
        INSTALLED.set(self.clone()).map_err(|_| {
            ConfigError::new(
                "client",
                "is installed already: install once, in `main`; tests use `LockClient::scope`",
            )
        })
    }

    /// The client for the current task: the one of the enclosing [`scope`](Self::scope), or the installed one.
    ///
    /// # Errors
    ///
    /// [`NoClient`](ErrorKind::NoClient) if there is neither.
    pub fn installed() -> Result<Self, Error> {
        scope::client()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or_else(|| Error::of(ErrorKind::NoClient))
    }

    /// Runs `future` with this client in place of the installed one. Tasks that it spawns do not inherit that.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        scope::with_client(self.clone(), future)
    }

    /// A lock for `key`. No I/O; a bad key is an error at the first use.
    pub fn mutex(&self, key: impl IntoKey) -> Mutex {
        Mutex::new(Arc::clone(&self.0), key.into_key())
    }

    /// What stands before each key in the store.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// What the client's store offers.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }
}

impl Inner {
    /// Sees to it that the client's tasks run somewhere.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        self.start_tasks()?;
        // Timers need the runtime that polls us, wherever the tasks run.
        Handle::try_current().map(|_| ()).map_err(|_| Error::of(ErrorKind::NoRuntime))
    }

    fn start_tasks(&self) -> Result<(), Error> {
        if !self.renewing.is_alive() {
            self.renewing.start(|| Arc::clone(&self.renewer).run(Arc::clone(&self.store)))?;
        }
        if !self.cleaning.is_alive() {
            self.cleaning.start(|| Arc::clone(&self.janitor).run(Arc::clone(&self.store)))?;
        }
        Ok(())
    }

    /// Does the work of a caller that blocks: a thread of `spawn_blocking`, or one that is in no runtime. There it
    /// needs the client's tasks to run somewhere already, since they must outlive the call.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if let Ok(runtime) = Handle::try_current() {
            return Ok(runtime.block_on(future));
        }
        self.start_tasks()?;
        // Not the tasks' runtime: it may be one that nobody drives at the moment.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::unavailable("no runtime to wait in", error))?;
        // This one ends with the call, and with it would what others use from then on.
        let _entered = EnterGuard::enter(self.renewing.started());
        Ok(runtime.block_on(future))
    }
}

/// With the last handle, guard and lease gone, the tasks end as soon as what they have is settled.
impl Drop for Inner {
    fn drop(&mut self) {
        self.renewer.close();
        self.janitor.close();
    }
}

impl AsRef<Self> for LockClient {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient")
            .field("store", &format_args!("{}", self.0.store))
            .field("namespace", &self.0.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Releases that nobody will do any more refer to the line of their key, and that to them.
    #[test]
    fn a_client_whose_runtime_is_gone_gives_its_memory_back() {
        for runtime_first in [true, false] {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let client = LockClient::builder(MemoryStore::new()).build().unwrap();
            let guards = ["a", "b"].map(|key| runtime.block_on(client.mutex(key).lock()).unwrap());
            let (janitor, registry) =
                (Arc::downgrade(&client.0.janitor), Arc::downgrade(&client.0.registry));
            let runtime = Some(runtime).filter(|_| !runtime_first);
            drop(guards);
            assert_eq!(janitor.upgrade().map(|janitor| janitor.backlog()), Some(2));
            drop(client);
            drop(runtime);
            assert!(janitor.upgrade().is_none() && registry.upgrade().is_none());
        }
    }
}
