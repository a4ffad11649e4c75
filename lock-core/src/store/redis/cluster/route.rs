//! The way of one command to the node that has its lock, through redirections.
//!
//! What a refusal says is listed in `store/redis/error.rs`. A refused command was not executed, so
//! it may be sent again without doubt about the first time. But never in a loop without a pause: a
//! node may redirect to itself, and two may redirect to each other.

use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::nodes::Nodes;
use super::slot::Slot;
use crate::backoff::jittered;
use crate::error::Error;
use crate::metrics::{self, Redirection};
use crate::store::redis::error::{Elsewhere, Fault};
use crate::store::redis::transport::{Connection, Live};
use crate::time::{Instant, sleep_until};

/// The way of one command.
pub(crate) struct ClusterRoute {
    nodes: Arc<Nodes>,
    slot: Slot,
    /// The node that was tried last.
    node: Option<Arc<Node>>,
    /// The node that may have the keys while the slot moves, for one attempt.
    importing: Option<Arc<Node>>,
    /// Whether that node was asked to serve a slot that it is about to take.
    is_asking: bool,
    redirections: u32,
    /// Since when the keys of the command are on two nodes.
    split_since: Option<Instant>,
    /// For how long to try a command whose keys are on two nodes.
    patience: Duration,
    pause: Duration,
    /// Whether the command may be sent again if its connection breaks.
    may_repeat: bool,
}

/// A node that was sent a command because it has the slot.
pub(crate) struct Serving {
    nodes: Arc<Nodes>,
    node: Arc<Node>,
    slot: Slot,
}

/// More redirections than this are no way: nodes do not agree on who has the slot.
const MOST_REDIRECTIONS: u32 = 5;
/// The pause before the second redirection is followed; it doubles with each further one.
const REDIRECTION_PAUSE: Duration = Duration::from_millis(20);
/// The first pause while the keys of a command are on two nodes, and the longest. A slot with locks
/// alone moves in milliseconds.
const SPLIT_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_SPLIT_PAUSE: Duration = Duration::from_millis(100);

impl ClusterRoute {
    pub(super) fn new(nodes: Arc<Nodes>, slot: Slot, patience: Duration, may_repeat: bool) -> Self {
        Self {
            nodes,
            slot,
            node: None,
            importing: None,
            is_asking: false,
            redirections: 0,
            split_since: None,
            patience,
            pause: SPLIT_PAUSE,
            may_repeat,
        }
    }

    /// Where to send the command now, and what tells whether that node still has the slot later;
    /// `None`: the node is about to take the slot, and has to be asked to serve it.
    pub(crate) async fn next(
        &mut self,
        until: Option<Instant>,
    ) -> Result<(&Arc<Connection>, Arc<Live>, Option<Serving>), Fault> {
        let importing = self.importing.take();
        self.is_asking = importing.is_some();
        let node = match importing {
            Some(node) => node,
            None => self.nodes.owner(self.slot, until).await?,
        };
        let node = self.node.insert(node);
        let live = match node.connection.live(until).await {
            Ok(live) => live,
            Err(fault) => {
                self.nodes.refresh_soon();
                return Err(fault);
            }
        };
        let serving = (!self.is_asking).then(|| Serving {
            nodes: Arc::clone(&self.nodes),
            node: Arc::clone(node),
            slot: self.slot,
        });
        Ok((&node.connection, live, serving))
    }

    /// The command ended with `fault`: returns when it is to be sent again, or the fault if it is
    /// not.
    pub(crate) async fn after(
        &mut self,
        fault: Fault,
        until: Option<Instant>,
    ) -> Result<(), Fault> {
        match fault.elsewhere() {
            Some(Elsewhere::Moved) => {
                metrics::redirected(Redirection::Moved);
                self.redirected(fault, true, until).await
            }
            Some(Elsewhere::Moving) => {
                metrics::redirected(Redirection::Ask);
                self.redirected(fault, false, until).await
            }
            Some(Elsewhere::Split) => {
                metrics::redirected(Redirection::TryAgain);
                self.split(fault, until).await
            }
            Some(Elsewhere::WrongServer) => {
                metrics::redirected(Redirection::NotServed);
                self.nodes.refresh_soon();
                let what = format!("the node of slot {} does not serve it now", self.slot);
                Err(Fault::NotSent(Error::unavailable(what, cause(fault))))
            }
            Some(Elsewhere::Never | Elsewhere::NotNow) => Err(fault),
            None if fault.is_by_the_server() => Err(fault),
            None => {
                self.nodes.refresh_soon();
                let is_broken = matches!(fault, Fault::Broken(_));
                if is_broken && std::mem::take(&mut self.may_repeat) { Ok(()) } else { Err(fault) }
            }
        }
    }

    async fn redirected(
        &mut self,
        fault: Fault,
        for_good: bool,
        until: Option<Instant>,
    ) -> Result<(), Fault> {
        let node = self
            .node
            .as_ref()
            .zip(fault.words())
            .and_then(|(asked, words)| self.nodes.redirected(words, &asked.address, for_good));
        let Some(node) = node else { return Err(unreadable(fault)) };
        self.redirections += 1;
        let pause = match self.redirections {
            0 | 1 => Duration::ZERO,
            others => REDIRECTION_PAUSE * (1 << others.min(MOST_REDIRECTIONS)) / 4,
        };
        if self.redirections > MOST_REDIRECTIONS || !self.pause(pause, until).await {
            let what = format!(
                "the nodes of {} redirect to each other for slot {}",
                self.nodes.label(),
                self.slot
            );
            return Err(Fault::NotSent(Error::unavailable(what, cause(fault))));
        }
        if !for_good {
            self.importing = Some(node);
        }
        Ok(())
    }

    /// Some keys of the command are on the node that the slot leaves, and some where it goes.
    async fn split(&mut self, fault: Fault, until: Option<Instant>) -> Result<(), Fault> {
        if self.is_asking {
            // The way there was right: the other keys are still to come.
            self.redirections = self.redirections.saturating_sub(1);
        }
        let now = Instant::now();
        let since = *self.split_since.get_or_insert(now);
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_SPLIT_PAUSE);
        let is_over = now.saturating_since(since) >= self.patience;
        if is_over || !self.pause(jittered(pause), until).await {
            // It may not be the move that goes wrong, but the map.
            self.nodes.refresh_soon();
            if is_over {
                tracing::debug!(
                    target: "lock_core", event = "slot.migrating", server = self.nodes.label(),
                    slot = %self.slot, waited_seconds = self.patience.as_secs_f64(),
                    "a slot of the cluster is still on its way to another node"
                );
            }
            return Err(fault);
        }
        Ok(())
    }

    /// Pauses. Returns false, at once, if the caller does not wait for so long.
    async fn pause(&self, pause: Duration, until: Option<Instant>) -> bool {
        let end = Instant::now().saturating_add(pause);
        if until.is_some_and(|until| until <= end) {
            return false;
        }
        if !pause.is_zero() {
            sleep_until(end).await;
        }
        true
    }
}

impl Serving {
    /// Whether another node is known by now to have the slot.
    pub(crate) fn is_over(&self) -> bool {
        !self.nodes.may_have(&self.node.address, self.slot)
    }
}

/// A node redirects to a place that cannot be read. It did not execute the command.
pub(super) fn unreadable(fault: Fault) -> Fault {
    let what = "a node of the cluster redirects to a place that cannot be read";
    Fault::NotSent(Error::unavailable(what, cause(fault)))
}

/// The server's own words.
fn cause(fault: Fault) -> Error {
    Error::from(fault)
}
