//! Leases on one Redis server.

mod builder;
mod connection;
mod error;
mod flights;
mod keys;
mod pace;
mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

pub use self::builder::RedisStoreBuilder;
use self::connection::{Connection, Live};
use self::error::Fault;
use self::flights::Flights;
use self::pace::{Paces, Plan};
use self::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use super::{
    BoxFuture, Capabilities, Claim, Freed, Grant, Progress, Refusal, Release, ReleaseOutcome,
    Renewal, Renewed, Store, Waiting,
};
use crate::error::{Error, ErrorKind};
use crate::time::{Instant, sleep_until, sleep_until_some};
use crate::token::Token;

/// Leases on one Redis server: tested on 7.0, and in need of 6.2.
///
/// A lock is the plain key `<namespace>:<key>`, its value the token, its expiry the ttl: what `SET key token NX
/// PX ttl` makes. So mixed fleets exclude each other (redis-py's `Lock`, node-redlock, redsync), and
/// `redis-cli get` shows who holds what. One more key per namespace, `<namespace>:{0}:fence`,
/// numbers the grants.
///
/// # Permissions
///
/// A user needs no more than this (for the namespace `lock`):
///
/// ```text
/// ACL SETUSER locker on >password ~lock:* resetchannels +eval +evalsha +get +set +del +pttl +pexpire +time +info +ping +hello
/// ```
///
/// # What it relies on
///
/// One primary that does not forget unexpired keys. A failover to a replica may lose the latest grants, and any eviction
/// policy but `noeviction` may drop locks when the memory is full; the start-up check warns of the latter. Fencing
/// tokens keep growing through both.
pub struct RedisStore {
    connection: Arc<Connection>,
    flights: Flights,
    paces: Paces,
}

/// How long after its wait a claim may still be answered, so that the last one is told something. Less than what
/// the client gives a store to end a wait.
const LAST_ANSWER: Duration = Duration::from_millis(40);
/// Numbers the grants of the start-up check. One for all, so that a check that is cut short leaves no more than this.
const CHECK_COUNTER: &str = "lock:{0}:check:fence";
/// A key that has just expired for the server may not have for a replica or a slow clock.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// What the acquire script answered.
enum Claimed {
    Granted(Grant),
    Busy(Duration),
    Void,
}

