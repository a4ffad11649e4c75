//! Dialling one server: RESP3, or RESP2 where that is refused, and pauses after failures.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use redis::aio::{ConnectionLike as _, PubSub};
use redis::{AsyncConnectionConfig, PushInfo, RedisError, RedisResult, Value};
use tokio::runtime::Handle;

use super::clock::ServerClock;
use super::connector::{Endpoint, Wire};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::metrics;
use crate::probe;
use crate::store::redis::credentials::Credentials;
use crate::store::redis::error::{Fault, UnusableServer, discreet, is_about_password};
use crate::store::redis::info::Info;
use crate::time::{Instant, Late, timeout_at};

/// Opens connections to one server.
pub(super) struct Dialer {
    endpoint: Endpoint,
    label: Arc<str>,
    timeout: Duration,
    /// The server, or a proxy in front of it, refused RESP3.
    resp3_refused: AtomicBool,
    /// A connection broke when it sent `INFO`, as some proxies do.
    info_breaks: AtomicBool,
    addresses: Mutex<Addresses>,
    failures: Mutex<Failures>,
}

/// A connection that was opened.
pub(super) struct Dialled {
    pub(super) wire: Wire,
    /// Whether it can carry pushed messages.
    pub(super) resp3: bool,
    /// What the server says of itself.
    pub(super) info: Info,
}

/// What is known of the addresses that the server's name has.
#[derive(Default)]
struct Addresses {
    /// Of the last connection.
    current: Option<SocketAddr>,
    /// Where the last connection failed, or led to the wrong server; the oldest failure first.
    failed: Vec<SocketAddr>,
}

impl Addresses {
    /// Orders what was looked up: what failed comes last, and first what failed long ago.
    fn order(&self, found: &mut [SocketAddr]) {
        found.sort_by_key(|address| self.failed.iter().position(|failed| failed == address));
    }

    fn fail(&mut self, address: SocketAddr) {
        self.failed.retain(|failed| *failed != address);
        self.failed.push(address);
        if self.failed.len() > MOST_REMEMBERED {
            self.failed.remove(0);
        }
    }

    fn succeed(&mut self, address: Option<SocketAddr>) {
        self.current = address;
        self.failed.retain(|failed| Some(*failed) != address);
    }
}

/// The failures since the last success.
#[derive(Default)]
struct Failures {
    backoff: Backoff,
    last: Option<Failure>,
}

struct Failure {
    error: Error,
    retry_at: Instant,
}

impl Failures {
    /// Counts a failure. Until the pause after it is over, dials fail with `error`.
    fn fail(&mut self, error: Error) {
        let retry_at = Instant::now().saturating_add(self.backoff.next_pause());
        self.last = Some(Failure { error, retry_at });
    }
}

/// Where, with which credentials, and until when to try a connection.
#[derive(Clone, Copy)]
struct Target<'a> {
    address: Option<SocketAddr>,
    credentials: Option<&'a Credentials>,
    limit: Instant,
}

/// Takes what the server pushes on a connection.
pub(super) type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// More addresses than these are left to the next dial: each needs time for a handshake.
const MOST_TRIED: usize = 3;
const MOST_REMEMBERED: usize = 64;

/// Commands that may be queued for the socket.
const PIPELINE_BUFFER: usize = 1024;

