//! The kinds of events that metrics of several servers count.

/// How a node of a cluster sends a command elsewhere, or not now.
#[cfg(feature = "redis-cluster")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Redirection {
    /// Another node has the slot.
    Moved,
    /// Another node has the keys, while the slot moves.
    Ask,
    /// The keys are on two nodes.
    TryAgain,
    /// The node is no master, or the cluster is down.
    NotServed,
}

/// What came of a round of votes for a claim.
#[cfg(feature = "redis-quorum")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Round {
    Granted,
    /// A majority has the lock for the claim and refuses its number: another round follows.
    Again,
    /// Other owners have it.
    Taken,
    Failed,
}
