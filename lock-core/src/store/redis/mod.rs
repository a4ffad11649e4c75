//! Leases on one Redis server.

mod ask;
mod builder;
mod check;
mod clock;
mod connection;
mod connector;
mod contended;
mod error;
mod inbox;
mod keys;
mod lane;
#[cfg(feature = "test-util")]
mod reading;
mod scripts;
mod traces;
mod wait;
mod waiter;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use self::ask::{Ask, Claimed, Place};
pub use self::builder::RedisStoreBuilder;
use self::connection::Connection;
#[cfg(feature = "test-util")]
pub use self::connector::{Connector, Socket};
use self::contended::Contended;
use self::error::Fault;
#[cfg(feature = "test-util")]
pub use self::reading::{Reading, read_reply};
use super::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, Release, ReleaseReply,
    Released, Renewal, Renewed, Store, Survives,
};
use crate::error::{Error, ErrorKind};
use crate::random;
use crate::time::Instant;

/// Leases on one Redis server: tested on 7.0, and in need of 6.2.
///
/// A lock is the plain key `<namespace>:<key>`, its value the token, its expiry the ttl: what `SET key token NX
/// PX ttl` makes. So mixed fleets exclude each other (redis-py's `Lock`, node-redlock, redsync), and
/// `redis-cli get` shows who holds what. One more key per namespace, `<namespace>:{0}:fence`,
/// numbers the grants. While processes wait for a lock they queue in two sorted sets, `<namespace>:{0}:q:<key>` and
/// `<namespace>:{0}:a:<key>`, which go with the last of them, and each store that waits listens on a channel of its own,
/// `<namespace>:{0}:inbox:<id>`. Each hand-over is a message there, and an empty one to who released.
///
/// # Permissions
///
/// A user needs no more than this (for the namespace `lock`):
///
/// ```text
/// ACL SETUSER locker on >password ~lock:* resetchannels &lock:* +eval +evalsha +get +mget +set +del +exists +pttl +pexpire +time +zadd +zrem +zscore +zrank +zrange +zrangebyscore +zpopmin +publish +subscribe +info +ping +hello
/// ```
///
/// All clients of a lock need the same: one that may not publish hands the lock over without a word, and the next one finds
/// out when it asks again, after a second.
///
/// # What it relies on
///
/// One primary that does not forget unexpired keys. A failover to a replica may lose the latest grants, and any eviction
/// policy but `noeviction` may drop locks when the memory is full; the start-up check warns of the latter. Fencing
/// tokens keep growing through both.
pub struct RedisStore {
    connection: Arc<Connection>,
    contended: Contended,
}

