//! Messages from the nodes of a cluster.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use redis::Value;

use super::mailbox::{Mailboxes, StrayGrant};
use crate::store::redis::cluster::{Cluster, Receiver};
use crate::store::redis::in_doubt::InDoubt;
use crate::store::redis::keys::Tag;
use crate::store::redis::protocol::release_stray_grant_on;

/// Takes the messages of a cluster: each to its mailbox. A grant without a mailbox is released, at
/// the node that has the lock, if its token is among the last that were released here.
pub(crate) struct IncomingFromCluster<P> {
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) in_doubt: Arc<InDoubt<P>>,
    pub(crate) cluster: Weak<Cluster>,
}

impl<P: Send + 'static> Receiver for IncomingFromCluster<P> {
    fn message(&self, generation: u64, payload: &Value) {
        if let Some(StrayGrant { token, name }) = self.mailboxes.deliver(generation, payload)
            && let Some(cluster) = self.cluster.upgrade()
        {
            release_stray_grant_on(&cluster, &self.in_doubt, token, name);
        }
    }

    fn missed(&self, tags: &HashSet<Tag>) {
        self.mailboxes.missed_by(|waiting| tags.contains(&waiting));
    }
}
