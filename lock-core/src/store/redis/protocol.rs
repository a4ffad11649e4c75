//! Claims, renewals and releases on one server: which command is sent, and what its reply means.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::error::Fault;
use super::in_doubt::InDoubt;
use super::keys::Tag;
use super::transport::{
    AcquireReply, Command, Connection, Operation, QueuePlace, micros, millis_up, read_acquire,
    read_release,
};
use crate::error::{Error, ErrorKind};
use crate::store::{
    AcquireError, Claim, Grant, Name, Release, ReleaseReply, Released, Renewal, Renewed, Token,
};
use crate::time::Instant;

/// One server, and the tokens that are in doubt there.
///
/// `P` is what an interrupted wait leaves with its token.
pub(super) struct Server<P> {
    connection: Arc<Connection>,
    in_doubt: Arc<InDoubt<P>>,
    /// The hash tag of companion records.
    tag: Tag,
}

/// How often a token is released again while a claim of it may still be executed.
const RELEASE_AGAIN: Duration = Duration::from_secs(1);
/// Added to the time for which a claim may still be executed, so that the next release is past it.
const ROUNDING: Duration = Duration::from_millis(1);

impl<P> Server<P> {
    pub(super) fn new(connection: Arc<Connection>, in_doubt: Arc<InDoubt<P>>, tag: Tag) -> Self {
        Self { connection, in_doubt, tag }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(super) fn in_doubt(&self) -> &InDoubt<P> {
        &self.in_doubt
    }

    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    /// Claims for a caller that does not wait. A claim that was void, because the server's clock
    /// stepped, is repeated once.
    pub(super) async fn try_acquire(&self, claim: &Claim) -> Result<Grant, AcquireError> {
        let until = Some(self.connection.timeouts().call_until());
        for _ in 0..2 {
            let sent = Instant::now();
            match self.claim(claim, None, until).await {
                Ok(AcquireReply::Granted { fence, .. }) => return Ok(granted(claim, fence, sent)),
                Ok(AcquireReply::Busy { holder, .. } | AcquireReply::Queued { holder, .. }) => {
                    return Err(self.acquire_error(claim.token, Error::busy(holder.left)));
                }
                Ok(AcquireReply::Void { .. }) => {}
                Err(fault) => return Err(self.acquire_fault(claim.token, fault)),
            }
        }
        Err(self.acquire_error(claim.token, expired_on_arrival()))
    }

    /// Sends one claim, and one more if the connection breaks. The in-doubt record tells what may
    /// have become of the first.
    pub(super) async fn claim(
        &self,
        claim: &Claim,
        place: Option<&QueuePlace>,
        until: Option<Instant>,
    ) -> Result<AcquireReply, Fault> {
        let (reply, _) = once_more_if_broken(|| self.claim_once(claim, place, until)).await;
        reply
    }

    async fn claim_once(
        &self,
        claim: &Claim,
        place: Option<&QueuePlace>,
        until: Option<Instant>,
    ) -> Result<AcquireReply, Fault> {
        let connection = &self.connection;
        let live = connection.live(until).await?;
        let sent = Instant::now();
        let sent_us = connection.clock().latest_at(sent);
        // Deliberately not the caller's remaining wait: a claim that arrives slightly late, or that
        // was queued behind many others, should still get a definite reply.
        let good_for = connection.timeouts().request + live.batcher.longest_delay();
        let void_after = sent_us.saturating_add(micros(good_for));
        if let Some(place) = place {
            let over_at = void_after.saturating_add(place.life_ms.saturating_mul(1_000));
            self.in_doubt.queueing(claim.token, &place.member, sent_us, over_at);
        }
        let sent_claim = self.in_doubt.sent(claim.token, sent_us, void_after, live.generation);
        let ttl_ms = millis_up(claim.ttl);
        let operation = Operation::Claim { ttl_ms, void_after, place: place.cloned() };
        let command = self.command(&claim.name, claim.token, operation);
        let reply = live.batcher.execute(command, until).await;
        let reply = reply.and_then(|reply| read_acquire(&reply, live.generation));
        sent_claim.answered(&reply);
        let reply = reply?;
        connection.clock().record(reply.us(), sent, live.generation);
        Ok(reply)
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

    /// Renews one lease, and sends the renewal once more if the connection breaks.
    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, Error> {
        let (reply, broken) = once_more_if_broken(|| self.renew_once(renewal)).await;
        reply.map_err(|fault| match broken {
            Some(first) => Error::from(fault).after(&first),
            None => Error::from(fault),
        })
    }

    async fn renew_once(&self, renewal: &Renewal) -> Result<Renewed, Fault> {
        let live = self.connection.live(Some(renewal.until)).await?;
        let since = Instant::now();
        let operation = Operation::Renew { ttl_ms: millis_up(renewal.ttl) };
        let command = self.command(&renewal.name, renewal.token, operation);
        let reply = live.batcher.execute(command, Some(renewal.until)).await;
        if reply.as_ref().is_err_and(Fault::is_wrong_type) {
            return Ok(Renewed::TakenByOther);
        }
        match reply?.value {
            Value::Int(1) => Ok(Renewed::Kept { since }),
            Value::Int(0) => Ok(Renewed::Gone),
            Value::Int(2) => Ok(Renewed::TakenByOther),
            _ => Err(Fault::Garbled),
        }
    }

    /// Sends one release.
    pub(super) async fn release(&self, release: &Release) -> Result<ReleaseReply, Error> {
        Ok(self.release_once(release).await?)
    }

    async fn release_once(&self, release: &Release) -> Result<ReleaseReply, Fault> {
        let connection = &self.connection;
        let live = connection.live(None).await?;
        let sent = Instant::now();
        let token = release.token;
        let hold = release.hold_until.map_or(Duration::ZERO, Instant::remaining);
        let member = self.in_doubt.member(token);
        let operation = Operation::Release { member, hold_ms: millis_up(hold) };
        let command = self.command(&release.name, token, operation);
        let reply = live.batcher.execute(command, None).await;
        let (released, us) = if reply.as_ref().is_err_and(Fault::is_wrong_type) {
            // A claim of the token that is still on its way may find the key gone.
            (Released::TakenByOther, None)
        } else {
            read_release(&reply?)?
        };
        if let Some(us) = us {
            connection.clock().record(us, sent, live.generation);
        }
        let passed = us.unwrap_or_else(|| connection.clock().passed());
        Ok(match self.in_doubt.released(token, live.generation, passed) {
            None => ReleaseReply::definite(released),
            Some(left) => {
                let pause = left.saturating_add(ROUNDING).min(RELEASE_AGAIN);
                ReleaseReply::retry_at(released, Instant::now().saturating_add(pause))
            }
        })
    }

    fn command(&self, name: &Name, token: Token, operation: Operation) -> Command {
        Command { name: name.clone(), tag: self.tag, token, operation }
    }
}

/// Releases a lock that was granted to a token that no task waits with, if the token was released.
/// Sent once: the claim TTL frees the lock as well.
pub(super) fn release_orphan<P>(
    connection: &Arc<Connection>,
    in_doubt: &InDoubt<P>,
    tag: Tag,
    token: Token,
    name: &str,
) {
    let Some(name) = Name::from_store(name) else { return };
    let Some(live) = connection.open() else { return };
    if !in_doubt.was_released(token) {
        return;
    }
    let operation = Operation::Release { member: None, hold_ms: 0 };
    let command = Command { name, tag, token, operation };
    // Not sent if its runtime is gone, and the connection with it.
    drop(connection.spawn(async move { live.batcher.execute(command, None).await }));
}

/// Sends once more if the connection breaks, or leads to the wrong server. Claims and renewals can
/// be repeated, because they name their token. Returns the error of the broken connection as well.
async fn once_more_if_broken<T, F>(send: impl Fn() -> F) -> (Result<T, Fault>, Option<Error>)
where
    F: Future<Output = Result<T, Fault>>,
{
    match send().await {
        Err(Fault::Broken(first)) => (send().await, Some(first)),
        // Nothing was done there, so nothing is in doubt.
        Err(fault) if fault.is_by_wrong_server() => (send().await, None),
        reply => (reply, None),
    }
}

/// The grant for a claim sent at `sent`.
pub(super) fn granted(claim: &Claim, fence: u64, sent: Instant) -> Grant {
    Grant::new(if claim.fencing { fence } else { 0 }, sent, claim.ttl)
}

/// The error of claims that were void when the server executed them.
pub(super) fn expired_on_arrival() -> Error {
    Error::plain(
        ErrorKind::Unavailable,
        "acquire requests expired before redis executed them: the server is overloaded or its clock \
         jumped",
    )
}
