//! The connection to one server, replaced when it is broken or silent.
//!
//! redis-rs keeps a connection on which every command times out for as long as the kernel does:
//! minutes, if packets vanish. Here a few unanswered commands in a row are enough to dial anew.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{ConnectionLike as _, PubSub};
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::runtime::{self, Handle};
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::batch::Batcher;
use super::clock::ServerClock;
use super::connector::Endpoint;
#[cfg(feature = "redis-cluster")]
use super::connector::Wire;
#[cfg(feature = "redis-cluster")]
use super::dial::OnPush;
use super::dial::{Dialer, Dialled};
use super::link::{Health, Link, Timeouts};
use super::process::{ClockId, Process};
use super::replicas::ReplicaAcks;
use super::sentinel::{Master, Sentinels};
use super::watch::{self, Cause};
use crate::error::{Error, ErrorKind};
use crate::probe;
use crate::runtime::{AliveFlag, given_one_is_gone, spawn_handle};
use crate::store::redis::error::{Fault, task_is_gone};
use crate::store::redis::info::Info;
use crate::time::{Instant, Late, timeout_at};

/// A connection that replaces itself, and what is known about the server behind it.
pub(crate) struct Connection {
    dialer: Dialer,
    label: Arc<str>,
    timeouts: Timeouts,
    acks: Option<ReplicaAcks>,
    current: Mutex<Current>,
    /// One task dials, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
    clock: ServerClock,
    observer: Box<dyn Observer>,
    this: Weak<Self>,
}

/// Receives what arrives without having been requested.
pub(crate) trait Observer: Send + Sync + 'static {
    /// A message arrived on a subscribed channel, on connection `generation` or on one that listens
    /// for it.
    fn message(&self, connection: &Arc<Connection>, generation: u64, payload: &Value);

    /// Messages may have been missed.
    fn missed(&self);
}

#[derive(Default)]
struct Current {
    /// The runtime that was given; `None`: each connection runs where it was dialled.
    home: Option<Handle>,
    /// Where the last connection was dialled.
    before: Option<Handle>,
    live: Option<Arc<Live>>,
    /// The number of the last connection, so that a fault is charged to the connection on which it
    /// happened.
    generation: u64,
    /// Commands in a row that had no reply in time.
    silences: u32,
    /// Connections in a row that led to the wrong server.
    wrong_servers: u32,
    /// The last connection that was abandoned: given up while it worked. Its messages do not count.
    abandoned: u64,
    /// Why the last connection ended.
    cause: Cause,
    process: Process,
}

/// An open connection.
pub(crate) struct Live {
    pub(crate) generation: u64,
    /// Whether it can carry pushed messages.
    pub(crate) resp3: bool,
    /// What the server said of itself at the dial.
    pub(crate) info: Info,
    /// What the process drew when it started; empty if it does not tell.
    #[cfg(feature = "redis-quorum")]
    pub(crate) run_id: Arc<str>,
    /// Where the server is.
    pub(crate) address: Arc<str>,
    /// Whose times its replies tell.
    pub(crate) clock: ClockId,
    pub(crate) batcher: Arc<Batcher>,
    link: Arc<Link>,
    /// Where the batcher's driver and the wire's run.
    runtime: runtime::Id,
    /// Falls with the batcher's driver, and so with the runtime that drives the connection.
    alive: AliveFlag,
    driver: AbortHandle,
    /// Watches the sentinels.
    watch: Option<AbortHandle>,
}

/// This many commands in a row without a reply are no coincidence. With one more, a lease of three
/// seconds would not survive a connection on which packets vanish.
const MAX_SILENCES: u32 = 2;

/// How long an abandoned server has to say whether it is a master.
const ROLE_TIMEOUT: Duration = Duration::from_millis(500);

/// Numbers the connections of this process: no two of a cluster's have the same.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

impl Connection {
    /// A connection to `endpoint`, or to the server that the sentinels name; dialled when it is
    /// first needed.
    pub(crate) fn new(
        endpoint: Endpoint,
        sentinels: Option<Sentinels>,
        label: String,
        timeouts: Timeouts,
        acks: Option<ReplicaAcks>,
        observer: impl Observer,
    ) -> Arc<Self> {
        let label: Arc<str> = label.into();
        let dialer = Dialer::new(endpoint, sentinels, Arc::clone(&label), timeouts.connect);
        Self::by(dialer, label, timeouts, acks, observer)
    }

