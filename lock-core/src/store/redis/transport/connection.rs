//! The connection to one server, replaced when it is broken or silent.
//!
//! redis-rs keeps a connection on which every command times out for as long as the kernel does:
//! minutes, if packets vanish. Here a few unanswered commands in a row are enough to dial anew.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::aio::PubSub;
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::runtime::{self, Handle};
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::batch::Batcher;
use super::clock::ServerClock;
use super::connector::Endpoint;
use super::dial::{Dialer, Dialled};
use super::link::{Health, Link, Timeouts};
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

    /// Messages may have been lost.
    fn lost(&self);
}

#[derive(Default)]
struct Current {
    /// The runtime that was given; `None`: each connection runs where it was dialled.
    home: Option<Handle>,
    /// Where the last connection was dialled.
    before: Option<Handle>,
    live: Option<Arc<Live>>,
    /// Counts connections, so that a fault is charged to the connection on which it happened.
    generation: u64,
    /// Commands in a row that had no reply in time.
    silences: u32,
    /// Connections in a row that led to the wrong server.
    misplaced: u32,
}

/// An open connection.
pub(crate) struct Live {
    pub(crate) generation: u64,
    /// Whether it can carry pushed messages.
    pub(crate) resp3: bool,
    /// What the server said of itself at the dial.
    pub(crate) info: Info,
    pub(crate) batcher: Arc<Batcher>,
    link: Arc<Link>,
    /// Where the batcher's driver and the wire's run.
    runtime: runtime::Id,
    /// Falls with the batcher's driver, and so with the runtime that drives the connection.
    alive: AliveFlag,
    driver: AbortHandle,
}

/// This many commands in a row without a reply are no coincidence. With one more, a lease of three
/// seconds would not survive a connection on which packets vanish.
const MAX_SILENCES: u32 = 2;

impl Connection {
    /// A connection to `endpoint`, dialled when it is first needed.
    pub(crate) fn new(
        endpoint: Endpoint,
        label: String,
        timeouts: Timeouts,
        observer: impl Observer,
    ) -> Arc<Self> {
        let label: Arc<str> = label.into();
        Arc::new_cyclic(|this| Self {
            dialer: Dialer::new(endpoint, Arc::clone(&label), timeouts.connect),
            label,
            timeouts,
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
            self.observer.lost();
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
        // One task dials at a time, so no other connection gets this number.
        let generation = self.lock().generation + 1;
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
        let live = Arc::new(self.start(dialled, generation));
        let before = current.live.replace(Arc::clone(&live));
        drop(current);
        // It ended with its runtime, or was dialled on another one than was given meanwhile.
        if before.is_some() {
            self.observer.lost();
        }
        Ok(live)
    }

    /// Drives the batcher on the runtime that polls this, which is the one that drives the wire.
    fn start(&self, dialled: Dialled, generation: u64) -> Live {
        let Dialled { wire, resp3, info } = dialled;
        let this = Weak::clone(&self.this);
        let report = move |health| {
            if let Some(this) = this.upgrade() {
                this.report(generation, health);
            }
        };
        let label = Arc::clone(&self.label);
        let link = Arc::new(Link::new(wire, label, self.timeouts, Box::new(report)));
        let batcher = Arc::new(Batcher::new(Arc::clone(&link)));
        let (alive, driving) = (AliveFlag::default(), Arc::clone(&batcher).drive());
        let guard = alive.raise();
        let handle = Handle::current();
        let driver = handle.spawn(async move {
            let _guard = guard;
            driving.await;
        });
        let (runtime, driver) = (handle.id(), driver.abort_handle());
        Live { generation, resp3, info, batcher, link, runtime, alive, driver }
    }

    /// Opens a connection that only listens.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        self.dialer.pubsub().await
    }

    fn pushed(self: &Arc<Self>, generation: u64, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message, [_, payload]) => self.observer.message(self, generation, payload),
            (PushKind::Disconnection, _) => self.observer.lost(),
            _ => {}
        }
    }

    /// Draws the conclusions from how a command on connection `generation` fared.
    pub(crate) fn report(&self, generation: u64, health: Health) {
        let mut current = self.lock();
        if current.generation != generation {
            return;
        }
        let is_lost = match health {
            Health::Answered => {
                (current.silences, current.misplaced) = (0, 0);
                false
            }
            Health::Silent => {
                current.silences += 1;
                current.silences >= MAX_SILENCES
            }
            Health::Broken | Health::Misplaced => true,
            Health::Unknown => false,
        };
        if !is_lost {
            return;
        }
        let Some(live) = current.live.take() else { return };
        if health == Health::Misplaced {
            // Once for each connection, however many calls it refused.
            current.misplaced += 1;
            self.dialer.leave_address();
            // The first dial follows at once: the name may lead elsewhere by now.
            if current.misplaced > 1 {
                self.dialer.hold_off(current.misplaced - 2);
            }
        }
        drop(current);
        let why = match health {
            Health::Silent => Some("no replies on this connection: dialling a new one"),
            Health::Misplaced => Some("this is not the server that has the locks: dialling anew"),
            Health::Answered | Health::Broken | Health::Unknown => None,
        };
        if let Some(why) = why {
            tracing::warn!(target: "lock_core", server = %self.label, "{why}");
        }
        live.batcher.close();
        self.observer.lost();
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

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
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
    /// Sends a command other than a script and waits for its reply, for the request timeout at
    /// most.
    pub(crate) async fn send(&self, cmd: &Cmd) -> Result<Value, Fault> {
        self.link.request(cmd, None, Ok).await
    }

    /// Subscribes `channel` on this connection.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.link.wire().subscribe(channel).await
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.label).finish_non_exhaustive()
    }
}
