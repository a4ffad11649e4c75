//! The handle that applications share: it makes the locks of one namespace on one store.
//!
//! Besides: building one, draining it, and the questions of operators, to the store (`inspect`) and
//! to this process (`activity`).

mod activity;
mod builder;
mod drain;
mod inspect;
mod shutdown;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

pub use self::builder::LockClientBuilder;
#[cfg(feature = "serde")]
pub(crate) use self::builder::{check_name, check_namespace, check_warning};
pub use self::drain::Drained;
pub use self::inspect::{LockEntry, LockInfo, LockList, OwnerInfo};
pub use self::shutdown::Shutdown;
use crate::error::{ConfigError, Error, ErrorKind};
use crate::key::IntoKey;
use crate::lock::Mutex;
use crate::state::ClientState;
use crate::store::{Capabilities, ClientId};

/// Makes locks on one store.
///
/// A cheap handle: clone it freely. Make one per process at start-up and [`install`](Self::install)
/// it, so that `#[distributed_lock]` finds it.
///
/// ```
/// use lock_core::{LockClient, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).with_namespace("shop").build()?;
/// let guard = client.mutex("order:42").lock().await?;
/// assert!(client.mutex("order:42").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockClient(pub(crate) Arc<ClientState>);

static INSTALLED: OnceLock<LockClient> = OnceLock::new();

tokio::task_local! {
    /// The client of [`LockClient::scope`].
    static SCOPED: LockClient;
}

impl LockClient {
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

    /// The client for the current task: the one of the enclosing [`scope`](Self::scope), or the
    /// installed one.
    ///
    /// # Errors
    ///
    /// [`NoClient`](ErrorKind::NoClient) if there is neither.
    pub fn installed() -> Result<Self, Error> {
        SCOPED
            .try_with(Self::clone)
            .ok()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or_else(|| Error::of(ErrorKind::NoClient))
    }

    /// Runs `future` with this client in place of the installed one. Tasks that it spawns do not
    /// inherit that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_core::{LockClient, store::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let id = client.scope(async { LockClient::installed().map(|client| client.id()) }).await?;
    /// assert_eq!(id, client.id());
    /// assert!(LockClient::installed().is_err(), "none is installed");
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPED.scope(self.clone(), future)
    }

    /// A lock for `key`. No I/O; a bad key is an error at the first use.
    pub fn mutex(&self, key: impl IntoKey) -> Mutex {
        Mutex::new(Arc::clone(&self.0), key.into_key())
    }

    /// What stands before each key in the store, without its colon. Empty: nothing does, as
    /// [`without_namespace`](LockClientBuilder::without_namespace) has it.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace.as_deref().unwrap_or_default()
    }

    /// Names this client in its log, and at the beginning of the values of its locks.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.0.client_id
    }

    /// What the client's store offers.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
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
            .field("id", &self.0.client_id)
            .field("store", &format_args!("{}", self.0.store))
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Releases that no task will send refer to the wait list of their key, and the list to them.
    #[test]
    fn client_without_its_runtime_frees_its_memory() {
        for runtime_first in [true, false] {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let client = LockClient::builder(MemoryStore::new()).build().unwrap();
            let guards = ["a", "b"].map(|key| runtime.block_on(client.mutex(key).lock()).unwrap());
            let (releaser, store) =
                (Arc::downgrade(&client.0.releaser), Arc::downgrade(&client.0.store));
            let runtime = Some(runtime).filter(|_| !runtime_first);
            drop(guards);
            assert_eq!(releaser.upgrade().map(|releaser| releaser.pending_count()), Some(2));
            drop(client);
            drop(runtime);
            assert!(releaser.upgrade().is_none() && store.upgrade().is_none());
        }
    }
}
