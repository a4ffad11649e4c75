//! How the grants of each namespace and slot reach this store: by a sharded channel for each slot
//! in which a task waits.
//!
//! The channel of a namespace and a slot has the same name for the life of the store, on whichever
//! node the slot is, so a waiter keeps its place when the slot moves. The node that has the slot
//! publishes there, so the number of receivers that it counts is right.
//!
//! When a subscription ends, the waiters in its slot claim again, and subscribe at the node that
//! has the slot by then. A release in between finds them away, and passes them over.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use redis::Value;

use super::listener::{Listener, News};
use super::node::Node;
use super::nodes::Nodes;
use super::route::unreadable;
use super::slot::Slot;
use crate::error::Error;
use crate::store::Token;
use crate::store::redis::error::{Elsewhere, Fault, discreet};
use crate::store::redis::keys::{self, Tag};
use crate::time::{Instant, timeout_at};

/// Receives what arrives on the channels.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// A message arrived, by the process behind the command connection `generation`. 0: by one that
    /// is not known.
    fn message(&self, generation: u64, payload: &Value);

    /// Messages for the waiters for locks with these tags may have been missed.
    fn missed(&self, tags: &HashSet<Tag>);
}

pub(super) struct Inboxes {
    nodes: Arc<Nodes>,
    receiver: Arc<dyn Receiver>,
    /// Tells this store's channels from those of others; drawn when it is first needed.
    id: OnceLock<Token>,
}

/// How often a subscription is tried again at once: where the slot is, or on another listener if
/// the first one broke before it was sent.
const MOST_TURNS: u32 = 3;

impl Inboxes {
    pub(super) fn new(nodes: Arc<Nodes>, receiver: Arc<dyn Receiver>) -> Self {
        Self { nodes, receiver, id: OnceLock::new() }
    }

    /// The channel on which the grants of `namespace` in `slot` arrive, subscribed if need be;
    /// `None` if none arrive.
    ///
    /// The attempt outlives a caller with little patience. One that fails may work soon, so the
    /// first fails the caller, too; but it never stays so: after a few in a row the waiters for
    /// locks on this node do without messages.
    pub(super) async fn join(
        self: &Arc<Self>,
        namespace: &str,
        slot: Slot,
        until: Option<Instant>,
    ) -> Result<Option<String>, Fault> {
        let node = self.nodes.owner(slot, until).await?;
        // Before anything else: without it, the claim would fail as well.
        if let Err(fault) = node.connection.live(until).await {
            self.nodes.refresh_soon();
            return Err(fault);
        }
        let channel = self.channel(namespace, slot)?;
        if node.hearing.is_given_up() {
            return Ok(None);
        }
        if let Some(listener) = node.listener()
            && listener.hears(&channel)
        {
            if listener.is_quiet() {
                self.ping(listener);
            }
            return Ok(Some(channel));
        }
        let (this, subscribed) = (Arc::clone(self), channel.clone());
        let subscribing = self
            .nodes
            .spawn(async move { this.subscribe(&subscribed, slot).await })
            .map_err(Fault::NotSent)?;
        let timeouts = self.nodes.timeouts();
        let longest = timeouts.call_until();
        let until = until.map_or(longest, |until| until.min(longest));
        let hears = match timeout_at(until, subscribing).await {
            Ok(Ok(hears)) => hears.map_err(Fault::before_the_call)?,
            Ok(Err(gone)) => return Err(Fault::NotSent(self.nodes.task_is_gone(gone))),
            Err(_late) => return Err(Fault::silent(self.nodes.label()).before_the_call()),
        };
        Ok(hears.then_some(channel))
    }

    /// Whether the grants of `namespace` in `slot` arrive now, if they are to arrive at all.
    pub(super) fn hears(&self, namespace: &str, slot: Slot) -> bool {
        let Some(node) = self.nodes.known_owner(slot) else { return false };
        if node.hearing.is_given_up() {
            return true;
        }
        let channel = self.channel(namespace, slot);
        node.listener()
            .zip(channel.ok())
            .is_some_and(|(listener, channel)| listener.hears(&channel))
    }

    fn channel(&self, namespace: &str, slot: Slot) -> Result<String, Fault> {
        let id = match self.id.get() {
            Some(id) => *id,
            None => {
                let fresh = Token::fresh().map_err(Fault::NotSent)?;
                *self.id.get_or_init(|| fresh)
            }
        };
        let mut text = [0; Token::TEXT_LEN];
        Ok(keys::inbox(namespace, slot.tag(), id.encode(&mut text)))
    }

