//! One connection to one server, replaced when it is broken or silent.
//!
//! redis-rs keeps a connection on which every command times out, for as long as the kernel does: minutes
//! if packets vanish. Here a few unanswered commands in a row are enough to dial anew.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{ConnectionLike, PubSub};
use redis::{AsyncConnectionConfig, Cmd, PushInfo, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::ask::{Answer, Ask};
use super::clock::ServerClock;
use super::connector::{Dialer, Wire};
use super::error::{Fault, discreet, is_about_password, task_is_gone};
use super::inbox::{self, Inbox, Stray};
use super::jittered;
use super::lane::Lane;
use super::traces::Traces;
use crate::error::{Error, ErrorKind};
use crate::runtime::spawn_handle;
use crate::store::Name;
use crate::time::{Instant, Late, timeout_at};

/// A connection that heals itself, and what is known about the server behind it.
pub(super) struct Connection {
    dialer: Dialer,
    /// The server, or a proxy before it, refused the newer one.
    resp3_refused: AtomicBool,
    label: String,
    request_timeout: Duration,
    connect_timeout: Duration,
    state: Mutex<State>,
    /// One task dials, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
    clock: ServerClock,
    inbox: Arc<Inbox>,
    traces: Traces,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// Counts connections, so that a fault is charged to the one that it happened on.
    generation: u64,
    /// Commands in a row that were not answered in time.
    unanswered: u32,
    /// Attempts to dial in a row that failed, and when the next one may be made.
    failures: u32,
    dial_after: Option<Instant>,
    last_failure: Option<Error>,
}

/// An open connection.
pub(super) struct Live {
    pub(super) connection: Wire,
    pub(super) generation: u64,
    /// Whether it may carry pushes.
    pub(super) resp3: bool,
    pub(super) lane: Arc<Lane>,
    runtime: Watch,
}

/// Tells whether the runtime that drives a connection is still there.
struct Watch {
    alive: Arc<AtomicBool>,
    task: AbortHandle,
}

/// What a command tells about its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Health {
    Answered,
    /// It was given time, and not answered.
    Silent,
    Broken,
    /// A caller with little patience says nothing.
    Unknown,
}

impl Health {
    pub(super) fn of<T>(answer: &Result<T, Fault>) -> Self {
        match answer {
            Ok(_) | Err(Fault::Refused(_)) => Self::Answered,
            Err(Fault::Silent(_)) => Self::Silent,
            // Where answers are garbled, later ones may be those to something else.
            Err(Fault::Broken(_) | Fault::NotSent(_) | Fault::Garbled) => Self::Broken,
        }
    }
}

/// This many commands in a row without an answer are no coincidence. One more, and a lease of three seconds would
/// not survive a connection on which packets vanish.
const UNANSWERED_LIMIT: u32 = 2;
/// The pause after the first failed dial; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// A server that is back is noticed this soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_000);
/// Commands that may stand in line for the socket.
const PIPELINE_BUFFER: usize = 1024;