/// How often a token is released again while a claim of it may be under way.
const AGAIN: Duration = Duration::from_secs(1);

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

    fn new(connection: Arc<Connection>) -> Self {
        Self { connection, contended: Contended::default() }
    }

    /// Sends one claim, and one more if the connection breaks: claims may be repeated.
    async fn claim(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        until: Option<Instant>,
    ) -> Result<Claimed, Fault> {
        match self.claim_once(claim, place, until).await {
            // What became of the first one is in the token's trace.
            Err(Fault::Broken(_)) => self.claim_once(claim, place, until).await,
            answer => answer,
        }
    }

    async fn claim_once(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        until: Option<Instant>,
    ) -> Result<Claimed, Fault> {
        let connection = &self.connection;
        let live = connection.live(until).await?;
        let sent = Instant::now();
        let sent_us = connection.clock().latest_at(sent);
        // Not what is left of the caller's wait: a claim that is late by a hair shall be granted or refused, not void. Nor shall
        // one that stands behind many others.
        let good_for = connection.request_timeout() + live.lane.longest_turn();
        let void_after = sent_us.saturating_add(micros(good_for));
        if let Some(place) = place {
            let over_at = void_after.saturating_add(place.life_ms.saturating_mul(1_000));
            connection.traces().queue(claim.token, &place.member, sent_us, over_at);
        }
        let flight = connection.traces().leave(claim.token, sent_us, void_after, live.generation);
        let ask = Ask::Claim {
            name: claim.name.clone(),
            token: claim.token,
            ttl_ms: millis_up(claim.ttl),
            void_after,
            place: place.cloned(),
        };
        let answer = connection.ask(&live, ask, until).await;
        let claimed = answer.and_then(|answer| ask::claimed(&answer));
        flight.ended(&claimed);
        let claimed = claimed?;
        let (Claimed::Granted { us, .. }
        | Claimed::Queued { us, .. }
        | Claimed::Busy { us, .. }
        | Claimed::Void { us }) = claimed;
        connection.clock().saw(us, sent);
        Ok(claimed)
    }

    /// Claims once for a caller who does not wait. A void claim, after a step of the server's clock, is repeated.
    async fn claim_now(&self, claim: &Claim) -> Result<Grant, AcquireError> {
        let until = Some(self.connection.one_call());
        for _ in 0..2 {
            let sent = Instant::now();
            match self.claim(claim, None, until).await {
                Ok(Claimed::Granted { fence, .. }) => {
                    return Ok(granted(claim, fence, sent));
                }
                Ok(Claimed::Busy { taken, .. } | Claimed::Queued { taken, .. }) => {
                    return Err(self.refusal(claim, Error::busy(taken.left)));
                }
                Ok(Claimed::Void { .. }) => {}
                Err(fault) => return Err(self.fault(claim, fault)),
            }
        }
        Err(self.refusal(claim, come_too_late()))
    }

    /// What a claim is told, after all that its token did.
    fn refusal(&self, claim: &Claim, error: Error) -> AcquireError {
        let traces = self.connection.traces();
        let in_doubt = traces.are_in_doubt(claim.token);
        let error = if in_doubt {
            error.in_doubt("the lock may have been given to an earlier claim")
        } else {
            error
        };
        AcquireError { error, definite: !traces.has(claim.token) }
    }

    fn fault(&self, claim: &Claim, fault: Fault) -> AcquireError {
        let without_effect = fault.is_without_effect();
        let mut refusal = self.refusal(claim, Error::from(fault));
        refusal.definite &= without_effect;
        refusal
    }

    async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed, Error> {
        match self.renew_once(renewal).await {
            Err(Fault::Broken(first)) => {
                self.renew_once(renewal).await.map_err(|fault| Error::from(fault).after(&first))
            }
            answer => answer.map_err(Error::from),
        }
    }

    async fn renew_once(&self, renewal: &Renewal) -> Result<Renewed, Fault> {
        let live = self.connection.live(Some(renewal.until)).await?;
        let since = Instant::now();
        let (name, ttl_ms) = (renewal.name.clone(), millis_up(renewal.ttl));
        let ask = Ask::Renew { name, token: renewal.token, ttl_ms };
        let answer = self.connection.ask(&live, ask, Some(renewal.until)).await;
        if answer.as_ref().is_err_and(Fault::is_wrong_type) {
            return Ok(Renewed::Other);
        }
        match answer?.value {
            Value::Int(1) => Ok(Renewed::Kept { since }),
            Value::Int(0) => Ok(Renewed::Nobody),
            Value::Int(2) => Ok(Renewed::Other),
            _ => Err(Fault::Garbled),
        }
    }

    async fn release_once(&self, release: &Release) -> Result<ReleaseReply, Fault> {
        let connection = &self.connection;
        let live = connection.live(None).await?;
        let sent = Instant::now();
        let hold = release.hold_until.map_or(Duration::ZERO, Instant::remaining);
        let (name, token) = (release.name.clone(), release.token);
        let member = connection.traces().member(token);
        let ask = Ask::Release { name, token, member, hold_ms: millis_up(hold) };
        let answer = connection.ask(&live, ask, None).await;
        let (outcome, us) = if answer.as_ref().is_err_and(Fault::is_wrong_type) {
            // A claim of the token that is still on its way may find it gone.
            (Released::TakenByOther, None)
        } else {
            ask::released(&answer?)?
        };
        if let Some(us) = us {
            connection.clock().saw(us, sent);
        }
        let passed = us.unwrap_or_else(|| connection.clock().passed());
        Ok(match connection.traces().land(token, live.generation, passed) {
            None => ReleaseReply::definite(outcome),
            Some(left) => {
                let pause = left.saturating_add(Duration::from_millis(1)).min(AGAIN);
                ReleaseReply::retry_at(outcome, Instant::now().saturating_add(pause))
            }
        })
    }
}

impl Store for RedisStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(self.claim_now(claim))
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(self.claim_until(claim, waiting))
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        // The connection writes what is ready together in one go.
        Box::pin(join_all(renewals.iter().map(|renewal| self.renew_one(renewal))))
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        // One attempt, whatever happens to it: the client counts them, to tell what a repeated one means.
        Box::pin(async move { Ok(self.release_once(release).await?) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().with_fair().with_fencing().with_survives(Survives::Restart)
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

fn come_too_late() -> Error {
    Error::plain(
        ErrorKind::Unavailable,
        "redis executes commands too late, or its clock jumps: claims were void when they arrived",
    )
}

fn granted(claim: &Claim, fence: u64, sent: Instant) -> Grant {
    Grant::new(if claim.fencing { fence } else { 0 }, sent, claim.ttl)
}

/// Whole milliseconds, rounded up: the server never keeps a lock shorter than the client believes.
fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Half to one and a half times `pause`.
fn jittered(pause: Duration) -> Duration {
    pause / 2 + pause * u32::from(random::byte()) / 255
}
