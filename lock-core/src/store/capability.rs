//! What a store offers, as data.

/// What a store offers beyond the rules that every store keeps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiters are served in the order of arrival, across processes.
    pub fair: bool,
    /// Grants carry a number that grows.
    pub fencing: bool,
    /// What a lock outlives.
    pub survives: Survives,
}

impl Capabilities {
    /// A store that offers nothing beyond exclusion.
    #[must_use]
    pub const fn none() -> Self {
        Self { fair: false, fencing: false, survives: Survives::Nothing }
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
}

/// What a held lock outlives, from least to most.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Survives {
    /// Locks are gone with the process that keeps the store.
    Nothing,
    /// Locks outlive every client, and a restart of the server if the server keeps its data.
    Restart,
}
