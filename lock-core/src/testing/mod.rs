//! For tests: the conformance suite of stores, a store that fails on command, and the statistics of
//! a client. [The guide](crate::guide::testing_your_code) shows how to use them.
//!
//! Behind the feature `test-util`, for `[dev-dependencies]`.
//!
//! # Stability
//!
//! Covered by semantic versioning: [`GatedStore`], [`Gate`], [`Gates`], [`ClientStats`],
//! [`wait_idle`], [`conformance_tests!`](crate::conformance_tests), the methods of
//! [`MemoryStore`](crate::store::MemoryStore) behind this feature, and that leases follow a paused
//! tokio clock. A minor version may add tests of rules that [`Store`](crate::store::Store)
//! documents.
//!
//! Not covered: everything else here, which is for the tests of this crate.

pub mod conformance;
mod gate;
#[cfg(feature = "redis-quorum")]
mod members;
mod seeded;

pub use self::gate::{Gate, GatedStore, Gates};
#[cfg(feature = "redis-quorum")]
pub use self::members::{Fate, MemoryMember, Network, quorum_of};
pub use self::seeded::Seeded;
use crate::client::LockClient;
use crate::held::Lease;
#[cfg(feature = "redis")]
pub use crate::store::redis::{Connector, Reading, Socket, read_reply};

/// What a client holds and has under way.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockClient, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = LockClient::builder(MemoryStore::new()).build()?;
/// use lock_core::testing::ClientStats;
///
/// let guard = client.mutex("k").lock().await?;
/// assert_eq!(ClientStats::of(&client).held, 1);
/// guard.release().await?;
/// assert!(ClientStats::of(&client).is_idle());
/// # Ok(()) }
/// ```
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
///
/// Returns at once if there are none, and does not wait for guards that are alive.
///
/// # Cancel safety
///
/// Dropping the future changes nothing.
///
/// # Examples
///
/// ```
/// use lock_core::testing::{ClientStats, wait_idle};
/// use lock_core::{LockClient, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).build()?;
/// drop(client.mutex("k").lock().await?);
/// wait_idle(&client).await;
/// assert!(ClientStats::of(&client).is_idle());
/// # Ok(()) }
/// ```
pub async fn wait_idle(client: &LockClient) {
    client.0.releaser.idle().await;
}

/// How many tasks wait for the end of `lease`.
#[must_use]
pub fn watchers(lease: &Lease) -> usize {
    lease.0.watchers()
}
