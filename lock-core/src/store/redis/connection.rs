//! One connection to one server, replaced when it is broken or silent.
//!
//! redis-rs keeps a connection on which every command times out, for as long as the kernel does: minutes
//! if packets vanish. Here a few unanswered commands in a row are enough to dial anew.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::error::Fault;
use super::jittered;
use super::scripts::Script;
use crate::error::{Error, ErrorKind};
use crate::time::{Instant, Late, timeout_at};

/// A connection that heals itself.
pub(super) struct Connection {
    client: Client,
    label: String,
    request_timeout: Duration,
    connect_timeout: Duration,
    state: Mutex<State>,
    /// One task dials, the others wait for it.
    dialing: tokio::sync::Mutex<()>,
    clock: Mutex<Sample>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
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
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    pub(super) generation: u64,
    runtime: Arc<Watch>,
}

/// Tells whether the runtime that drives a connection is still there.
struct Watch {
    alive: Arc<AtomicBool>,
    task: AbortHandle,
}

/// What the server's clock showed, and when it was asked.
#[derive(Clone, Copy)]
struct Sample {
    us: u64,
    sent: Instant,
}

/// This many commands in a row without an answer are no coincidence. One more, and a lease of three seconds would
/// not survive a connection on which packets vanish.
const UNANSWERED_LIMIT: u32 = 2;
/// The pause after the first failed dial; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// A server that is back is noticed this soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_000);
/// Clocks that are synchronised at all are closer than this.
const FAR_APART: Duration = Duration::from_secs(10);
/// Commands that may stand in line for the socket.
const PIPELINE_BUFFER: usize = 1024;

impl Connection {
    pub(super) fn new(
        client: Client,
        label: String,
        request_timeout: Duration,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            client,
            label,
            request_timeout,
            connect_timeout,
            state: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            clock: Mutex::new(Sample { us: 0, sent: Instant::now() }),
        }
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
    pub(super) async fn live(self: &Arc<Self>, until: Option<Instant>) -> Result<Live, Fault> {
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let soon = Instant::now().saturating_add(self.connect_timeout);
        let until = until.map_or(soon, |until| until.min(soon));
        let runtime =
            Handle::try_current().map_err(|_| Fault::NotSent(Error::of(ErrorKind::NoRuntime)))?;
        let this = Arc::clone(self);
        let dialled = runtime.spawn(async move { this.dial().await });
        match timeout_at(until, dialled).await {
            Ok(Ok(live)) => live.map_err(Fault::NotSent),
            Ok(Err(gone)) => Err(Fault::NotSent(Error::unavailable(
                "the runtime shut down while a connection was made",
                gone,
            ))),
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

    fn open(&self) -> Option<Live> {
        let state = self.lock();
        state.live.as_ref().filter(|live| live.runtime.alive.load(Ordering::Acquire)).cloned()
    }

    async fn dial(&self) -> Result<Live, Error> {
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

    async fn dial_once(&self) -> Result<Live, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            // Each command has its own time limit: what is left of its caller's wait.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let dialled = self.client.get_multiplexed_async_connection_with_config(&config);
        let limit = Instant::now().saturating_add(self.connect_timeout);
        let failed = |error: RedisError| {
            Error::unavailable(format!("cannot connect to {}", self.label), error)
        };
        let mut connection = timeout_at(limit, dialled)
            .await
            .map_err(|Late| failed(timed_out().into()))?
            .map_err(|error| match error.kind() {
                // The handshake reports every refused user name or password as this.
                redis::ErrorKind::AuthenticationFailed => {
                    Error::unavailable("redis refused the user name or password", error)
                }
                _ => failed(error),
            })?;
        // Claims carry the server's time, so it must be known before the first.
        let sent = Instant::now();
        let time = timeout_at(limit, connection.req_packed_command(&redis::cmd("TIME"))).await;
        let time = time.map_err(|Late| failed(timed_out().into()))?;
        match time.and_then(Value::extract_error) {
            Ok(time) => {
                let us = time_us(&time).ok_or_else(|| Error::from(Fault::Garbled))?;
                self.saw_clock(us, sent);
            }
            Err(error) => return Err(Fault::Refused(error).into()),
        }
        let mut state = self.lock();
        state.generation += 1;
        let live = Live { connection, generation: state.generation, runtime: Watch::here() };
        let State { live: slot, unanswered, failures, dial_after, last_failure, .. } = &mut *state;
        (*unanswered, *failures) = (0, 0);
        (*dial_after, *last_failure) = (None, None);
        *slot = Some(live.clone());
        if live.generation > 1 {
            tracing::info!(target: "lock_core", server = %self.label, "connected again");
        }
        Ok(live)
    }

    /// Runs a script on `live`, by its digest or, where the server does not know that, by its text.
    pub(super) async fn run(
        &self,
        live: &Live,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        until: Instant,
    ) -> Result<Value, Fault> {
        match self.send(live, &script.by_digest(keys, args), until).await {
            Err(Fault::Refused(error)) if error.code() == Some("NOSCRIPT") => {
                self.send(live, &script.by_text(keys, args), until).await
            }
            answer => answer,
        }
    }

    /// Sends a command and waits for its answer until `until`.
    pub(super) async fn send(
        &self,
        live: &Live,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Value, Fault> {
        let mut connection = live.connection.clone();
        let patience = until.remaining();
        match timeout_at(until, connection.req_packed_command(cmd)).await {
            Ok(Ok(Value::ServerError(error))) => {
                self.answered(live.generation);
                Err(Fault::Refused(RedisError::from(error)))
            }
            Ok(Ok(value)) => {
                self.answered(live.generation);
                Ok(value)
            }
            Ok(Err(error)) if is_answer(&error) => {
                self.answered(live.generation);
                Err(Fault::Refused(error))
            }
            Ok(Err(error)) => {
                self.drop_connection(live.generation);
                Err(Fault::Broken(Error::unknown(
                    format!("the connection to {} broke before the answer came", self.label),
                    error,
                )))
            }
            Err(Late) => {
                // A caller with little patience says nothing about the connection.
                if patience >= self.request_timeout / 2 {
                    self.missed(live.generation);
                }
                Err(Fault::Silent(Error::unknown(
                    format!("{} did not answer in time", self.label),
                    timed_out(),
                )))
            }
        }
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
            if state.unanswered >= UNANSWERED_LIMIT && state.live.take().is_some() {
                tracing::warn!(
                    target: "lock_core", server = %self.label,
                    "no answers on this connection; dialling a new one"
                );
            }
        }
    }

    fn drop_connection(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.live = None;
        }
    }

    /// Takes in the server's time from the answer to a command that was sent at `sent`.
    pub(super) fn saw_clock(&self, us: u64, sent: Instant) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Sample { us, sent };
    }