    /// Subscribes `channel` at the node that has its slot. Returns whether grants arrive there.
    async fn subscribe(&self, channel: &str, slot: Slot) -> Result<bool, Fault> {
        let (timeouts, mut turn) = (self.nodes.timeouts(), 0);
        loop {
            turn += 1;
            let node = self.nodes.owner(slot, Some(timeouts.call_until())).await?;
            let listener = match self.listener(&node).await {
                Ok(Some(listener)) => listener,
                Ok(None) => return Ok(false),
                Err(fault) => return self.failed(&node, fault),
            };
            let Err(fault) = listener.subscribe(channel, timeouts).await else {
                return self.may_publish(&node, channel).await;
            };
            match fault.elsewhere() {
                Some(Elsewhere::Moved) if turn <= MOST_TURNS => {
                    let words = fault.words().unwrap_or_default();
                    if self.nodes.redirected(words, &node.address, true).is_none() {
                        return Err(unreadable(fault));
                    }
                }
                None if matches!(fault, Fault::NotSent(_)) && turn <= MOST_TURNS => {}
                None => return self.failed(&node, fault),
                Some(_) => {
                    self.nodes.refresh_soon();
                    let what = format!("the node of slot {slot} does not serve it now");
                    return Err(Fault::NotSent(Error::unavailable(what, Error::from(fault))));
                }
            }
        }
    }

    /// The listener of a node, opened if there is none; `None` if waiters do without.
    async fn listener(&self, node: &Arc<Node>) -> Result<Option<Arc<Listener>>, Fault> {
        let _opening = node.opening.lock().await;
        // Another task may have found out meanwhile.
        if node.hearing.is_given_up() {
            return Ok(None);
        }
        let before = node.listener();
        if let Some(listener) = before.as_ref().filter(|listener| !listener.is_worn()) {
            return Ok(Some(Arc::clone(listener)));
        }
        let (nodes, receiver) = (Arc::downgrade(&self.nodes), Arc::clone(&self.receiver));
        let of = Arc::downgrade(node);
        let report = move |news: News<'_>| match news {
            News::Message(channel, payload) => {
                receiver.message(generation(&nodes, &of, Slot::of(channel)), payload);
            }
            News::Ended(channel) => {
                refresh(&nodes);
                receiver.missed(&HashSet::from([Slot::of(channel).tag()]));
            }
            News::Gone(channels) => {
                refresh(&nodes);
                let tags = channels.iter().map(|channel| Slot::of(channel).tag()).collect();
                receiver.missed(&tags);
            }
        };
        let limit = self.nodes.timeouts().call_until();
        let listener = match (Listener::open(&node.connection, limit, report).await, before) {
            (Ok(listener), _) => Arc::new(listener),
            // It still works.
            (Err(_), Some(before)) => return Ok(Some(before)),
            (Err(fault), None) => return Err(fault),
        };
        // One that it replaces reports the end of its channels.
        node.set_listener(Arc::clone(&listener));
        Ok(Some(listener))
    }

    /// A node was not subscribed at, for `fault`. Returns false if its waiters do without messages.
    fn failed(&self, node: &Node, fault: Fault) -> Result<bool, Fault> {
        if fault.is_by_the_server() {
            node.hearing.refused();
        } else {
            self.nodes.refresh_soon();
            if !node.hearing.failed() {
                return Err(fault);
            }
        }
        if node.hearing.is_first_warning() {
            let why = match fault {
                Fault::Refused(error) => discreet(error).to_string(),
                other => Error::from(other).to_string(),
            };
            tracing::warn!(
                target: "lock_core", server = node.connection.label(), why,
                "no sharded pub/sub notifications from redis: waiters poll instead, which is \
                 slower. See the ACL line in the documentation of `RedisStore`"
            );
        }
        Ok(false)
    }

    /// Publishes to a channel with no subscribers to test the permission: if this user may not
    /// publish, its peers cannot notify this store either.
    async fn may_publish(&self, node: &Node, channel: &str) -> Result<bool, Fault> {
        if !node.hearing.may_publish() {
            let live = node.connection.live(None).await?;
            let mut publish = redis::cmd("SPUBLISH");
            publish.arg(format!("{channel}:check")).arg("");
            match live.send(&publish).await {
                Err(fault) if fault.elsewhere().is_none() => return self.failed(node, fault),
                // Elsewhere it would have been permitted, or not: the next one tells.
                Err(_) => {}
                Ok(_) => node.hearing.published(),
            }
        }
        node.hearing.works();
        Ok(true)
    }

    /// Asks a listener whether it is alive, without a caller that waits for it.
    fn ping(&self, listener: Arc<Listener>) {
        let timeouts = self.nodes.timeouts();
        drop(self.nodes.spawn(async move { listener.ping(timeouts).await }));
    }
}

/// The command connection that leads to the process that the listener of the node hears, if there
/// is one: the times of another process would say nothing. None as well if another node is known to
/// have the slot: a master that was replaced hands locks on until it learns of that.
fn generation(nodes: &Weak<Nodes>, node: &Weak<Node>, slot: Slot) -> u64 {
    let (Some(nodes), Some(node)) = (nodes.upgrade(), node.upgrade()) else { return 0 };
    if !nodes.may_have(&node.address, slot) {
        return 0;
    }
    let (Some(listener), Some(live)) = (node.listener(), node.connection.open()) else { return 0 };
    let is_same = listener.run_id().is_some_and(|id| live.info.field("run_id") == Some(id));
    if is_same { live.generation } else { 0 }
}

fn refresh(nodes: &Weak<Nodes>) {
    if let Some(nodes) = nodes.upgrade() {
        nodes.refresh_soon();
    }
}
