//! Ending a client in good order.

use std::sync::Arc;
use std::time::Duration;

use super::{Inner, LockClient};
use crate::error::LostReason;
use crate::time::{Instant, timeout_at};

/// What was left when [`LockClient::drain`] returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Drained {
    /// Guards that were still alive, and acquisitions that were not dropped yet. Their leases are over for this process; their
    /// ttl frees the keys.
    pub held: usize,
    /// Releases that the store had not confirmed. The ttl frees those keys.
    pub pending: usize,
}

impl Drained {
    /// Nothing was left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.held == 0 && self.pending == 0
    }
}

impl LockClient {
    /// Ends the client: grants nothing more, lets holders finish, and waits until the store has confirmed
    /// the releases; all within `limit`. Call it on SIGTERM, after the server has stopped accepting.
    ///
    /// Those who wait for a lock get [`Draining`](crate::ErrorKind::Draining) at once. Leases that are still
    /// held after four fifths of `limit` are declared lost: bodies of `run`, the macro and the layer
    /// are dropped at their next await and their locks released. A raw guard's code cannot be
    /// stopped, so its key is left to its ttl.
    ///
    /// Outside a tokio runtime it only refuses newcomers, and says what is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client draining; call it again to go on waiting.
    pub fn drain(&self, limit: Duration) -> impl Future<Output = Drained> + Send + use<> {
        let inner = Arc::clone(&self.0);
        async move {
            let now = Instant::now();
            let (last_call, end) = (now.saturating_add(limit / 5 * 4), now.saturating_add(limit));
            inner.registry.drain();
            if inner.ensure_running().is_err() {
                // Nobody could wait here, and nobody would work meanwhile.
                return drained(&inner);
            }
            if timeout_at(last_call, inner.held.emptied()).await.is_err() {
                for lease in inner.renewer.leases() {
                    lease.lose(LostReason::Draining);
                }
            }
            let settled = async {
                inner.held.emptied().await;
                inner.janitor.emptied().await;
            };
            let _ = timeout_at(end, settled).await;
            drained(&inner)
        }
    }
}

fn drained(inner: &Inner) -> Drained {
    Drained { held: inner.held.count(), pending: inner.janitor.backlog() }
}
