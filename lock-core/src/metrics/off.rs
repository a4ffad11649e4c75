//! The same interface as `recorded`, without anything behind it.

#![allow(clippy::unused_self)]

use std::time::Duration;

use crate::error::{Error, LostReason};
use crate::time::Instant;

#[derive(Debug)]
pub(crate) struct LockMetricsByLabel;

#[derive(Clone, Debug)]
pub(crate) struct LockMetrics;

#[derive(Debug)]
pub(crate) struct WaitTimer;

#[derive(Debug)]
pub(crate) struct PendingCount;

impl LockMetricsByLabel {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn of(&self, _label: &'static str) -> LockMetrics {
        LockMetrics
    }
}

impl LockMetrics {
    pub(crate) fn waiting(&self, _since: Instant) -> WaitTimer {
        WaitTimer
    }

    pub(crate) fn entered(&self, _by_store: bool) {}

    pub(crate) fn handed_on(&self) {}

    pub(crate) fn ended(&self, _held: Duration) {}

    pub(crate) fn lost(&self, _reason: LostReason) {}

    pub(crate) fn renewed(&self, _is_confirmed: bool) {}
}

impl WaitTimer {
    pub(crate) fn end<T>(self, _result: &Result<T, Error>) {}
}

impl PendingCount {
    pub(crate) fn new() -> Self {
        Self
    }
}

pub(crate) fn release_retried() {}

pub(crate) fn renewal_late(_by: Duration) {}

#[cfg(feature = "redis-cluster")]
pub(crate) use self::cluster::{cluster_made, map_fetched, redirected};
#[cfg(feature = "redis-quorum")]
pub(crate) use self::quorum::QuorumMetrics;
#[cfg(feature = "redis")]
pub(crate) use self::store::{
    acks_missed, acks_wanted, connected, outage_ended, request_of, unreachable,
};

#[cfg(feature = "redis")]
mod store {
    use std::sync::Arc;
    use std::time::Duration;

    #[derive(Debug)]
    pub(crate) struct RequestTimer;

    impl RequestTimer {
        pub(crate) fn end(self) {}
    }

    pub(crate) fn request_of(_commands: usize) -> RequestTimer {
        RequestTimer
    }

    pub(crate) fn connected(_server: &Arc<str>) {}

    pub(crate) fn unreachable(_server: &Arc<str>) {}

    pub(crate) fn outage_ended(_server: &Arc<str>, _took: Duration) {}

    pub(crate) fn acks_wanted() {}

    pub(crate) fn acks_missed() {}
}

#[cfg(feature = "redis-cluster")]
mod cluster {
    use crate::metrics::kinds::Redirection;

    pub(crate) fn cluster_made() {}

    pub(crate) fn redirected(_how: Redirection) {}

    pub(crate) fn map_fetched(_is_done: bool) {}
}

#[cfg(feature = "redis-quorum")]
mod quorum {
    use crate::metrics::kinds::Round;

    #[derive(Debug)]
    pub(crate) struct QuorumMetrics;

    impl QuorumMetrics {
        pub(crate) fn new(_members: impl IntoIterator<Item = String>) -> Self {
            Self
        }

        pub(crate) fn round(&self, _round: Round, _votes: usize) {}

        pub(crate) fn turn(&self, _is_granted: bool) {}

        pub(crate) fn repaired(&self, _member: usize) {}

        pub(crate) fn votes(&self, _member: usize, _does: bool) {}

        pub(crate) fn clock_is_ahead(&self, _member: usize, _seconds: f64) {}
    }
}
