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
pub(crate) struct PendingRelease;

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

impl PendingRelease {
    pub(crate) fn new() -> Self {
        Self
    }
}

pub(crate) fn release_retried() {}

pub(crate) fn renewal_late(_by: Duration) {}

#[cfg(feature = "redis")]
pub(crate) use self::store::{connected, request_of};

#[cfg(feature = "redis")]
mod store {
    #[derive(Debug)]
    pub(crate) struct RequestTimer;

    impl RequestTimer {
        pub(crate) fn end(self) {}
    }

    pub(crate) fn request_of(_commands: usize) -> RequestTimer {
        RequestTimer
    }

    pub(crate) fn connected() {}
}
