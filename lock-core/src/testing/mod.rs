//! For tests: the conformance suite of stores, a store that fails on command, and the statistics of
//! a client.
//!
//! Behind the feature `test-util`, and not covered by semantic versioning.

pub mod conformance;
mod gate;
mod seeded;

pub use self::gate::{Gate, GatedStore, Gates};
pub use self::seeded::Seeded;
use crate::client::LockClient;
use crate::held::Lease;
#[cfg(feature = "redis")]
pub use crate::store::redis::{Connector, Reading, Socket, read_reply};

/// What a client holds and has under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Keys that this process holds or waits for.
    pub keys: usize,
    /// Leases whose guards are alive, and acquisitions under way.
    pub held: usize,
    /// Releases that the store has not confirmed.
    pub pending: usize,
}

impl ClientStats {
    /// The present numbers of `client`.
    #[must_use]
    pub fn of(client: &LockClient) -> Self {
        let state = &client.0;
        Self {
            keys: state.registry.len(),
            held: state.held.count(),
            pending: state.releaser.pending_count(),
        }
    }

    /// Whether all numbers are zero.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.keys == 0 && self.held == 0 && self.pending == 0
    }
}

/// Waits until the store has confirmed all releases of `client`, or they were given up.
pub async fn wait_idle(client: &LockClient) {
    client.0.releaser.idle().await;
}

/// How many tasks wait for the end of `lease`.
#[must_use]
pub fn watchers(lease: &Lease) -> usize {
    lease.0.watchers()
}
