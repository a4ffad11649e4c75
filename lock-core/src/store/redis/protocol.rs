//! Claims, renewals and releases: which command is sent, and what its reply means.
//!
//! All of them take the same steps:
//!
//! 1. Take the open connection, and read the clock: a lease counts from *before* its command.
//! 2. Put [on record](InDoubt) what the server may do if no reply comes. A claim, and a renewal
//!    that cuts, names a server time after which it is [void](Void): so the doubt ends by itself.
//! 3. Send the command through the connection's batcher.
//! 4. Take off the record what the reply settles, and sample the server's clock by it.
//! 5. Judge the reply by what is still on record. A failed acquire is definite only if nothing that
//!    was sent for its token can take effect. A renewal counts only if no earlier one that cuts can
//!    be executed after it.
//!
//! If the connection breaks, claims and renewals are sent once more. A release is not: its reply
//! tells when to release again, for as long as a claim of the token can still be executed. All
//! follow their lock to the node of a cluster that has it.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::error::Fault;
use super::in_doubt::{InDoubt, Void, Way};
use super::keys::Tag;
use super::servers::{Hop, Servers};
use super::transport::{
    AcquireReply, Command, Connection, Cut, Live, Operation, QueuePlace, free, micros, millis_up,
    read_acquire, read_freed, read_release,
};
use crate::error::{Error, ErrorKind};
use crate::store::{
    AcquireError, Claim, Grant, Name, Release, ReleaseReply, Released, Renewal, Renewed, Token,
};
use crate::time::Instant;

/// The server, or the servers of a cluster, and the tokens that are in doubt there.
///
/// `P` is what an interrupted wait leaves with its token.
pub(super) struct Server<P> {
    servers: Servers,
    in_doubt: Arc<InDoubt<P>>,
}

/// How often a token is released again while a claim of it may still be executed.
const RELEASE_AGAIN: Duration = Duration::from_secs(1);
/// A sample of the server's clock was taken no longer than this after its command was sent.
const LATE_SAMPLE: Duration = Duration::from_secs(1);
/// How long after the last claim is void its token is released again.
const AFTER_VOID: Duration = Duration::from_millis(1);

