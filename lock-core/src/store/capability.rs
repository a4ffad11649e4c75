//! What a store offers, as data.

use std::time::Duration;

/// What a store offers beyond the rules that every store keeps.
///
/// # Examples
///
/// ```
/// use lock_core::store::{Capabilities, MemoryStore, Store, Survives};
///
/// let offered = MemoryStore::new().capabilities();
/// assert_eq!(offered, Capabilities::none().with_fair().with_fencing());
/// assert!(offered.survives < Survives::Restart);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiters are served in the order of arrival, across processes.
    pub fair: bool,
    /// Grants carry a number that grows.
    pub fencing: bool,
    /// What a lock outlives.
    pub survives: Survives,
    /// The longest ttl and `min_hold` that it grants; `None`: any.
    pub longest_ttl: Option<Duration>,
}

impl Capabilities {
    /// A store that offers nothing beyond exclusion.
    #[must_use]
    pub const fn none() -> Self {
        Self { fair: false, fencing: false, survives: Survives::Nothing, longest_ttl: None }
    }

    /// With waiters served in the order of arrival.
    #[must_use]
    pub const fn with_fair(mut self) -> Self {
        self.fair = true;
        self
    }

    /// With fencing tokens.
    #[must_use]
    pub const fn with_fencing(mut self) -> Self {
        self.fencing = true;
        self
    }

    /// With locks that outlive what `survives` names.
    #[must_use]
    pub const fn with_survives(mut self, survives: Survives) -> Self {
        self.survives = survives;
        self
    }

    /// With no longer ttl than this.
    #[must_use]
    pub const fn with_longest_ttl(mut self, longest: Duration) -> Self {
        self.longest_ttl = Some(longest);
        self
    }
}

/// What a held lock outlives, from least to most.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Survives {
    /// Locks are gone with the process that keeps the store.
    Nothing,
    /// Locks outlive every client, and a restart of the server if the server keeps its data.
    Restart,
    /// The same, and a failover, but for what the replica that is promoted had not received.
    FailoverMostly,
    /// The same, if the replica that is promoted is one of those that confirmed the lock.
    FailoverAcknowledged,
    /// Locks outlive the loss of any minority of the servers, and of what those remember.
    Minority,
}
