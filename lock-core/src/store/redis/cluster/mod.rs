//! Redis Cluster: several servers, each with a part of the slots, and so of the locks.
//!
//! - `slot`: which slot a lock has, and the tag of its companions
//! - `map`, `nodes`, `node`: which node has a slot, and the connections to it
//! - `route`: the way of a command through redirections
//! - `listener`, `inbox`: grants by sharded channels, on connections that carry no commands
//! - `hearing`: of which nodes such grants do not come, for now

mod hearing;
mod inbox;
mod listener;
mod map;
mod node;
mod nodes;
mod route;
mod slot;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::inbox::Inboxes;
pub(super) use self::inbox::Receiver;
use self::node::Node;
use self::nodes::Nodes;
pub(super) use self::nodes::{AddressMap, ClusterSettings};
pub(super) use self::route::{ClusterRoute, Serving};
use self::slot::Slot;
use super::error::Fault;
use super::keys::Tag;
use super::transport::{Connection, Timeouts};
use crate::error::Error;
use crate::store::Name;
use crate::time::Instant;

/// The nodes of a cluster, and how grants arrive from them.
pub(crate) struct Cluster {
    nodes: Arc<Nodes>,
    inboxes: Arc<Inboxes>,
}

impl Cluster {
    /// A cluster to which no connection is open yet. What arrives on its channels goes to the
    /// receiver, which is made with a reference to the cluster.
    pub(super) fn new<R: Receiver>(
        settings: ClusterSettings,
        receiver: impl FnOnce(Weak<Self>) -> R,
    ) -> Arc<Self> {
        slot::prepare();
        let nodes = Nodes::new(settings);
        Arc::new_cyclic(|this| {
            let receiver = Arc::new(receiver(Weak::clone(this)));
            let inboxes = Arc::new(Inboxes::new(Arc::clone(&nodes), receiver));
            Self { nodes, inboxes }
        })
    }

    pub(super) fn label(&self) -> &str {
        self.nodes.label()
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.nodes.timeouts()
    }

    /// The hash tag for companions of `name`.
    // Its twin can be called only if there is a cluster.
    #[allow(clippy::unused_self)]
    pub(super) fn tag(&self, name: &Name) -> Tag {
        Slot::of(name.as_str()).tag()
    }

    /// The way of a command for `name`. It is tried for as long as `patience` while the keys of the
    /// command are on two nodes, and sent again if its connection breaks and it `may_repeat`.
    pub(super) fn route(
        &self,
        name: &Name,
        patience: Duration,
        may_repeat: bool,
    ) -> Box<ClusterRoute> {
        let slot = Slot::of(name.as_str());
        Box::new(ClusterRoute::new(Arc::clone(&self.nodes), slot, patience, may_repeat))
    }

    /// The channel on which grants of `name` arrive; `None` if none arrive.
    pub(super) async fn join(
        &self,
        name: &Name,
        until: Option<Instant>,
    ) -> Result<Option<String>, Fault> {
        self.inboxes.join(name.namespace(), Slot::of(name.as_str()), until).await
    }

    /// Whether grants of `name` arrive now, if they are to arrive at all.
    pub(super) fn hears(&self, name: &Name) -> bool {
        self.inboxes.hears(name.namespace(), Slot::of(name.as_str()))
    }

    /// A connection to each node that has slots, and the tag of one of these.
    pub(super) async fn masters(&self) -> Result<Vec<(Arc<Connection>, Tag)>, Fault> {
        let masters = self.nodes.masters().await?;
        let with_tag =
            |(node, slot): &(Arc<Node>, Slot)| (Arc::clone(&node.connection), slot.tag());
        Ok(masters.iter().map(with_tag).collect())
    }

    /// Whether replicas confirm what is written.
    pub(super) fn needs_acks(&self) -> bool {
        self.nodes.needs_acks()
    }

    /// How many slots no node is known to have.
    pub(super) fn uncovered(&self) -> usize {
        self.nodes.uncovered()
    }

    pub(super) fn run_on(&self, runtime: &Handle) {
        self.nodes.run_on(runtime);
    }

    pub(super) fn set_name(&self, name: &str) {
        self.nodes.set_name(name);
    }

    /// Spawns a task that outlives its caller.
    pub(super) fn spawn<F>(&self, task: F) -> Result<JoinHandle<F::Output>, Error>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.nodes.spawn(task)
    }
}