    /// Warns of a server whose clock is far from ours. Locks do not mind, since only spans are compared, but fencing
    /// tokens follow the server's clock, and whoever reads its logs will.
    #[allow(clippy::disallowed_methods)] // the wall clock is what is asked for
    pub(super) fn warn_of_clock(&self) {
        let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let there = Duration::from_micros(self.server_us(Instant::now()));
        let apart = here.abs_diff(there);
        if apart > FAR_APART {
            tracing::warn!(
                target: "lock_core", server = %self.label, ?apart,
                "the clocks of this machine and of the lock server are far apart"
            );
        }
    }

    /// The latest that the server's clock can show at `at`, by the last sample.
    ///
    /// A connection is open only after the first sample.
    pub(super) fn server_us(&self, at: Instant) -> u64 {
        let Sample { us, sent } = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let since = at.saturating_since(sent).as_micros();
        us.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
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
    /// Watches the runtime that polls us, which is the one that drives the connection just made.
    #[allow(clippy::disallowed_methods)] // lives as long as the connection, and ends with it
    fn here() -> Arc<Self> {
        struct Sign(Arc<AtomicBool>);
        impl Drop for Sign {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let alive = Arc::new(AtomicBool::new(true));
        let sign = Sign(Arc::clone(&alive));
        let task = tokio::spawn(async move {
            let _sign = sign;
            std::future::pending::<()>().await;
        });
        Arc::new(Self { alive, task: task.abort_handle() })
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

/// Whether the server said so, rather than the socket or the client.
fn is_answer(error: &RedisError) -> bool {
    error.code().is_some() && !error.is_io_error()
}

fn timed_out() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

/// Reads the answer to `TIME`.
fn time_us(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