    /// The same to a node of a cluster. One that has not, or not yet, the slot of a command says
    /// so, and is kept.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn of_node(
        endpoint: Endpoint,
        label: String,
        timeouts: Timeouts,
        acks: Option<ReplicaAcks>,
        observer: impl Observer,
    ) -> Arc<Self> {
        let label: Arc<str> = label.into();
        let dialer = Dialer::new(endpoint, None, Arc::clone(&label), timeouts.connect).of_node();
        Self::by(dialer, label, timeouts, acks, observer)
    }

    fn by(
        dialer: Dialer,
        label: Arc<str>,
        timeouts: Timeouts,
        acks: Option<ReplicaAcks>,
        observer: impl Observer,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            dialer,
            label,
            timeouts,
            acks,
            current: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            clock: ServerClock::new(),
            observer: Box::new(observer),
            this: Weak::clone(this),
        })
    }

    /// The open connection, dialled if there is none.
    ///
    /// The dial outlives a caller with less patience than a handshake takes, or none would ever
    /// succeed.
    pub(crate) async fn live(self: &Arc<Self>, until: Option<Instant>) -> Result<Arc<Live>, Fault> {
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let until = self.timeouts.connect_until(until);
        let this = Arc::clone(self);
        let dialled = self.spawn(async move { this.dial().await }).map_err(Fault::NotSent)?;
        match timeout_at(until, dialled).await {
            Ok(Ok(live)) => live.map_err(Fault::NotSent),
            Ok(Err(gone)) => Err(Fault::NotSent(self.task_is_gone(gone))),
            Err(Late) => Err(Fault::NotSent(self.dialer.last_failure().unwrap_or_else(|| {
                Error::plain(
                    ErrorKind::Unavailable,
                    format!("no connection to {} in time", self.label),
                )
            }))),
        }
    }

    /// The open connection, if there is one and it runs where it should.
    pub(crate) fn open(&self) -> Option<Arc<Live>> {
        let current = self.lock();
        let live = current.live.as_ref().filter(|live| live.alive.is_alive())?;
        let is_home = current.home.as_ref().is_none_or(|home| home.id() == live.runtime);
        is_home.then(|| Arc::clone(live))
    }

    /// Runs on `runtime` from now on. Commands that are under way on a connection elsewhere keep
    /// it until they have their replies.
    pub(crate) fn run_on(&self, runtime: &Handle) {
        let mut current = self.lock();
        current.home = Some(runtime.clone());
        let elsewhere = current.live.take_if(|live| live.runtime != runtime.id());
        drop(current);
        if elsewhere.is_some() {
            self.observer.missed();
        }
    }

    /// Names this connection and those after it, for `CLIENT LIST`. The first name stays.
    pub(crate) fn set_name(&self, name: String) {
        if !self.dialer.name().set(name) {
            return;
        }
        let current = self.lock();
        if let (Some(live), Some(home)) = (&current.live, &current.before) {
            self.tell_name(live, home);
        }
    }

    /// Tells the server the name of the connection, apart from all that waits for a reply.
    fn tell_name(&self, live: &Live, home: &Handle) {
        if self.dialer.name().is_usable() {
            let (this, wire) = (Weak::clone(&self.this), live.link.wire());
            home.spawn(async move {
                if let Some(this) = this.upgrade() {
                    this.dialer.name().tell(wire, this.timeouts.connect).await;
                }
            });
        }
    }

    /// Spawns a task that outlives its caller.
    pub(crate) fn spawn<F>(&self, task: F) -> Result<JoinHandle<F::Output>, Error>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let current = self.lock();
        let (home, before) = (current.home.clone(), current.before.clone());
        drop(current);
        let home = match home {
            Some(home) => probe::timers(&home).map(|()| home)?,
            None => spawn_handle(before)?,
        };
        Ok(home.spawn(task))
    }

    /// The error for a task that was spawned here and did not finish.
    pub(crate) fn task_is_gone(&self, gone: JoinError) -> Error {
        if gone.is_cancelled() && self.lock().home.is_some() {
            return given_one_is_gone();
        }
        task_is_gone(gone)
    }

    async fn dial(&self) -> Result<Arc<Live>, Error> {
        let _dialing = self.dialing.lock().await;
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let generation = NEXT_GENERATION.fetch_add(1, Ordering::Relaxed);
        let this = Weak::clone(&self.this);
        let on_push = move |push: PushInfo| {
            if let Some(this) = this.upgrade() {
                this.pushed(generation, &push);
            }
        };
        let dialled = self.dialer.dial(&self.clock, generation, Arc::new(on_push)).await?;
        let mut current = self.lock();
        current.generation = generation;
        current.before = Some(Handle::current());
        current.silences = 0;
        let (address, database) = (dialled.endpoint.address(), dialled.endpoint.database());
        let (cause, epoch) = (std::mem::take(&mut current.cause), dialled.epoch());
        let left = current.process.address().filter(|left| *left != address).map(str::to_owned);
        let forgot = current.process.met(&address, &dialled.info, database);
        let live =
            Arc::new(self.start(dialled, address.into(), generation, current.process.clock()));
        self.tell_name(&live, &Handle::current());
        let before = current.live.replace(Arc::clone(&live));
        drop(current);
        if let (Some(from), Some(epoch)) = (left, epoch) {
            tracing::info!(
                target: "lock_core", event = "store.moved", server = %self.label, %from,
                to = %live.address, epoch, cause = cause.name(),
                "connected to the master that took the place of another"
            );
        }
        if forgot {
            tracing::warn!(
                target: "lock_core", event = "store.forgot", server = %self.label,
                "the lock server restarted without its data: it may grant locks that clients still \
                 hold"
            );
        }
        // It ended with its runtime, or was dialled on another one than was given meanwhile.
        if before.is_some() {
            self.observer.missed();
        }
        Ok(live)
    }

    /// Drives the batcher on the runtime that polls this, which is the one that drives the wire.
    fn start(&self, dialled: Dialled, address: Arc<str>, generation: u64, clock: ClockId) -> Live {
        let Dialled { wire, resp3, info, endpoint: _, master } = dialled;
        let this = Weak::clone(&self.this);
        let report = move |health| {
            if let Some(this) = this.upgrade() {
                this.report(generation, health);
            }
        };
        let label = Arc::clone(&self.label);
        let link = Link::new(wire, label, self.timeouts, Box::new(report)).with_acks(self.acks);
        let link = if master.is_some() { link.that_may_be_abandoned() } else { link };
        let link = Arc::new(if self.dialer.is_of_node() { link.of_node() } else { link });
        let batcher = Arc::new(Batcher::new(Arc::clone(&link)));
        let (alive, driving) = (AliveFlag::default(), Arc::clone(&batcher).drive());
        let guard = alive.raise();
        let handle = Handle::current();
        let driver = handle.spawn(async move {
            let _guard = guard;
            driving.await;
        });
        let (runtime, driver) = (handle.id(), driver.abort_handle());
        let watch = master.and_then(|master| self.watch(&handle, generation, master));
        Live {
            generation,
            resp3,
            #[cfg(feature = "redis-quorum")]
            run_id: info.field("run_id").unwrap_or_default().into(),
            info,
            address,
            clock,
            batcher,
            link,
            runtime,
            alive,
            driver,
            watch,
        }
    }

    /// Watches the sentinels while connection `generation`, to `master`, is open.
    fn watch(&self, handle: &Handle, generation: u64, master: Master) -> Option<AbortHandle> {
        let sentinels = Arc::clone(self.dialer.sentinels()?);
        let (this, label) = (Weak::clone(&self.this), Arc::clone(&self.label));
        let timeout = self.timeouts.connect;
        let watching = handle.spawn(async move {
            let (named, cause) = watch::replaced(&sentinels, &master, &label, timeout).await;
            if let Some(this) = this.upgrade() {
                this.abandon(generation, &master, &named, cause);
            }
        });
        Some(watching.abort_handle())
    }

    /// Abandons connection `generation`, though it works: another master took the place of its
    /// server. What is under way there has no reply.
    fn abandon(&self, generation: u64, master: &Master, named: &Master, cause: Cause) {
        let mut current = self.lock();
        let Some(live) = current.live.take_if(|live| live.generation == generation) else { return };
        (current.abandoned, current.cause) = (generation, cause);
        drop(current);
        tracing::warn!(
            target: "lock_core", server = %self.label, from = %master, to = %named,
            "the sentinels name another master: dialling that one"
        );
        live.link.abandon();
        live.batcher.close();
        self.observer.missed();
        self.check_its_role(&live);
    }

    /// Tells if an abandoned server still takes itself for the master. It may grant locks to
    /// clients that do not know better.
    fn check_its_role(&self, live: &Live) {
        if live.info.field("role").is_none() {
            // It may not be asked.
            return;
        }
        // Its connection stays open until it answers.
        let (mut wire, timeout) = (live.link.wire(), self.timeouts.request.min(ROLE_TIMEOUT));
        let (label, address) = (Arc::clone(&self.label), Arc::clone(&live.address));
        let asking = async move {
            let limit = Instant::now().saturating_add(timeout);
            let reply = timeout_at(limit, wire.req_packed_command(&redis::cmd("INFO"))).await;
            let Ok(Ok(reply)) = reply else { return };
            if Info::read(reply).field("role") == Some("master") {
                tracing::warn!(
                    target: "lock_core", event = "store.two_masters", server = %label,
                    former = %address,
                    "the former master still takes writes: a client that has not left it may get a \
                     lock that another one holds"
                );
            }
        };
        // Without a runtime there is no line.
        drop(self.spawn(asking));
    }

    /// Opens a connection that only listens.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        self.dialer.pubsub().await
    }

    /// The same by RESP3: what the server pushes there goes to `on_push`.
    #[cfg(feature = "redis-cluster")]
    pub(crate) async fn listen(&self, on_push: OnPush) -> RedisResult<Wire> {
        self.dialer.listen(on_push).await
    }

    fn pushed(self: &Arc<Self>, generation: u64, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message, [_, payload]) => self.message(generation, payload),
            (PushKind::Disconnection, _) => self.observer.missed(),
            _ => {}
        }
    }

    /// A message arrived on connection `generation`, or on one that listens for it.
    pub(super) fn message(self: &Arc<Self>, generation: u64, payload: &Value) {
        // By the clock of a server that is not the master any more.
        if self.lock().abandoned < generation {
            self.observer.message(self, generation, payload);
        }
    }

    /// Draws the conclusions from how a command on connection `generation` fared.
    pub(crate) fn report(&self, generation: u64, health: Health) {
        let mut current = self.lock();
        if current.generation != generation {
            return;
        }
        let is_over = match health {
            Health::Answered => {
                (current.silences, current.wrong_servers) = (0, 0);
                false
            }
            Health::Silent => {
                current.silences += 1;
                current.silences >= MAX_SILENCES
            }
            Health::Broken | Health::WrongServer => true,
            Health::Unknown => false,
        };
        if !is_over {
            return;
        }
        let Some(live) = current.live.take() else { return };
        current.cause = Cause::of(health);
        if health == Health::WrongServer {
            // Once for each connection, however many calls it refused.
            current.wrong_servers += 1;
            self.dialer.leave_address();
            // The first dial follows at once: the name may lead elsewhere by now.
            if current.wrong_servers > 1 {
                self.dialer.hold_off(current.wrong_servers - 2);
            }
        }
        drop(current);
        let why = match health {
            Health::Silent => Some("no replies on this connection: dialling a new one"),
            Health::WrongServer => Some("this is not the server that has the locks: dialling anew"),
            Health::Answered | Health::Broken | Health::Unknown => None,
        };
        if let Some(why) = why {
            tracing::warn!(target: "lock_core", server = %self.label, "{why}");
        }
        live.batcher.close();
        self.observer.missed();
    }

    pub(crate) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// Another node has taken the place of this one.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn replaced(&self) {
        self.dialer.replaced();
    }

    /// Whether sentinels name the server.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.dialer.sentinels().is_some()
    }

    /// Whether replicas confirm what is written.
    pub(crate) fn needs_acks(&self) -> bool {
        self.acks.is_some()
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// What is wrong with the sentinels, if there are any, or keeps them from a failover.
    pub(crate) async fn sentinel_problems(&self, info: &Info) -> Vec<String> {
        let Some(sentinels) = self.dialer.sentinels() else { return Vec::new() };
        let limit = Instant::now().saturating_add(self.timeouts.connect);
        let mut problems = sentinels.problems(limit).await;
        if info.field("connected_slaves") == Some("0") {
            problems.push("has no replica: a failover has no server to turn to".to_owned());
        }
        problems
    }

    /// Where the server is that the sentinels named for the open connection.
    pub(crate) fn master(&self) -> Option<Arc<str>> {
        self.dialer.sentinels()?;
        Some(Arc::clone(&self.open()?.address))
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing that holds this lock panics.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Which process it leads to, if that tells.
    #[cfg(feature = "redis-quorum")]
    pub(crate) fn process(&self) -> Option<Arc<str>> {
        (!self.run_id.is_empty()).then(|| Arc::clone(&self.run_id))
    }

    /// Sends a command other than a script and waits for its reply, for the request timeout at
    /// most.
    pub(crate) async fn send(&self, cmd: &Cmd) -> Result<Value, Fault> {
        self.link.request(cmd, None, Ok).await
    }

    /// The same at a node that is about to take the slot of the command.
    pub(crate) async fn send_asking(&self, cmd: &Cmd) -> Result<Value, Fault> {
        self.link.request_asking(cmd).await
    }

    /// Subscribes `channel` on this connection.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.link.wire().subscribe(channel).await
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.label).finish_non_exhaustive()
    }
}
