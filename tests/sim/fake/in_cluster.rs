//! A server that is a node of a cluster, or has a replica that passes on what it publishes.

use std::sync::{Arc, Weak};

use lock_testkit::Rng;
use tokio::time::{Instant, sleep};

use super::node::{Node, Refusal, Subject, View, slot};
use super::replica::Feed;
use super::{Core, Fake, Peer};

impl Fake {
    /// Makes it a node of a cluster, in a shard with `peer`.
    pub(crate) fn join(&self, name: String, view: View, peer: &Self, rng: Rng) {
        let (leaving, coming, down_since) = (None, None, None);
        self.core().node = Some(Node { name, view, leaving, coming, down_since });
        self.publishes_to(peer, rng);
    }

    /// While `peer` is its replica, that one passes on what this one publishes.
    pub(crate) fn publishes_to(&self, peer: &Self, rng: Rng) {
        self.core().peer = Some(Peer { server: Arc::downgrade(&peer.0), rng });
    }

    /// Learns what is new in the cluster. Slots that have another node by that end their channels
    /// here.
    pub(crate) fn learn(&self, view: View) {
        let mut core = self.core();
        let Core { node: Some(node), channels, .. } = &mut *core else { return };
        let before = node.learn(view);
        let told = channels.keep(|channel| node.agrees(&before, channel));
        drop(core);
        for (to, message) in told {
            to.answer(message, None);
        }
    }

    /// A slot is about to move to the node `to`, which is this one or another.
    pub(crate) fn moves(&self, slot: u16, to: &str) {
        if let Some(node) = &mut self.core().node {
            node.moves(slot, to);
        }
    }

    /// From then on it does not see the other nodes; `None`: it does.
    pub(crate) fn is_down_since(&self, since: Option<Instant>) {
        if let Some(node) = &mut self.core().node {
            node.down_since = since;
        }
    }

    /// The keys of a slot.
    pub(crate) fn keys_in(&self, of: u16) -> Vec<Vec<u8>> {
        let core = self.core();
        let now_ms = core.clock_us() / 1_000;
        core.keys.all(now_ms).filter(|key| slot(key) == of).cloned().collect()
    }

    /// Moves a key to another node.
    pub(crate) fn migrate(&self, key: &[u8], to: &Self) {
        let (mut from, mut to) = (self.core(), to.core());
        let (now_ms, there_ms) = (from.clock_us() / 1_000, to.clock_us() / 1_000);
        to.keys.take_over(key, &mut from.keys, now_ms, there_ms);
        from.tell_replica();
        to.tell_replica();
    }

    /// Passes what was published to the replica. Clients that listen there are not counted.
    pub(super) fn pass_on(&self) {
        let mut core = self.core();
        let published = std::mem::take(&mut core.published);
        let is_cut = core.feed.as_ref().is_none_or(Feed::is_cut);
        let Some(peer) = core.peer.as_mut().filter(|_| !is_cut) else { return };
        for (kind, channel, message) in published {
            let (peer, way) = (Weak::clone(&peer.server), peer.rng.ms(0..=5));
            let _arrives = tokio::spawn(async move {
                sleep(way).await;
                if let Some(peer) = peer.upgrade() {
                    let heard = Self(Arc::clone(&peer)).tell_all(kind, &channel, &message);
                    Self(peer).core().counts.by_replica += usize::from(heard > 0);
                }
            });
        }
    }
}

impl Core {
    /// Why this node does not execute a command; `None` if it does.
    pub(super) fn refusal(&self, args: &[Vec<u8>], is_asking: bool) -> Option<Refusal> {
        let now_ms = self.now_us / 1_000;
        let is_there = |key: &[u8]| self.keys.has(key, now_ms);
        self.node.as_ref()?.refusal(&Subject::of(args), is_asking, is_there)
    }
}