impl Dialer {
    pub(super) fn new(endpoint: Endpoint, label: Arc<str>, timeout: Duration) -> Self {
        let resp3_refused = AtomicBool::new(!endpoint.may_speak_resp3());
        Self {
            endpoint,
            label,
            timeout,
            resp3_refused,
            info_breaks: AtomicBool::new(false),
            addresses: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Dials once, takes a first sample of the server's clock for connection `generation`, and
    /// checks that the server can have the locks. Between a failure and the end of the pause after
    /// it, fails as that did. At once if the runtime has no I/O, which says nothing of the server.
    pub(super) async fn dial(
        &self,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        if self.endpoint.needs_io() {
            probe::io(&Handle::current())?;
        }
        if let Some(Failure { error, retry_at }) = &self.lock().last
            && *retry_at > Instant::now()
        {
            return Err(error.clone());
        }
        let dialled = self.dial_now(clock, generation, on_push).await;
        let mut failures = self.lock();
        match &dialled {
            Ok(_) => {
                metrics::connected();
                let was_away = failures.last.is_some();
                *failures = Failures::default();
                if was_away || generation > 1 {
                    tracing::info!(target: "lock_core", server = %self.label, "connected again");
                }
            }
            Err(error) => {
                // Once per outage, not once per dial.
                if failures.last.is_none() {
                    tracing::warn!(
                        target: "lock_core", server = %self.label, error = error.with_causes(),
                        "the lock store cannot be reached; dialling until it can"
                    );
                }
                failures.fail(error.clone());
            }
        }
        dialled
    }

    /// The last connection led to the wrong server: the next dial begins with another address, if
    /// the name has one.
    pub(super) fn leave_address(&self) {
        let mut addresses = self.addresses();
        if let Some(address) = addresses.current.take() {
            addresses.fail(address);
        }
    }

    /// Pauses before the next dial, since the last connection led to the wrong server again: as
    /// after a failure that follows on so many `others`.
    pub(super) fn hold_off(&self, others: u32) {
        let what = format!("{} is not the server that has the locks", self.label);
        let mut failures = self.lock();
        failures.backoff = Backoff::after(others);
        failures.fail(Error::plain(ErrorKind::Unavailable, what));
    }

    /// Why the last attempt failed, unless there was a success since.
    pub(super) fn last_failure(&self) -> Option<Error> {
        self.lock().last.as_ref().map(|failure| failure.error.clone())
    }

    /// Opens a connection that only listens, at the address of the other connection: another server
    /// publishes no grants of this one. With TLS and several addresses that is not certain.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        let current = self.addresses().current;
        let credentials = self.endpoint.credentials().await.map_err(io::Error::other)?;
        self.endpoint.pubsub(current, credentials.as_ref()).await
    }

    /// Dials the addresses of the server one after another, until one of them is good. Each has its
    /// share of the time that is left: one that accepts and never speaks must not use up all of it.
    async fn dial_now(
        &self,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        let limit = Instant::now().saturating_add(self.timeout);
        let mut found = self.look_up(limit).await?.into_iter().map(Some).take(MOST_TRIED);
        let credentials = self.credentials(limit).await?;
        let (mut address, mut told) = (found.next().flatten(), None::<Error>);
        loop {
            let others = u32::try_from(found.len()).unwrap_or(u32::MAX);
            let share = limit.remaining() / others.saturating_add(1);
            let target = Target {
                address,
                credentials: credentials.as_ref(),
                limit: Instant::now().saturating_add(share),
            };
            let dialled = self.dial_at(target, clock, generation, Arc::clone(&on_push)).await;
            let error = match dialled {
                Ok(dialled) => {
                    self.addresses().succeed(address);
                    return Ok(dialled);
                }
                Err(error) => error,
            };
            if let Some(address) = address {
                self.addresses().fail(address);
            }
            // What a server said is worth more than that there is none at another address.
            if !told.as_ref().is_some_and(is_by_a_server) {
                told = Some(error);
            }
            match (found.next(), told) {
                (Some(next), before) => (address, told) = (next, before),
                (None, Some(error)) => return Err(error),
                (None, None) => return Err(self.no_connection(timed_out())),
            }
        }
    }

    /// What the application gives for this dial.
    async fn credentials(&self, limit: Instant) -> Result<Option<Credentials>, Error> {
        let limit = Instant::now().saturating_add(limit.remaining() / 4 * 3);
        timeout_at(limit, self.endpoint.credentials()).await.unwrap_or_else(|Late| {
            let what = "the application gave no credentials in time";
            Err(Error::unavailable(what, timed_out()))
        })
    }

    /// The addresses of the server in the order in which to try them; none if it has no name.
    async fn look_up(&self, limit: Instant) -> Result<Vec<SocketAddr>, Error> {
        let Some(host) = self.endpoint.host() else { return Ok(Vec::new()) };
        let what =
            |how: &str| format!("cannot connect to {}: the look-up of `{host}` {how}", self.label);
        // A connection needs the rest, and the caller waits no longer than `limit` for the error.
        let limit = Instant::now().saturating_add(limit.remaining() / 4 * 3);
        let found = timeout_at(limit, self.endpoint.look_up()).await;
        let mut found = found
            .map_err(|Late| Error::unavailable(what("got no answer in time"), timed_out()))?
            .map_err(|error| Error::unavailable(what("failed"), error))?;
        if found.is_empty() {
            return Err(Error::plain(ErrorKind::Unavailable, what("found no address")));
        }
        self.addresses().order(&mut found);
        Ok(found)
    }

    async fn dial_at(
        &self,
        target: Target<'_>,
        clock: &ServerClock,
        generation: u64,
        on_push: OnPush,
    ) -> Result<Dialled, Error> {
        let limit = target.limit;
        let (wire, resp3) = self.handshake(target, on_push).await?;
        // Claims carry the server's time, so it must be known before the first of them.
        let sent = Instant::now();
        let ask = async |command| {
            let mut wire = wire.clone();
            let reply = wire.req_packed_command(&redis::cmd(command)).await;
            reply.and_then(Value::extract_error)
        };
        let asks_info = !self.info_breaks.load(Ordering::Acquire);
        // Both at once: the second waits for no reply.
        let asked = async {
            let info = async { if asks_info { Some(ask("INFO").await) } else { None } };
            join(ask("TIME"), info).await
        };
        let asked = timeout_at(limit, asked).await;
        let (time, reply) = asked.map_err(|Late| self.no_connection(timed_out()))?;
        let mut info = Info::unknown();
        match reply {
            Some(Ok(reply)) => {
                info = Info::read(reply);
                self.check(&info)?;
            }
            Some(Err(error)) => match Fault::of(error) {
                // Not permitted, or not known: the replies to the scripts will tell.
                Fault::Refused(error) => tracing::debug!(
                    target: "lock_core", server = %self.label, error = %discreet(error),
                    "the server does not tell what it is"
                ),
                broken => {
                    // Not if the connection broke before.
                    self.info_breaks.store(time.is_ok(), Ordering::Release);
                    return Err(Error::from(broken.before_the_call()));
                }
            },
            // The next dial asks again: the server may just have died when it was asked.
            None => self.info_breaks.store(false, Ordering::Release),
        }
        // Behind the check: a sentinel does not know `TIME`.
        let us = self.time(time)?;
        clock.record(us, sent, generation);
        Ok(Dialled { wire, resp3, info })
    }

    /// Reads the reply to `TIME`, in microseconds.
    fn time(&self, reply: RedisResult<Value>) -> Result<u64, Error> {
        match reply {
            Ok(time) => time_us(&time).ok_or_else(|| {
                Error::plain(
                    ErrorKind::Unavailable,
                    "cannot read the reply of redis to the TIME command",
                )
            }),
            // The server's own words say more than that there is no connection, but nothing about a
            // key.
            Err(error) => Err(match Fault::of(error.clone()) {
                fault @ Fault::Refused(_) if !fault.is_wrong_type() => Error::refused(error, true),
                _ => self.no_connection(error),
            }),
        }
    }

    /// Whether the server can have the locks, by what it says of itself.
    fn check(&self, info: &Info) -> Result<(), Error> {
        let label = &self.label;
        if let Some(kind) = info.other_kind() {
            let what = format!("{label} is {kind}: connect to a single server");
            return Err(Error::unavailable(what, UnusableServer(kind)).permanent());
        }
        let what = if info.is_replica() {
            format!("{label} is a replica: connect to the primary")
        } else if info.is_loading() {
            format!("{label} is loading its data")
        } else {
            return Ok(());
        };
        Err(Error::plain(ErrorKind::Unavailable, what))
    }

    /// Connects by RESP3, or by RESP2 where that is refused.
    async fn handshake(&self, target: Target<'_>, on_push: OnPush) -> Result<(Wire, bool), Error> {
        if !self.resp3_refused.load(Ordering::Acquire) {
            let config = self.config().set_push_sender(move |push| {
                on_push(push);
                Ok::<_, Infallible>(())
            });
            match self.connect(true, target, config).await? {
                Ok(wire) => return Ok((wire, true)),
                // Some servers close a connection on which RESP3 is requested.
                Err(error) if error.is_io_error() && is_closed(&error) => {
                    let wire = self.connect(false, target, self.config()).await?;
                    return wire.map(|wire| (wire, false)).map_err(|second| {
                        // The server's own words say more than that it closed the connection.
                        let says_why = !second.is_io_error();
                        self.no_connection(if says_why { second } else { error })
                    });
                }
                // An outage, or a wrong password, is the same by RESP2.
                Err(error) if error.is_io_error() || is_about_password(&error) => {
                    return Err(self.no_connection(error));
                }
                Err(_) => {}
            }
        }
        let wire = self.connect(false, target, self.config()).await?;
        let wire = wire.map_err(|error| self.no_connection(error))?;
        if !self.resp3_refused.swap(true, Ordering::AcqRel) {
            tracing::debug!(
                target: "lock_core", server = %self.label,
                "redis refuses RESP3: a second connection receives lock hand-offs"
            );
        }
        Ok((wire, false))
    }

    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Each command has its own time limit: what is left of its caller's wait.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
    }

    async fn connect(
        &self,
        resp3: bool,
        Target { address, credentials, limit }: Target<'_>,
        config: AsyncConnectionConfig,
    ) -> Result<RedisResult<Wire>, Error> {
        timeout_at(limit, self.endpoint.connect(resp3, address, credentials, config))
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

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        // Nothing that holds this lock panics.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        // Nothing that holds this lock panics.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a server said this, rather than that there is none.
fn is_by_a_server(error: &Error) -> bool {
    error.cause().is_some_and(|cause| {
        cause.is::<UnusableServer>()
            || cause.downcast_ref().is_some_and(|error: &RedisError| !error.is_io_error())
    })
}

/// Whether the connection was open before it failed.
fn is_closed(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// Reads the reply to `TIME`.
fn time_us(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
