//! A store whose calls a test can delay, refuse or lose.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::store::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Inspect, Release,
    ReleaseReply, Renewal, Renewed, Store,
};

/// What happens to one call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Gate {
    /// It goes through.
    #[default]
    Open,
    /// It is not sent: the store is unavailable.
    Refused,
    /// It goes through after this long.
    Slow(Duration),
    /// It goes through at once, and its reply comes after this long.
    Late(Duration),
    /// It goes through, but its reply is lost: the outcome is unknown.
    Lost,
    /// It never goes through, and gets no reply.
    Never,
}

/// The gates of a [`GatedStore`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Gates {
    /// For claims.
    pub acquire: Gate,
    /// For renewals.
    pub renew: Gate,
    /// For releases.
    pub release: Gate,
}

/// A store whose calls pass through gates that a test can close.
///
/// ```
/// use lock_core::LockClient;
/// use lock_core::store::MemoryStore;
/// use lock_core::testing::{Gate, GatedStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = GatedStore::new(MemoryStore::new());
/// let client = LockClient::builder(store.clone()).build()?;
/// store.set(|gates| gates.acquire = Gate::Refused);
/// let error = client.mutex("k").without_wait().lock().await.unwrap_err();
/// assert!(error.is_store_failure() && !error.is_busy());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct GatedStore<S> {
    inner: S,
    gates: Arc<Mutex<Gates>>,
    renewals: Arc<AtomicUsize>,
    refuse_release: Arc<AtomicBool>,
}

impl<S> GatedStore<S> {
    /// Wraps `inner` with open gates.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            gates: Arc::default(),
            renewals: Arc::default(),
            refuse_release: Arc::default(),
        }
    }

    /// Opens and closes gates for the calls from now on.
    pub fn set(&self, change: impl FnOnce(&mut Gates)) {
        change(&mut self.gates.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Refuses the next release, whatever its gate.
    pub fn refuse_once(&self) {
        self.refuse_release.store(true, Ordering::Release);
    }

    /// How many calls for renewals there were.
    #[must_use]
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::Acquire)
    }

    /// The store behind the gates.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    fn gates(&self) -> Gates {
        *self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a call through, or not. `Err` with whether it was made.
async fn pass<T>(gate: Gate, call: impl Future<Output = T>) -> Result<T, Error> {
    match gate {
        Gate::Open => Ok(call.await),
        Gate::Slow(pause) => {
            tokio::time::sleep(pause).await;
            Ok(call.await)
        }
        Gate::Late(pause) => {
            let answer = call.await;
            tokio::time::sleep(pause).await;
            Ok(answer)
        }
        Gate::Refused => Err(Error::unavailable("the gate is shut", Shut)),
        Gate::Lost => {
            call.await;
            Err(Error::unknown("the answer was lost", Shut))
        }
        Gate::Never => std::future::pending().await,
    }
}

#[derive(Debug)]
struct Shut;

impl fmt::Display for Shut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gated by a test")
    }
}

impl std::error::Error for Shut {}

impl<S: Store> Store for GatedStore<S> {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            match pass(self.gates().acquire, self.inner.try_acquire(claim)).await {
                Ok(answer) => answer,
                Err(error) if error.is_unknown() => Err(AcquireError::in_doubt(error)),
                Err(error) => Err(AcquireError::definite(error)),
            }
        })
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            match pass(self.gates().acquire, self.inner.acquire(claim, context)).await {
                Ok(answer) => answer,
                Err(error) if error.is_unknown() => Err(AcquireError::in_doubt(error)),
                Err(error) => Err(AcquireError::definite(error)),
            }
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        self.renewals.fetch_add(1, Ordering::AcqRel);
        Box::pin(async move {
            pass(self.gates().renew, self.inner.renew(renewals))
                .await
                .unwrap_or_else(|error| renewals.iter().map(|_| Err(error.clone())).collect())
        })
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        let refused = self.refuse_release.swap(false, Ordering::AcqRel);
        let gate = if refused { Gate::Refused } else { self.gates().release };
        Box::pin(async move { pass(gate, self.inner.release(release)).await? })
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        self.inner.inspector()
    }

    fn run_on(&self, runtime: &Handle) {
        self.inner.run_on(runtime);
    }

    fn set_connection_name(&self, name: &str) {
        self.inner.set_connection_name(name);
    }
}

impl<S: Store> fmt::Display for GatedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gated {}", self.inner)
    }
}