impl<P> Server<P> {
    pub(super) fn new(servers: Servers, in_doubt: Arc<InDoubt<P>>) -> Self {
        Self { servers, in_doubt }
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(super) fn in_doubt(&self) -> &InDoubt<P> {
        &self.in_doubt
    }

    /// Claims for a caller that does not wait. A claim that was void, because the server's clock
    /// stepped, is repeated once.
    pub(super) async fn try_acquire(&self, claim: &Claim) -> Result<Grant, AcquireError> {
        let until = Some(self.servers.timeouts().call_until());
        for _ in 0..2 {
            let (reply, sent) = match self.claim(claim, None, until).await {
                Ok(answered) => answered,
                Err(fault) => return Err(self.acquire_fault(claim.token, fault)),
            };
            match reply {
                AcquireReply::Granted { number, .. } => return Ok(granted(claim, number, sent)),
                AcquireReply::Busy { holder, .. } | AcquireReply::Queued { holder, .. } => {
                    return Err(self.acquire_error(claim.token, Error::busy(holder.left)));
                }
                AcquireReply::Void { .. } => {}
            }
        }
        Err(self.acquire_error(claim.token, expired_on_arrival()))
    }

    /// Sends one claim, and one more if the connection breaks, or if another server has the lock.
    /// The in-doubt record tells what may have become of the first. Returns the reply, and when the
    /// claim was sent that was answered: a lease counts from then, and not from an earlier one that
    /// was sent to no avail.
    pub(super) async fn claim(
        &self,
        claim: &Claim,
        place: Option<&QueuePlace>,
        until: Option<Instant>,
    ) -> Result<(AcquireReply, Instant), Fault> {
        let mut route = self.servers.route(&claim.name);
        loop {
            let reply = match route.hop(until).await {
                Ok(hop) => self.claim_once(&hop, claim, place, until).await,
                Err(fault) => Err(fault),
            };
            match reply {
                Err(fault) => route.after(fault, until).await?,
                reply => return reply,
            }
        }
    }

    async fn claim_once(
        &self,
        hop: &Hop<'_>,
        claim: &Claim,
        place: Option<&QueuePlace>,
        until: Option<Instant>,
    ) -> Result<(AcquireReply, Instant), Fault> {
        let sent = Instant::now();
        let void = void(hop, sent);
        if let Some(place) = place {
            // No clock is more than 1 % slow.
            let kept = Duration::from_millis(place.keep_ms.saturating_add(place.keep_ms / 99));
            let over = void.by.saturating_add(kept);
            self.in_doubt.queueing(claim.token, &claim.name, &place.member, over);
        }
        let sent_claim = self.in_doubt.sent(claim.token, void, way(&hop.live));
        let ttl_ms = millis_up(claim.ttl);
        let operation = Operation::Claim { ttl_ms, void_after: void.after, place: place.cloned() };
        let command = self.command(&claim.name, claim.token, operation);
        let reply = hop.unless_replaced(hop.reply(hop.submit(command, until)).await);
        let reply = reply.and_then(|reply| read_acquire(&reply, hop.live.generation));
        sent_claim.answered(&reply);
        let reply = reply?;
        hop.connection.clock().record(reply.us(), sent, hop.live.generation);
        Ok((reply, sent))
    }

    /// A failed acquire, judged by all that was sent for its token.
    pub(super) fn acquire_error(&self, token: Token, error: Error) -> AcquireError {
        let error = if self.in_doubt.may_be_granted(token) {
            error.in_doubt("the lock may have been granted to an earlier claim")
        } else {
            error
        };
        AcquireError { error, definite: !self.in_doubt.contains(token) }
    }

    /// The same for a claim that ended in `fault`.
    pub(super) fn acquire_fault(&self, token: Token, fault: Fault) -> AcquireError {
        let is_without_effect = fault.is_without_effect();
        let mut failed = self.acquire_error(token, Error::from(fault));
        failed.definite &= is_without_effect;
        failed
    }

    /// Renews one lease, and sends the renewal once more if the connection breaks, or if another
    /// server has the lock.
    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, Error> {
        let (mut route, until) = (self.servers.route(&renewal.name), Some(renewal.until));
        let mut broken = None::<Error>;
        loop {
            let reply = match route.hop(until).await {
                Ok(hop) => self.renew_once(&hop, renewal).await,
                Err(fault) => Err(fault),
            };
            let fault = match reply {
                Ok(renewed) => return Ok(renewed),
                Err(fault) => fault,
            };
            let breaks = match &fault {
                Fault::Broken(error) => Some(error.clone()),
                _ => None,
            };
            match (route.after(fault, until).await, broken) {
                (Ok(()), first) => broken = first.or(breaks),
                (Err(fault), Some(first)) => return Err(Error::from(fault).after(&first)),
                (Err(fault), None) => return Err(fault.into()),
            }
        }
    }

    async fn renew_once(&self, hop: &Hop<'_>, renewal: &Renewal) -> Result<Renewed, Fault> {
        let (live, since) = (&hop.live, Instant::now());
        let (ttl_ms, clock) = (millis_up(renewal.ttl), hop.connection.clock());
        let cut = || cut(renewal, hop, since);
        let passed = clock.passed(live.generation);
        let sent = self.in_doubt.renewing(renewal.token, ttl_ms, live.clock, passed, cut);
        let operation = Operation::Renew { ttl_ms, cut: sent.cut };
        let command = self.command(&renewal.name, renewal.token, operation);
        let reply = hop.unless_replaced(hop.reply(hop.submit(command, Some(renewal.until))).await);
        let us = reply.as_ref().map_or(0, |reply| reply.us);
        let counts = sent.answered(&reply, us);
        if reply.as_ref().is_err_and(Fault::is_wrong_type) {
            return Ok(Renewed::TakenByOther);
        }
        let reply = reply?;
        clock.record(us, since, live.generation);
        match reply.value {
            Value::Int(1) if !counts => Err(Fault::Silent(cut_may_follow())),
            Value::Int(1) => match reply.unconfirmed {
                None => Ok(Renewed::Kept { since }),
                // The server may keep the lock for longer than this client counts on.
                Some(error) => Err(Fault::Unconfirmed(error.in_doubt("it may last longer there"))),
            },
            Value::Int(0) => Ok(Renewed::Gone),
            Value::Int(2) => Ok(Renewed::TakenByOther),
            _ => Err(Fault::Garbled),
        }
    }

    /// Sends one release, wherever the lock is.
    pub(super) async fn release(&self, release: &Release) -> Result<ReleaseReply, Error> {
        let mut route = self.servers.route_once(&release.name);
        loop {
            let reply = match route.hop(None).await {
                Ok(hop) => self.release_once(&hop, release).await,
                Err(fault) => Err(fault),
            };
            let fault = match reply {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            match route.after(fault, None).await {
                Ok(()) => {}
                Err(fault) if fault.is_split() => {
                    // Boxed, or every release would carry the room for this.
                    return Ok(Box::pin(self.free(release)).await?);
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    async fn release_once(&self, hop: &Hop<'_>, release: &Release) -> Result<ReleaseReply, Fault> {
        let (sent, token) = (Instant::now(), release.token);
        let member = self.in_doubt.member(token);
        let operation = Operation::Release { member, hold_ms: hold_ms(release) };
        let command = self.command(&release.name, token, operation);
        let reply = hop.reply(hop.submit(command, None)).await;
        self.released(hop, token, sent, reply.and_then(|reply| read_release(&reply)))
    }

    /// Frees a lock whose slot is on its way to another node, so that its queue cannot be reached:
    /// the lock alone can be. A waiter finds it free by its next claim.
    async fn free(&self, release: &Release) -> Result<ReleaseReply, Fault> {
        let mut route = self.servers.route_once(&release.name);
        loop {
            let hop = match route.hop(None).await {
                Ok(hop) => hop,
                Err(fault) => {
                    route.after(fault, None).await?;
                    continue;
                }
            };
            let (sent, token) = (Instant::now(), release.token);
            // A place in the queue has to be left when the queue can be reached.
            let has_place = self.in_doubt.member(token).is_some();
            let reply = hop.send(&free(&release.name, token, hold_ms(release))).await;
            let fault = match reply.and_then(|value| read_freed(&value)) {
                Err(fault) if !fault.is_wrong_type() => fault,
                reply if has_place => {
                    let released = reply.map_or(Released::TakenByOther, |(released, _)| released);
                    let again = Instant::now().saturating_add(RELEASE_AGAIN);
                    return Ok(ReleaseReply::retry_at(released, again));
                }
                reply => return self.released(&hop, token, sent, reply),
            };
            route.after(fault, None).await?;
        }
    }

    /// A release that was sent at `sent` has its reply.
    fn released(
        &self,
        hop: &Hop<'_>,
        token: Token,
        sent: Instant,
        reply: Result<(Released, Option<u64>), Fault>,
    ) -> Result<ReleaseReply, Fault> {
        let clock = hop.connection.clock();
        let (released, us) = if reply.as_ref().is_err_and(Fault::is_wrong_type) {
            // A claim of the token that is still on its way may find the key gone.
            (Released::TakenByOther, None)
        } else {
            reply?
        };
        if let Some(us) = us {
            clock.record(us, sent, hop.live.generation);
        }
        let passed = us.unwrap_or_else(|| clock.passed(hop.live.generation));
        Ok(match self.in_doubt.released(token, way(&hop.live), passed) {
            None => ReleaseReply::definite(released),
            Some(left) => {
                let pause = left.saturating_add(AFTER_VOID).min(RELEASE_AGAIN);
                ReleaseReply::retry_at(released, Instant::now().saturating_add(pause))
            }
        })
    }

    pub(super) fn command(&self, name: &Name, token: Token, operation: Operation) -> Command {
        Command { name: name.clone(), tag: self.servers.tag(name), token, operation }
    }
}

/// When a call that is sent at `sent` does nothing any more.
///
/// Deliberately not the caller's remaining wait: a claim that arrives slightly late, or that was
/// queued behind many others, should still get a definite reply.
pub(super) fn void(hop: &Hop<'_>, sent: Instant) -> Void {
    let (clock, generation) = (hop.connection.clock(), hop.live.generation);
    let good_for = hop.connection.timeouts().request + hop.live.batcher.longest_delay();
    let after = clock.latest_at(sent, generation).saturating_add(micros(good_for));
    // Since the last sample, and until then, the server's clock may have lost 1 %.
    let lost = Duration::from_micros(after.saturating_sub(clock.passed(generation)) / 100);
    Void { after, by: sent.saturating_add(good_for + lost + LATE_SAMPLE) }
}

/// How a renewal that is sent at `since` brings an expiry back to what was asked, which a step of
/// the server's clock put off. Not below what the lease counts on. With it, when it is void by this
/// client's clock.
fn cut(renewal: &Renewal, hop: &Hop<'_>, since: Instant) -> Option<(Cut, Instant)> {
    if !hop.connection.clock().went_back(since, hop.live.generation) {
        return None;
    }
    let longest_ms = millis_up(renewal.needs(since)?);
    let void = void(hop, since);
    Some((Cut { longest_ms, void_after: void.after }, void.by))
}

fn hold_ms(release: &Release) -> u64 {
    millis_up(release.min_hold_ends.map_or(Duration::ZERO, Instant::remaining))
}

pub(super) fn way(live: &Live) -> Way {
    Way { generation: live.generation, clock: live.clock }
}

/// Releases a lock that was granted to a token with which no task waits, if the token is among the
/// last that were released here. Sent once: the hand-off TTL frees the lock as well.
pub(super) fn release_stray_grant<P>(
    connection: &Arc<Connection>,
    in_doubt: &InDoubt<P>,
    token: Token,
    name: &str,
) {
    let known = in_doubt.released_from(token).filter(|known| known.as_str() == name);
    let (Some(name), Some(live)) = (known, connection.open()) else { return };
    let operation = Operation::Release { member: None, hold_ms: 0 };
    let command = Command { name, tag: Tag::SINGLE, token, operation };
    // Not sent if its runtime is gone, and the connection with it.
    drop(connection.spawn(async move {
        let submitted = live.batcher.submit(command, None);
        live.batcher.reply(submitted).await
    }));
}

/// The same on a cluster.
#[cfg(feature = "redis-cluster")]
pub(super) fn release_stray_grant_on<P>(
    cluster: &Arc<super::cluster::Cluster>,
    in_doubt: &InDoubt<P>,
    token: Token,
    name: &str,
) {
    let known = in_doubt.released_from(token).filter(|known| known.as_str() == name);
    let Some(name) = known else { return };
    let operation = Operation::Release { member: None, hold_ms: 0 };
    let command = Command { tag: cluster.tag(&name), name, token, operation };
    let servers = Servers::Cluster(Arc::clone(cluster));
    drop(cluster.spawn(async move {
        let mut route = servers.route_once(&command.name);
        loop {
            let reply = match route.hop(None).await {
                Ok(hop) => hop.reply(hop.submit(command.clone(), None)).await,
                Err(fault) => Err(fault),
            };
            let Err(fault) = reply else { return };
            if route.after(fault, None).await.is_err() {
                return;
            }
        }
    }));
}

/// The grant for a claim sent at `sent`.
pub(super) fn granted(claim: &Claim, number: u64, sent: Instant) -> Grant {
    Grant::new(if claim.fencing { number } else { 0 }, sent, claim.ttl)
}

/// The error of a renewal that was executed, but may be undone by an earlier one that cuts.
fn cut_may_follow() -> Error {
    Error::plain(
        ErrorKind::Unknown,
        "the clock of redis went back, and an earlier renewal that has no reply may shorten the lock \
         again: try again in a moment",
    )
}

/// The error of claims that were void when the server executed them.
pub(super) fn expired_on_arrival() -> Error {
    Error::plain(
        ErrorKind::Unavailable,
        "acquire requests expired before redis executed them: the server is overloaded or its clock \
         jumped",
    )
}
