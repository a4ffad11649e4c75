//! The nodes of a cluster: a connection to each that is needed, and the map that leads to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

use super::map::{Address, Answer, SlotMap, read_redirection};
use super::node::Node;
use super::slot::Slot;
use crate::backoff::jittered;
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::probe;
use crate::runtime::{given_one_is_gone, spawn_handle};
use crate::store::redis::error::{Fault, UnusableServer, task_is_gone};
use crate::store::redis::info::Info;
use crate::store::redis::transport::{Endpoint, Live, ReplicaAcks, Timeouts};
use crate::time::{Instant, sleep_until, timeout_at};

/// The address at which to dial a node that calls itself by a host and a port.
pub(crate) type AddressMap = Box<dyn Fn(&str, u16) -> (String, u16) + Send + Sync>;

/// What a cluster is made of.
pub(crate) struct ClusterSettings {
    /// One of the seeds: its user, its certificates and so on are those of all nodes.
    pub(crate) endpoint: Endpoint,
    pub(crate) seeds: Vec<(String, u16)>,
    pub(crate) address_map: Option<AddressMap>,
    pub(crate) label: String,
    pub(crate) timeouts: Timeouts,
    /// How replicas confirm what is written, if they are to.
    pub(crate) acks: Option<ReplicaAcks>,
}

pub(super) struct Nodes {
    endpoint: Endpoint,
    /// Kept, and asked again when no other node answers: a fail-over, or a new set of addresses,
    /// may leave none of those that the map names.
    seeds: Vec<Address>,
    address_map: Option<AddressMap>,
    label: Arc<str>,
    timeouts: Timeouts,
    acks: Option<ReplicaAcks>,
    state: Mutex<State>,
    /// Nodes do not tell how many changes they know of.
    hides_epochs: AtomicBool,
    /// When the last question for the map began. One task asks, the others wait for it.
    asking: tokio::sync::Mutex<Option<Instant>>,
    this: Weak<Self>,
}

struct State {
    map: SlotMap,
    /// How many changes of the cluster the node knew of from which the map is.
    epoch: u64,
    nodes: HashMap<Address, Arc<Node>>,
    /// The runtime that was given.
    home: Option<Handle>,
    /// Where the map was fetched the last time.
    before: Option<Handle>,
    /// How the servers are to call the connections.
    name: Option<String>,
    /// When the map is to be fetched again; `None`: it never was.
    next: Option<Instant>,
    /// Whether a task is about to fetch it.
    is_due: bool,
    /// Why the map could not be fetched the last time, if it could not.
    failure: Option<Error>,
    /// Counts questions, so that not the same node is asked each time.
    turn: usize,
    /// The nodes that are about to take a slot, and until when they are kept although they have
    /// none yet.
    importing: HashMap<Address, Instant>,
}

/// How often the map is fetched although nothing is wrong. A master that dies without a word
/// never says which node replaced it.
const REFRESH: Duration = Duration::from_secs(30);
/// The map is fetched no more often than this, whatever is wrong.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// How long a node is kept that a command was sent to because it is about to take the slot: each
/// such command would need another connection if the first slot of a new node takes long to move.
const IMPORTING: Duration = Duration::from_secs(60);
/// A node that has not answered after this long is not waited for alone.
const HEDGE: Duration = Duration::from_millis(100);
/// How long a better answer is awaited than that of a node that does not know of the last change.
const BETTER: Duration = Duration::from_millis(500);

