//! What is counted and measured, through the facade crate `metrics`.
//!
//! Without the feature `metrics` the types here are empty and their methods do nothing. The names
//! are in the documentation of the crate; `describe` gives them to the recorder.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod recorded;

#[cfg(not(feature = "metrics"))]
use self::off as chosen;
#[cfg(feature = "metrics")]
use self::recorded as chosen;

pub(crate) use self::chosen::{
    LockMetrics, LockMetricsByLabel, PendingRelease, release_retried, renewal_late,
};
#[cfg(feature = "redis")]
pub(crate) use self::chosen::{connected, request_of};
