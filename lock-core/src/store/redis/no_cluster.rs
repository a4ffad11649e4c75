//! The twin of `cluster` without the feature `redis-cluster`: there is none.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::error::Fault;
use super::keys::Tag;
use super::transport::{Connection, Live, Timeouts};
use crate::store::Name;
use crate::time::Instant;

pub(super) enum Cluster {}

pub(super) enum ClusterRoute {}

pub(super) enum Serving {}

// Those of the twin wait for replies, and need what they are given.
#[allow(clippy::unused_async, clippy::needless_pass_by_value)]
impl Cluster {
    pub(super) fn label(&self) -> &str {
        match *self {}
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        match *self {}
    }

    pub(super) fn tag(&self, _: &Name) -> Tag {
        match *self {}
    }

    pub(super) fn route(&self, _: &Name, _: Duration, _: bool) -> Box<ClusterRoute> {
        match *self {}
    }

    pub(super) async fn join(&self, _: &Name, _: Option<Instant>) -> Result<Option<String>, Fault> {
        match *self {}
    }

    pub(super) fn hears(&self, _: &Name) -> bool {
        match *self {}
    }

    pub(super) async fn masters(&self) -> Result<Vec<(Arc<Connection>, Tag)>, Fault> {
        match *self {}
    }

    pub(super) fn needs_acks(&self) -> bool {
        match *self {}
    }

    pub(super) fn uncovered(&self) -> usize {
        match *self {}
    }

    pub(super) fn run_on(&self, _: &Handle) {
        match *self {}
    }

    pub(super) fn set_name(&self, _: &str) {
        match *self {}
    }
}

#[allow(clippy::unused_async, clippy::needless_pass_by_value)]
impl ClusterRoute {
    pub(super) async fn next(
        &mut self,
        _: Option<Instant>,
    ) -> Result<(&Arc<Connection>, Arc<Live>, Option<Serving>), Fault> {
        match *self {}
    }

    pub(super) async fn after(&mut self, _: Fault, _: Option<Instant>) -> Result<(), Fault> {
        match *self {}
    }
}

impl Serving {
    pub(super) fn is_over(&self) -> bool {
        match *self {}
    }
}