impl RedisStore {
    /// Connects to the server at `url`: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS (with
    /// the feature `redis-tls`), and checks that it can keep locks.
    ///
    /// For TLS, an application that has chosen a cryptography provider of rustls installs it first thing in `main`; if none is
    /// installed by now, `ring` is.
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts to build a store for the server at `url`.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url.into())
    }

    fn new(connection: Connection) -> Self {
        let connection = Arc::new(connection);
        Self { connection, flights: Flights::default(), paces: Paces::default() }
    }

    /// Checks once that the server can keep locks: refuses a replica, warns of eviction.
    async fn check(&self) -> Result<(), Error> {
        let live = self.connection.live(None).await?;
        let until = self.connection.patience(None);
        let info = match self.connection.send(&live, &redis::cmd("INFO"), until).await {
            Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
            Err(Fault::Refused(error)) if error::code(&error) == Some("NOPERM") => {
                tracing::debug!(target: "lock_core", "start-up check skipped: INFO is not permitted");
                String::new()
            }
            Err(fault) => return Err(fault.into()),
        };
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        if field("role").is_some_and(|role| role != "master") {
            return Err(Error::plain(
                ErrorKind::Unavailable,
                format!("{} is a replica: connect to the primary", self.connection.label()),
            ));
        }
        if field("maxmemory").is_some_and(|most| most != "0")
            && let Some(policy) = field("maxmemory_policy")
            && policy != "noeviction"
        {
            tracing::warn!(
                target: "lock_core", policy,
                "this server may evict locks when its memory is full: use `noeviction`"
            );
        }
        self.connection.warn_of_clock();
        self.check_permissions(&live).await
    }

    /// Takes, renews and releases a lock whose name cannot be a user's, which needs all permissions.
    async fn check_permissions(&self, live: &Live) -> Result<(), Error> {
        let (token, mut text) = (Token::fresh()?, [0; Token::TEXT_LEN]);
        let token = token.encode(&mut text);
        let key = format!("lock:{{0}}:check:{token}");
        let until = self.connection.one_call();
        let void_after = self.connection.server_us(until).to_string();
        let keys = [key.as_str(), CHECK_COUNTER];
        let calls: [(&Script, &[&str], &[&str]); 3] = [
            (&ACQUIRE, &keys, &[token, "1000", &void_after]),
            (&RENEW, &keys[..1], &[token, "2000"]),
            (&RELEASE, &keys[..1], &[token, "0"]),
        ];
        let mut outcome = Ok(());
        for (script, keys, args) in calls {
            if let Err(fault) = self.connection.run(live, script, keys, args, until).await {
                outcome = Err(fault);
                break;
            }
        }
        // Whatever came of it: unlike the lock, a counter never expires.
        let cleaned = self.connection.send(live, redis::cmd("DEL").arg(CHECK_COUNTER), until).await;
        match outcome.and_then(|()| cleaned.map(drop)) {
            Ok(()) => Ok(()),
            // A user who is confined to another namespace is refused this name; its own is not known here.
            Err(Fault::Refused(error)) if error::is_about_a_key(&error) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Sends one claim, and one more if the connection breaks: claims may be repeated.
    async fn claim(&self, claim: &Claim, until: Option<Instant>) -> Result<Claimed, Fault> {
        match self.claim_once(claim, until).await {
            Err(Fault::Broken(_)) => self.claim_once(claim, until).await,
            answer => answer,
        }
    }

    async fn claim_once(&self, claim: &Claim, until: Option<Instant>) -> Result<Claimed, Fault> {
        let live = self.connection.live(until).await?;
        let sent = Instant::now();
        let patience = self.connection.patience(until);
        // Not what is left of the caller's wait: a claim that is late by a hair shall be granted or refused, not void.
        let void_after = self.connection.server_us(self.connection.patience(None));
        let sent_us = self.connection.server_us(sent);
        let flight = self.flights.leave(claim.token, sent_us, void_after, live.generation);
        let mut text = [0; Token::TEXT_LEN];
        let (ttl, void_after) = (millis_up(claim.ttl).to_string(), void_after.to_string());
        let args = [claim.token.encode(&mut text), &ttl, &void_after];
        let keys = [claim.name.as_str(), &keys::fence(&claim.name)];
        let answer = self.connection.run(&live, &ACQUIRE, &keys, &args, patience).await;
        if answer.as_ref().map_or_else(Fault::is_answer, |_| true) {
            flight.answered();
        } else {
            drop(flight);
        }
        let answer = answer?;
        let (status, us) = head(&answer)?;
        self.connection.saw_clock(us, sent);
        match (status, third(&answer)) {
            (1, Some(fence)) if fence > 0 => {
                Ok(Claimed::Granted(Grant::new(fence.unsigned_abs(), sent, claim.ttl)))
            }
            // A key without an expiry (-1): nobody knows when it goes.
            (0, Some(left)) => {
                Ok(Claimed::Busy(u64::try_from(left).map_or(Duration::MAX, Duration::from_millis)))
            }
            (3, None) => Ok(Claimed::Void),
            _ => Err(Fault::Garbled),
        }
    }

    /// Claims once for a caller who does not wait. A void claim, after a step of the server's clock, is repeated.
    async fn claim_now(&self, claim: &Claim) -> Result<Grant, Refusal> {
        let until = Some(self.connection.one_call());
        for _ in 0..2 {
            match self.claim(claim, until).await {
                Ok(Claimed::Granted(grant)) => return Ok(grant),
                Ok(Claimed::Busy(left)) => return Err(self.refusal(claim, Error::busy(left))),
                Ok(Claimed::Void) => {}
                Err(fault) => return Err(self.fault(claim, fault)),
            }
        }
        Err(self.refusal(claim, void_twice()))
    }

    async fn claim_until(&self, claim: &Claim, waiting: &Waiting<'_>) -> Result<Grant, Refusal> {
        let mut pace = self.paces.resume(&claim.name);
        let mut voids = 0;
        loop {
            match pace.plan(waiting.until()) {
                Plan::Ask => {}
                Plan::AskAt(at, known) => {
                    waiting.report(known);
                    sleep_until(at).await;
                }
                Plan::GiveUp(error) => {
                    sleep_until_some(waiting.until()).await;
                    return Err(self.refusal(claim, error));
                }
            }
            let sent = Instant::now();
            let until = waiting.until().map(|until| until.saturating_add(LAST_ANSWER));
            match self.claim(claim, until).await {
                Ok(Claimed::Granted(grant)) => {
                    pace.end();
                    return Ok(grant);
                }
                Ok(Claimed::Void) if voids == 0 => voids += 1,
                Ok(Claimed::Void) => return Err(self.refusal(claim, void_twice())),
                Ok(Claimed::Busy(left)) => {
                    voids = 0;
                    waiting.report(Progress::Busy(left));
                    pace.busy(sent, left);
                }
                Err(fault) => {
                    let permanent = fault.is_permanent();
                    let refusal = self.fault(claim, fault);
                    if permanent {
                        pace.end();
                        return Err(refusal);
                    }
                    pace.failed(refusal.error.clone());
                    if waiting.is_over() {
                        return Err(refusal);
                    }
                    waiting.report(Progress::Failed(refusal.error));
                }
            }
        }
    }

    fn refusal(&self, claim: &Claim, error: Error) -> Refusal {
        if self.flights.has(claim.token) {
            Refusal::unsettled(error)
        } else {
            Refusal::settled(error)
        }
    }

    fn fault(&self, claim: &Claim, fault: Fault) -> Refusal {
        let without_effect = fault.is_without_effect();
        let error = Error::from(fault);
        if without_effect { self.refusal(claim, error) } else { Refusal::unsettled(error) }
    }

    async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed, Error> {
        match self.renew_once(renewal).await {
            Err(Fault::Broken(_)) => self.renew_once(renewal).await,
            answer => answer,
        }
        .map_err(Error::from)
    }

    async fn renew_once(&self, renewal: &Renewal) -> Result<Renewed, Fault> {
        let live = self.connection.live(Some(renewal.until)).await?;
        let since = Instant::now();
        let until = self.connection.patience(Some(renewal.until));
        let mut text = [0; Token::TEXT_LEN];
        let args = [renewal.token.encode(&mut text), &millis_up(renewal.ttl).to_string()];
        let answer =
            self.connection.run(&live, &RENEW, &[renewal.name.as_str()], &args, until).await;
        if answer.as_ref().is_err_and(Fault::is_wrong_type) {
            return Ok(Renewed::Other);
        }
        match head(&answer?)? {
            (1, _) => Ok(Renewed::Kept { since }),
            (0, _) => Ok(Renewed::Nobody),
            (2, _) => Ok(Renewed::Other),
            _ => Err(Fault::Garbled),
        }
    }

    async fn release_once(&self, release: &Release) -> Result<Freed, Fault> {
        let live = self.connection.live(None).await?;
        let sent = Instant::now();
        let hold = release.hold_until.map_or(Duration::ZERO, Instant::remaining);
        let until = self.connection.patience(None);
        let mut text = [0; Token::TEXT_LEN];
        let args = [release.token.encode(&mut text), &millis_up(hold).to_string()];
        let answer =
            self.connection.run(&live, &RELEASE, &[release.name.as_str()], &args, until).await;
        if answer.as_ref().is_err_and(Fault::is_wrong_type) {
            // Nor can a claim of the token that is still on its way take it.
            self.flights.forget(release.token);
            return Ok(Freed::settled(ReleaseOutcome::Other));
        }
        let (status, us) = head(&answer?)?;
        self.connection.saw_clock(us, sent);
        let outcome = match status {
            1 => ReleaseOutcome::Ours,
            0 => ReleaseOutcome::Nobody,
            2 => ReleaseOutcome::Other,
            _ => return Err(Fault::Garbled),
        };
        Ok(match self.flights.land(release.token, live.generation, us) {
            None => Freed::settled(outcome),
            Some(left) => {
                let at = Instant::now().saturating_add(left).saturating_add(AFTER_EXPIRY);
                Freed::again_at(outcome, at)
            }
        })
    }
}

impl Store for RedisStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Refusal>> {
        Box::pin(self.claim_now(claim))
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a Waiting<'a>,
    ) -> BoxFuture<'a, Result<Grant, Refusal>> {
        Box::pin(self.claim_until(claim, waiting))
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        // The connection writes what is ready together in one go.
        Box::pin(join_all(renewals.iter().map(|renewal| self.renew_one(renewal))))
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<Freed, Error>> {
        // One attempt, whatever happens to it: the client counts them, to tell what a repeated one means.
        Box::pin(async move { Ok(self.release_once(release).await?) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().with_fencing().with_shared()
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.connection.label())
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("connection", &self.connection).finish_non_exhaustive()
    }
}

fn void_twice() -> Error {
    Error::plain(
        ErrorKind::Unavailable,
        "redis executes commands too late, or its clock jumps: two claims in a row were void",
    )
}

/// Whole milliseconds, rounded up: the server never keeps a lock shorter than the client believes.
fn millis_up(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000_000)
}

/// Half to one and a half times `pause`.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness all waiters ask at the same time, which is only less polite.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 255
}

/// The status and the server's time, which begin every answer.
fn head(value: &Value) -> Result<(i64, u64), Fault> {
    match value {
        Value::Array(items) => match items.as_slice() {
            [Value::Int(status), Value::Int(us), ..] if *us > 0 => Ok((*status, us.unsigned_abs())),
            _ => Err(Fault::Garbled),
        },
        _ => Err(Fault::Garbled),
    }
}

/// What follows the head.
fn third(value: &Value) -> Option<i64> {
    match value {
        Value::Array(items) => match items.as_slice() {
            [_, _, Value::Int(third)] => Some(*third),
            _ => None,
        },
        _ => None,
    }
}
