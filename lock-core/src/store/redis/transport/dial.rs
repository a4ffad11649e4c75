//! Dialling one server: RESP3, or RESP2 where that is refused, and pauses after failures.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike as _, PubSub};
use redis::{AsyncConnectionConfig, PushInfo, RedisError, RedisResult, Value};

use super::clock::ServerClock;
use super::connector::{Endpoint, Wire};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::store::redis::error::{Fault, discreet, is_about_password};
use crate::time::{Instant, Late, timeout_at};

/// Opens connections to one server.
pub(super) struct Dialer {
    endpoint: Endpoint,
    label: Arc<str>,
    timeout: Duration,
    /// The server, or a proxy in front of it, refused RESP3.
    resp3_refused: AtomicBool,
    failures: Mutex<Failures>,
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

/// Takes what the server pushes on a connection.
type OnPush = Box<dyn Fn(PushInfo) + Send + Sync>;

/// Commands that may be queued for the socket.
const PIPELINE_BUFFER: usize = 1024;

impl Dialer {
    pub(super) fn new(endpoint: Endpoint, label: Arc<str>, timeout: Duration) -> Self {
        let (resp3_refused, failures) = (AtomicBool::new(false), Mutex::default());
        Self { endpoint, label, timeout, resp3_refused, failures }
    }

    /// Dials once, and takes a first sample of the server's clock. Returns whether the connection
    /// speaks RESP3 as well. Between a failure and the end of the pause after it, fails as that
    /// did.
    pub(super) async fn dial(
        &self,
        clock: &ServerClock,
        on_push: OnPush,
    ) -> Result<(Wire, bool), Error> {
        if let Some(Failure { error, retry_at }) = &self.lock().last
            && *retry_at > Instant::now()
        {
            return Err(error.clone());
        }
        let dialled = self.dial_now(clock, on_push).await;
        let mut failures = self.lock();
        match &dialled {
            Ok(_) => *failures = Failures::default(),
            Err(error) => {
                let retry_at = Instant::now().saturating_add(failures.backoff.next_pause());
                failures.last = Some(Failure { error: error.clone(), retry_at });
            }
        }
        dialled
    }

    /// Why the last attempt failed, unless there was a success since.
    pub(super) fn last_failure(&self) -> Option<Error> {
        self.lock().last.as_ref().map(|failure| failure.error.clone())
    }

    /// Opens a connection that only listens.
    pub(super) async fn pubsub(&self) -> RedisResult<PubSub> {
        self.endpoint.pubsub().await
    }

    async fn dial_now(&self, clock: &ServerClock, on_push: OnPush) -> Result<(Wire, bool), Error> {
        let limit = Instant::now().saturating_add(self.timeout);
        let (mut wire, resp3) = self.handshake(on_push, limit).await?;
        // Claims carry the server's time, so it must be known before the first of them.
        let sent = Instant::now();
        let time = timeout_at(limit, wire.req_packed_command(&redis::cmd("TIME"))).await;
        let time = time.map_err(|Late| self.no_connection(timed_out()))?;
        match time.and_then(Value::extract_error) {
            Ok(time) => {
                let us = time_us(&time).ok_or_else(|| {
                    Error::plain(
                        ErrorKind::Unavailable,
                        "cannot read the reply of redis to the TIME command",
                    )
                })?;
                clock.record(us, sent);
                Ok((wire, resp3))
            }
            // The server's own words say more than that there is no connection, but nothing about a
            // key.
            Err(error) => Err(match Fault::of(error.clone()) {
                fault @ Fault::Refused(_) if !fault.is_wrong_type() => Error::refused(error, true),
                _ => self.no_connection(error),
            }),
        }
    }

    /// Connects by RESP3, or by RESP2 where that is refused.
    async fn handshake(&self, on_push: OnPush, limit: Instant) -> Result<(Wire, bool), Error> {
        if !self.resp3_refused.load(Ordering::Acquire) {
            let config = self.config().set_push_sender(move |push| {
                on_push(push);
                Ok::<_, Infallible>(())
            });
            match self.connect(true, &config, limit).await? {
                Ok(wire) => return Ok((wire, true)),
                // An outage, or a wrong password, is the same by RESP2.
                Err(error) if error.is_io_error() || is_about_password(&error) => {
                    return Err(self.no_connection(error));
                }
                Err(_) => {}
            }
        }
        let wire = self.connect(false, &self.config(), limit).await?;
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
        config: &AsyncConnectionConfig,
        limit: Instant,
    ) -> Result<RedisResult<Wire>, Error> {
        timeout_at(limit, self.endpoint.connect(resp3, config))
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

    fn lock(&self) -> MutexGuard<'_, Failures> {
        // Nothing that holds this lock panics.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn timed_out() -> std::io::Error {
    std::io::ErrorKind::TimedOut.into()
}

/// Reads the reply to `TIME`.
fn time_us(value: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(value).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
