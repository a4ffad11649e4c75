//! What is counted and measured, through the facade crate `metrics`.
//!
//! Without the feature `metrics` the types here are empty and their methods do nothing. The names
//! are in the documentation of the crate; `describe` gives them to the recorder.

#[cfg(any(feature = "redis-cluster", feature = "redis-quorum"))]
mod kinds;
#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod recorded;

#[cfg(not(feature = "metrics"))]
use self::off as chosen;
#[cfg(feature = "metrics")]
use self::recorded as chosen;

#[cfg(feature = "redis-quorum")]
pub(crate) use self::chosen::QuorumMetrics;
pub(crate) use self::chosen::{
    LockMetrics, LockMetricsByLabel, PendingCount, release_retried, renewal_late,
};
#[cfg(feature = "redis")]
pub(crate) use self::chosen::{
    acks_missed, acks_wanted, connected, outage_ended, request_of, unreachable,
};
#[cfg(feature = "redis-cluster")]
pub(crate) use self::chosen::{cluster_made, map_fetched, redirected};
#[cfg(feature = "redis-cluster")]
pub(crate) use self::kinds::Redirection;
#[cfg(feature = "redis-quorum")]
pub(crate) use self::kinds::Round;
