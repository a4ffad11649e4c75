//! What a store offers, as data that tests and documentation read.

/// What a store offers beyond the rules that all of them keep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiters are served in the order in which they came, across processes.
    pub fair: bool,
    /// Grants carry a number that grows.
    pub fencing: bool,
    /// Locks outlive the process that holds the store.
    pub shared: bool,
}

impl Capabilities {
    /// A store that offers nothing beyond exclusion.
    #[must_use]
    pub const fn none() -> Self {
        Self { fair: false, fencing: false, shared: false }
    }

    /// With waiters served in the order in which they came.
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

    /// With locks that outlive the process.
    #[must_use]
    pub const fn with_shared(mut self) -> Self {
        self.shared = true;
        self
    }
}