impl Nodes {
    pub(super) fn new(settings: ClusterSettings) -> Arc<Self> {
        let ClusterSettings { endpoint, seeds, address_map, label, timeouts, acks } = settings;
        metrics::cluster_made();
        let seeds = seeds.iter().map(|(host, port)| Address::new(host, *port)).collect();
        let state = State {
            map: SlotMap::new(),
            epoch: 0,
            nodes: HashMap::new(),
            home: None,
            before: None,
            name: None,
            next: None,
            is_due: false,
            failure: None,
            turn: 0,
            importing: HashMap::new(),
        };
        Arc::new_cyclic(|this| Self {
            endpoint,
            seeds,
            address_map,
            label: label.into(),
            timeouts,
            acks,
            state: Mutex::new(state),
            hides_epochs: AtomicBool::new(false),
            asking: tokio::sync::Mutex::default(),
            this: Weak::clone(this),
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn needs_acks(&self) -> bool {
        self.acks.is_some()
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The node that has the slot, as far as is known.
    pub(super) async fn owner(
        &self,
        slot: Slot,
        until: Option<Instant>,
    ) -> Result<Arc<Node>, Fault> {
        if let Some(node) = self.known_owner(slot) {
            return Ok(node);
        }
        self.refreshed(until).await?;
        self.known_owner(slot).ok_or_else(|| {
            let what =
                format!("no node of {} serves slot {slot}, which the lock is in", self.label);
            Fault::NotSent(Error::plain(ErrorKind::Unavailable, what))
        })
    }

    pub(super) fn known_owner(&self, slot: Slot) -> Option<Arc<Node>> {
        let mut state = self.lock();
        let is_old = state.next.is_some_and(|next| next.remaining().is_zero());
        let owner = state.map.owner(slot)?.clone();
        let node = self.node(&mut state, &owner);
        drop(state);
        if is_old {
            self.refresh_soon();
        }
        Some(node)
    }

    /// The node at an address.
    fn node(&self, state: &mut State, address: &Address) -> Arc<Node> {
        if let Some(node) = state.nodes.get(address) {
            return Arc::clone(node);
        }
        let endpoint = self.endpoint.at(&address.host, address.port);
        let node = Arc::new(Node::new(address.clone(), endpoint, self.timeouts, self.acks));
        if let Some(home) = &state.home {
            node.connection.run_on(home);
        }
        if let Some(name) = &state.name {
            node.connection.set_name(name.clone());
        }
        state.nodes.insert(address.clone(), Arc::clone(&node));
        node
    }

    /// The nodes that have slots, each with one of these. Fetches the map if it is not known.
    pub(super) async fn masters(&self) -> Result<Vec<(Arc<Node>, Slot)>, Fault> {
        if self.lock().next.is_none() {
            self.refreshed(None).await?;
        }
        let mut state = self.lock();
        let map = &state.map;
        let masters = map.masters().iter().filter_map(|it| Some((it.clone(), map.slot_of(it)?)));
        let masters: Vec<_> = masters.collect();
        let node = |(master, slot)| (self.node(&mut state, &master), slot);
        Ok(masters.into_iter().map(node).collect())
    }

    /// Whether no other node than the one at `address` is known to have the slot.
    pub(super) fn may_have(&self, address: &Address, slot: Slot) -> bool {
        self.lock().map.owner(slot).is_none_or(|owner| owner == address)
    }

    /// How many slots no node is known to have.
    pub(super) fn uncovered(&self) -> usize {
        self.lock().map.uncovered()
    }

    /// The node at `asked` said by `words`, those behind `MOVED` or `ASK`, which node to turn to.
    /// With `for_good`, that one has the slot from now on.
    pub(super) fn redirected(
        &self,
        words: &str,
        asked: &Address,
        for_good: bool,
    ) -> Option<Arc<Node>> {
        let (slot, address) = read_redirection(words, asked, |host, port| self.named(host, port))?;
        let mut state = self.lock();
        if for_good {
            state.map.set(slot, &address);
        } else {
            let until = Instant::now().saturating_add(IMPORTING);
            state.importing.insert(address.clone(), until);
        }
        let node = self.node(&mut state, &address);
        drop(state);
        let event = if for_good { "slot.moved" } else { "slot.asked" };
        tracing::debug!(
            target: "lock_core", event, server = %self.label, %slot, from = %asked, to = %address,
            "a node of the cluster redirects a command"
        );
        if for_good {
            self.refresh_soon();
        }
        Some(node)
    }

    fn named(&self, host: &str, port: u16) -> Address {
        match &self.address_map {
            Some(map) => {
                let (host, port) = map(host, port);
                Address::new(&host, port)
            }
            None => Address::new(host, port),
        }
    }

    /// Fetches the map in the background, unless a task is about to.
    pub(super) fn refresh_soon(&self) {
        let Some(this) = self.this.upgrade() else { return };
        if std::mem::replace(&mut self.lock().is_due, true) {
            return;
        }
        let due = Due(Weak::clone(&self.this));
        // Without a runtime, a later call asks.
        drop(self.spawn(async move {
            let _due = due;
            // Calls that fail by it report the error.
            drop(this.refresh(Instant::now()).await);
        }));
    }

    /// Fetches the map now. The question outlives a caller with little patience.
    async fn refreshed(&self, until: Option<Instant>) -> Result<(), Fault> {
        let (asked, Some(this)) = (Instant::now(), self.this.upgrade()) else {
            return Err(Fault::gone());
        };
        let asking =
            self.spawn(async move { this.refresh(asked).await }).map_err(Fault::NotSent)?;
        match timeout_at(self.timeouts.connect_until(until), asking).await {
            Ok(Ok(outcome)) => outcome.map_err(Fault::NotSent),
            Ok(Err(gone)) => Err(Fault::NotSent(self.task_is_gone(gone))),
            // What the question before found tells more than that this one takes long.
            Err(_late) => {
                let failure = self.lock().failure.clone();
                Err(Fault::NotSent(failure.unwrap_or_else(|| self.no_answer())))
            }
        }
    }

    /// Fetches the map, unless another task began to after `asked`.
    async fn refresh(&self, asked: Instant) -> Result<(), Error> {
        let mut last = self.asking.lock().await;
        if let Some(last) = *last {
            if last >= asked {
                return self.lock().failure.clone().map_or(Ok(()), Err);
            }
            sleep_until(last.saturating_add(REFRESH_PAUSE)).await;
        }
        let began = Instant::now();
        let outcome = self.ask_around(began.saturating_add(self.timeouts.connect)).await;
        metrics::map_fetched(outcome.is_ok());
        self.lock().failure = outcome.as_ref().err().cloned();
        *last = Some(began);
        outcome
    }

    /// Asks one node after another for the map until one answers.
    async fn ask_around(&self, limit: Instant) -> Result<(), Error> {
        let (mut nodes, mut asked) = (self.to_ask().into_iter(), FuturesUnordered::new());
        let (mut told, mut are_others, mut behind) = (None::<Error>, true, None::<Answer>);
        loop {
            match nodes.next() {
                Some(node) => asked.push(self.ask(node, limit)),
                None if asked.is_empty() => break,
                None => {}
            }
            let patience = match (nodes.len(), &behind) {
                (1.., _) => HEDGE,
                (0, Some(_)) => BETTER,
                (0, None) => limit.remaining(),
            };
            let patience = limit.min(Instant::now().saturating_add(patience));
            match timeout_at(patience, asked.next()).await {
                Ok(Some(Ok(answer))) if self.is_behind(&answer) => {
                    behind = behind.filter(|other| other.epoch >= answer.epoch).or(Some(answer));
                }
                Ok(Some(Ok(answer))) => {
                    self.learn(&answer);
                    return Ok(());
                }
                Ok(Some(Err(error))) => {
                    are_others &= is_by_another_server(&error);
                    if told.as_ref().is_none_or(|told| weight(told) <= weight(&error)) {
                        told = Some(error);
                    }
                }
                Ok(None) => {}
                Err(_late) if nodes.len() > 0 && !limit.remaining().is_zero() => {}
                Err(_late) => {
                    are_others = false;
                    break;
                }
            }
        }
        if let Some(answer) = behind {
            // Better than none: the cluster may have been set up anew.
            self.learn(&answer);
            return Ok(());
        }
        let told = told.unwrap_or_else(|| self.no_answer());
        if are_others || !is_by_another_server(&told) {
            return Err(told);
        }
        // It may have the address of a node that left, and is no reason to give the others up.
        let what = format!(
            "no node of {} answers, and one of its addresses leads to a server of another kind",
            self.label
        );
        Err(Error::unavailable(what, told))
    }

    async fn ask(&self, node: Arc<Node>, limit: Instant) -> Result<Answer, Error> {
        let live = node.connection.live(Some(limit)).await?;
        let (mut slots, named) = (redis::cmd("CLUSTER"), |host: &str, port| self.named(host, port));
        let (reply, epoch) = join(live.send(slots.arg("SLOTS")), self.epoch_of(&live)).await;
        let answer = Answer::read(&reply?, &node.address, named).map(|it| it.of(epoch));
        answer.ok_or_else(|| Fault::Garbled.into())
    }

    /// How many changes of the cluster the node knows of, if it tells.
    async fn epoch_of(&self, live: &Live) -> Option<u64> {
        if self.hides_epochs.load(Ordering::Relaxed) {
            return None;
        }
        match live.send(redis::cmd("CLUSTER").arg("INFO")).await {
            Ok(reply) => Info::read(reply).field("cluster_current_epoch")?.parse().ok(),
            Err(fault) => {
                // Not permitted, or not known: it will not be either the next time.
                self.hides_epochs.fetch_or(fault.is_by_the_server(), Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether the answer is worth less than what is known: the node knows of no slot, because it
    /// is not, or not yet, a part of the cluster; or it does not know of the last change, because
    /// it is cut off from the others.
    fn is_behind(&self, answer: &Answer) -> bool {
        answer.is_empty() || answer.epoch.is_some_and(|epoch| epoch < self.lock().epoch)
    }

    /// The nodes in the order in which to ask them: first those with an open connection, then the
    /// others of the map, last the seeds.
    fn to_ask(&self) -> Vec<Arc<Node>> {
        let mut state = self.lock();
        state.before = Handle::try_current().ok();
        state.turn = state.turn.wrapping_add(1);
        let mut known = [state.map.masters(), state.map.replicas()].concat();
        let turn = state.turn.checked_rem(known.len()).unwrap_or(0);
        known.rotate_left(turn);
        known.extend(self.seeds.iter().cloned());
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for address in &known {
            let node = self.node(&mut state, address);
            if !nodes.iter().any(|other| Arc::ptr_eq(other, &node)) {
                nodes.push(node);
            }
        }
        drop(state);
        nodes.sort_by_key(|node| node.connection.open().is_none());
        nodes
    }

    fn learn(&self, answer: &Answer) {
        let mut state = self.lock();
        let before = state.map.masters().to_vec();
        state.map.merge(answer);
        state.epoch = answer.epoch.unwrap_or(state.epoch);
        state.next = Some(Instant::now().saturating_add(jittered(REFRESH)));
        let State { map, nodes, importing, .. } = &mut *state;
        let is_replaced = |master: &&Address| !map.masters().contains(master);
        for former in before.iter().filter(is_replaced) {
            if let Some(node) = nodes.get(former) {
                node.connection.replaced();
            }
        }
        let mut gone = Vec::new();
        importing.retain(|_, until| !until.remaining().is_zero());
        nodes.retain(|address, node| {
            let is_needed = map.masters().contains(address)
                || self.seeds.contains(address)
                || importing.contains_key(address);
            if !is_needed {
                gone.push(Arc::clone(node));
            }
            is_needed
        });
        drop(state);
        // Their listeners report the end of their channels.
        drop(gone);
    }

    pub(super) fn run_on(&self, runtime: &Handle) {
        let mut state = self.lock();
        state.home = Some(runtime.clone());
        let nodes: Vec<_> = state.nodes.values().cloned().collect();
        drop(state);
        for node in nodes {
            node.connection.run_on(runtime);
            node.close_listener();
        }
    }

    /// Names the connections, for `CLIENT LIST`. The first name stays.
    pub(super) fn set_name(&self, name: &str) {
        let mut state = self.lock();
        let name = state.name.get_or_insert_with(|| name.to_owned()).clone();
        let nodes: Vec<_> = state.nodes.values().cloned().collect();
        drop(state);
        for node in nodes {
            node.connection.set_name(name.clone());
        }
    }

    /// Spawns a task that outlives its caller.
    pub(super) fn spawn<F>(&self, task: F) -> Result<JoinHandle<F::Output>, Error>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let state = self.lock();
        let (home, before) = (state.home.clone(), state.before.clone());
        drop(state);
        let home = match home {
            Some(home) => probe::timers(&home).map(|()| home)?,
            None => spawn_handle(before)?,
        };
        Ok(home.spawn(task))
    }

    /// The error for a task that was spawned here and did not finish.
    pub(super) fn task_is_gone(&self, gone: JoinError) -> Error {
        if gone.is_cancelled() && self.lock().home.is_some() {
            return given_one_is_gone();
        }
        task_is_gone(gone)
    }

    fn no_answer(&self) -> Error {
        let what = format!("no node of {} answers", self.label);
        Error::plain(ErrorKind::Unavailable, what)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much an error tells: most, what a node says of this user; least, that there is no server.
fn weight(error: &Error) -> u8 {
    if !error.is_permanent() {
        return 0;
    }
    if is_by_another_server(error) { 1 } else { 2 }
}

/// Whether a server said that it is no node on which locks can be kept.
fn is_by_another_server(error: &Error) -> bool {
    error.cause().is_some_and(|cause| cause.is::<UnusableServer>())
}

/// Until it is dropped, a task is about to fetch the map.
struct Due(Weak<Nodes>);

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(nodes) = self.0.upgrade() {
            nodes.lock().is_due = false;
        }
    }
}
