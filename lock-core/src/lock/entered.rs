//! Entering a lock for a body: `run`, the macro and the layer.

use std::future::Future;

use tokio::sync::OwnedMutexGuard;

use super::acquire::{self, AcquireRequest};
use super::guard::MutexGuard;
use super::run_until_lost::RunUntilLost;
use crate::error::Error;
use crate::held::{self, Lease, ScopeEntry, Scoped};
use crate::time::{Instant, timeout_at};

/// A lock entered for a body: taken, or shared with the task's outer holder.
#[derive(Debug)]
pub struct Entered {
    scope: ScopeEntry,
    lock: EnteredLock,
}

#[derive(Debug)]
enum EnteredLock {
    Own(MutexGuard),
    /// Keeps out the siblings that share the outer lease.
    Nested {
        _slot: OwnedMutexGuard<()>,
    },
}

impl Entered {
    pub(crate) async fn enter(request: Result<AcquireRequest, Error>) -> Result<Self, Error> {
        let request = request?;
        let Some(outer) = held::find(request.client.local_id, &request.name) else {
            let guard = acquire::lock(Ok(request)).await?;
            return Ok(Self {
                scope: ScopeEntry::own(guard.lease()),
                lock: EnteredLock::Own(guard),
            });
        };
        let lease = outer.lease();
        request.client.ensure_running()?;
        lease.0.observe().map_err(Error::lost)?;
        // The lease may have ended while siblings had the slot.
        let busy = || lease.0.observe().map_or_else(Error::lost, Error::busy_here);
        let slot = match request.until(Instant::now()) {
            _ if !request.options.waits() => outer.child().try_lock_owned().map_err(|_| busy())?,
            None => outer.child().lock_owned().await,
            Some(until) => {
                timeout_at(until, outer.child().lock_owned()).await.map_err(|_| busy())?
            }
        };
        lease.0.observe().map_err(Error::lost)?;
        Ok(Self { scope: ScopeEntry::nested(lease), lock: EnteredLock::Nested { _slot: slot } })
    }

    /// The lease that the body runs under.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.scope.lease()
    }

    /// Drives `body` while the lease is good. Does not borrow the entry.
    pub fn bound<F: Future>(&self, body: F) -> RunUntilLost<F> {
        RunUntilLost::new(self.lease(), Scoped::new(self.scope.clone(), body))
    }

    /// Drives `body` to its end, even if the lease ends first.
    ///
    /// # Errors
    ///
    /// None; a `Result` like that of [`bound`](Self::bound), so that the caller is the same.
    #[allow(clippy::future_not_send)] // up to the body
    pub fn scoped<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, Error>> + use<F> {
        let body = Scoped::new(self.scope.clone(), body);
        async move { Ok(body.await) }
    }

    /// Leaves, and waits for the release if the lock was taken here. A failed release does not
    /// replace the body's result: it is logged, and the releaser goes on.
    pub async fn release(self) {
        let EnteredLock::Own(guard) = self.lock else { return };
        let label = guard.key().label();
        if let Err(error) = guard.release().await {
            tracing::warn!(
                target: "lock_core", key = label, error = error.with_causes(),
                "release not confirmed yet"
            );
        }
    }
}