impl Connection {
    /// A connection to the server of `dialer`, dialled when it is first needed.
    pub(super) fn new(
        dialer: Dialer,
        label: String,
        request_timeout: Duration,
        connect_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            dialer,
            resp3_refused: AtomicBool::new(false),
            label,
            request_timeout,
            connect_timeout,
            state: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            clock: ServerClock::new(),
            inbox: Arc::new(Inbox::new()),
            traces: Traces::default(),
            this: Weak::clone(this),
        })
    }

    /// When a command that is sent now is given up, if its caller waits until `until`.
    pub(super) fn patience(&self, until: Option<Instant>) -> Instant {
        let patience = Instant::now().saturating_add(self.request_timeout);
        until.map_or(patience, |until| until.min(patience))
    }

    /// When a call that waits for nothing but the server is given up, dialling included.
    pub(super) fn one_call(&self) -> Instant {
        Instant::now().saturating_add(self.request_timeout.max(self.connect_timeout))
    }

    /// The open connection, dialled if there is none.
    ///
    /// The dial outlives a caller who has less patience than a handshake takes, or none would ever succeed.
    pub(super) async fn live(self: &Arc<Self>, until: Option<Instant>) -> Result<Arc<Live>, Fault> {
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let soon = Instant::now().saturating_add(self.connect_timeout);
        let until = until.map_or(soon, |until| until.min(soon));
        let runtime =
            spawn_handle().ok_or_else(|| Fault::NotSent(Error::of(ErrorKind::NoRuntime)))?;
        let this = Arc::clone(self);
        let dialled = runtime.spawn(async move { this.dial().await });
        match timeout_at(until, dialled).await {
            Ok(Ok(live)) => live.map_err(Fault::NotSent),
            Ok(Err(gone)) => Err(Fault::NotSent(task_is_gone(gone))),
            Err(Late) => {
                Err(Fault::NotSent(self.lock().last_failure.clone().unwrap_or_else(|| {
                    Error::plain(
                        ErrorKind::Unavailable,
                        format!("no connection to {} in time", self.label),
                    )
                })))
            }
        }
    }

    fn open(&self) -> Option<Arc<Live>> {
        let state = self.lock();
        state.live.as_ref().filter(|live| live.runtime.alive.load(Ordering::Acquire)).cloned()
    }

    async fn dial(&self) -> Result<Arc<Live>, Error> {
        let _turn = self.dialing.lock().await;
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let (wait_until, last) = {
            let state = self.lock();
            (state.dial_after, state.last_failure.clone())
        };
        if let (Some(after), Some(last)) = (wait_until, last)
            && after > Instant::now()
        {
            return Err(last);
        }
        match self.dial_once().await {
            Ok(live) => Ok(live),
            Err(error) => {
                let mut state = self.lock();
                // Spread, so that the processes that a server lost do not all come back at once.
                let pause = jittered(FIRST_PAUSE * (1 << state.failures.min(6)));
                state.failures = state.failures.saturating_add(1);
                state.dial_after = Some(Instant::now().saturating_add(pause.min(LONGEST_PAUSE)));
                state.last_failure = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn dial_once(&self) -> Result<Arc<Live>, Error> {
        let limit = Instant::now().saturating_add(self.connect_timeout);
        let (mut connection, resp3) = self.shake_hands(limit).await?;
        // Claims carry the server's time, so it must be known before the first.
        let sent = Instant::now();
        let time = timeout_at(limit, connection.req_packed_command(&redis::cmd("TIME"))).await;
        let time = time.map_err(|Late| self.no_connection(timed_out()))?;
        match time.and_then(Value::extract_error) {
            Ok(time) => {
                let garbled =
                    || Error::plain(ErrorKind::Unavailable, "redis does not tell its time");
                self.clock.saw(time_us(&time).ok_or_else(garbled)?, sent);
            }
            // The server's own words tell more than that there is no connection, but nothing about a key.
            Err(error) => {
                return Err(match Fault::of(error.clone()) {
                    fault @ Fault::Refused(_) if !fault.is_wrong_type() => {
                        Error::refused(error, true)
                    }
                    _ => self.no_connection(error),
                });
            }
        }
        let mut state = self.lock();
        state.generation += 1;
        let generation = state.generation;
        let lane = Arc::new(Lane::new(connection.clone(), Weak::clone(&self.this), generation));
        let runtime = Watch::over(Arc::clone(&lane).drive());
        let live = Arc::new(Live { connection, generation, resp3, lane, runtime });
        let State { live: slot, unanswered, failures, dial_after, last_failure, .. } = &mut *state;
        (*unanswered, *failures) = (0, 0);
        (*dial_after, *last_failure) = (None, None);
        *slot = Some(Arc::clone(&live));
        if generation > 1 {
            tracing::info!(target: "lock_core", server = %self.label, "connected again");
        }
        Ok(live)
    }

    /// A connection by the newer protocol, or by the older one where that is refused.
    async fn shake_hands(&self, limit: Instant) -> Result<(Wire, bool), Error> {
        if !self.resp3_refused.load(Ordering::Acquire) {
            let this = Weak::clone(&self.this);
            let on_push = move |push: PushInfo| {
                if let Some(connection) = this.upgrade() {
                    inbox::on_push(&connection, &push);
                }
                Ok::<_, std::convert::Infallible>(())
            };
            let config = self.config().set_push_sender(on_push);
            match self.dial_with(true, &config, limit).await? {
                Ok(connection) => return Ok((connection, true)),
                // An outage, or a wrong password, is the same by the older one.
                Err(error) if error.is_io_error() || is_about_password(&error) => {
                    return Err(self.no_connection(error));
                }
                Err(_) => {}
            }
        }
        let connection = self.dial_with(false, &self.config(), limit).await?;
        let connection = connection.map_err(|error| self.no_connection(error))?;
        if !self.resp3_refused.swap(true, Ordering::AcqRel) {
            tracing::debug!(
                target: "lock_core", server = %self.label,
                "RESP3 is refused: a second connection listens for hand-overs"
            );
        }
        Ok((connection, false))
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Each command has its own time limit: what is left of its caller's wait.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
    }

    async fn dial_with(
        &self,
        resp3: bool,
        config: &AsyncConnectionConfig,
        limit: Instant,
    ) -> Result<RedisResult<Wire>, Error> {
        timeout_at(limit, self.dialer.dial(resp3, config))
            .await
            .map_err(|Late| self.no_connection(timed_out()))
    }

    fn no_connection(&self, error: impl Into<RedisError>) -> Error {
        let error = discreet(error.into());
        if is_about_password(&error) {
            return Error::unavailable("redis refused the user name or password", error);
        }
        Error::unavailable(format!("cannot connect to {}", self.label), error)
    }

    /// A connection that only listens.
    pub(super) async fn subscriber(&self) -> RedisResult<PubSub> {
        self.dialer.subscriber().await
    }

    /// Asks a script on `live`, in order with all that was asked before, and waits for the answer until `until`, but no longer
    /// than for any answer.
    pub(super) async fn ask(
        &self,
        live: &Live,
        ask: Ask,
        until: Option<Instant>,
    ) -> Result<Answer, Fault> {
        live.lane.ask(ask, until).await
    }

    /// Sends a command and waits for its answer until `until`, but no longer than for any answer.
    pub(super) async fn send(
        &self,
        live: &Live,
        cmd: &Cmd,
        until: Option<Instant>,
    ) -> Result<Value, Fault> {
        let until = self.patience(until);
        let mut connection = live.connection.clone();
        let patience = until.remaining();
        let Ok(answer) = timeout_at(until, connection.req_packed_command(cmd)).await else {
            self.note(live.generation, self.health_of_silence(patience));
            return Err(Fault::silent(&self.label));
        };
        let answer = answer.and_then(Value::extract_error).map_err(Fault::of);
        self.note(live.generation, Health::of(&answer));
        answer
    }

    /// What it means that a command was not answered within `patience`.
    pub(super) fn health_of_silence(&self, patience: Duration) -> Health {
        if patience >= self.request_timeout / 2 { Health::Silent } else { Health::Unknown }
    }

    /// How long any command may take.
    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Draws the conclusions from how a command on connection `generation` fared.
    pub(super) fn note(&self, generation: u64, health: Health) {
        match health {
            Health::Answered => self.answered(generation),
            Health::Silent => self.missed(generation),
            Health::Broken => self.drop_connection(generation),
            Health::Unknown => {}
        }
    }

    /// Gives back a lock that was granted to a token that is gone. Tried once: the claim's time frees it, too.
    pub(super) fn give_back(self: &Arc<Self>, stray: &Stray<'_>) {
        let Some(name) = Name::from_store(stray.name) else { return };
        let (Some(runtime), Some(live)) = (spawn_handle(), self.open()) else { return };
        if !self.traces.is_gone(stray.token) {
            return;
        }
        let release = Ask::Release { name, token: stray.token, member: None, hold_ms: 0 };
        let this = Arc::clone(self);
        runtime.spawn(async move {
            drop(this.ask(&live, release, None).await);
        });
    }

    fn answered(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.unanswered = 0;
        }
    }

    fn missed(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.unanswered += 1;
            if state.unanswered >= UNANSWERED_LIMIT
                && let Some(live) = state.live.take()
            {
                drop(state);
                tracing::warn!(
                    target: "lock_core", server = %self.label,
                    "no answers on this connection; dialling a new one"
                );
                self.give_up(&live);
            }
        }
    }

    fn drop_connection(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation
            && let Some(live) = state.live.take()
        {
            drop(state);
            self.give_up(&live);
        }
    }

    fn give_up(&self, live: &Live) {
        live.lane.close();
        self.inbox.lost();
    }

    pub(super) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    pub(super) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(super) fn traces(&self) -> &Traces {
        &self.traces
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Runs `driver` on the runtime that polls us, which is the one that drives the connection just made, and tells when
    /// that is gone.
    fn over(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        struct Sign(Arc<AtomicBool>);
        impl Drop for Sign {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let alive = Arc::new(AtomicBool::new(true));
        let sign = Sign(Arc::clone(&alive));
        // Lives as long as the connection, and ends with it.
        let task = Handle::current().spawn(async move {
            let _sign = sign;
            driver.await;
        });
        Self { alive, task: task.abort_handle() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.label).finish_non_exhaustive()
    }
}

fn timed_out() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

/// Reads the answer to `TIME`.
fn time_us(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
