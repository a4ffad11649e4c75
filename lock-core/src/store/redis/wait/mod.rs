//! Waiting for a lock in its queue.
//!
//! A waiter claims once. If the lock is taken it subscribes its inbox, claims again for a place in
//! the queue, and then waits for a message. The release of the holder before it hands the lock over
//! and publishes the grant to the inbox.
//!
//! Messages can be lost, so a waiter also claims again:
//!
//! - at intervals, which keeps its place and finds a grant whose message was lost;
//! - when the holder's expiry has passed, because the lock may be free without a release;
//! - often, while the holder is not a client of this crate and hands nothing over;
//! - when its connection was lost.
//!
//! A wait can be interrupted and resumed, with the same token, by another task of the process: what
//! it knows is parked with the token's in-doubt record.

mod contended;
mod mailbox;
mod pubsub;
mod schedule;
mod ticket;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use self::contended::Contended;
use self::mailbox::{Event, Mailbox};
pub(super) use self::mailbox::{Incoming, Mailboxes};
use self::pubsub::Subscription;
use self::schedule::{CLAIM_TTL, ClaimSchedule, pause_after_failure, pause_after_loss};
#[cfg(feature = "test-util")]
pub(super) use self::ticket::GrantMessage;
use self::ticket::{Ticket, Verdict};
use super::error::Fault;
use super::keys::Tag;
use super::protocol::{Server, expired_on_arrival};
use super::transport::{AcquireReply, Holder, QueuePlace, millis_up};
use crate::error::Error;
use crate::store::{AcquireContext, AcquireError, Claim, Grant, RECENTLY, Token, WaitEvent};
use crate::time::{Instant, sleep_until, sleep_until_some};

/// What the waits of a store share.
pub(super) struct Waits {
    mailboxes: Arc<Mailboxes>,
    subscription: Arc<Subscription>,
    contended: Contended,
}

/// What an interrupted wait knows.
pub(super) struct Parked {
    queued: QueuedToken,
    next: Instant,
    last_known: LastKnown,
}

/// A token in a queue, or about to take its place there.
struct QueuedToken {
    member: Arc<str>,
    mailbox: Mailbox,
    ticket: Ticket,
    schedule: ClaimSchedule,
}

/// What the last reply said.
#[derive(Clone, Debug)]
struct LastKnown {
    event: WaitEvent,
    /// When it was so; `None` if something may have changed since.
    at: Option<Instant>,
}

/// A wait in progress. Interrupted, it parks what it knows.
struct Wait<'a> {
    waits: &'a Waits,
    server: &'a Server<Parked>,
    claim: &'a Claim,
    /// Whether to take a place at once: the lock was taken before, or the token may have a place.
    contended: bool,
    queued: Option<QueuedToken>,
    /// When to claim next.
    next: Instant,
    last_known: Option<LastKnown>,
}

/// Why a wait goes on.
enum Wake {
    Claim,
    Grant(Grant),
    /// A message came, and gave no lease.
    Message,
    /// Messages may have been lost.
    Lost,
    /// The caller's time is over.
    Over,
}

/// How one claim of a wait ended.
enum ClaimEnd {
    Granted(Grant),
    /// The token goes on waiting, and this is known.
    Waiting(WaitEvent),
    Void,
}

/// What ended the time in which a claim was under way.
enum Outcome {
    Reply(Result<AcquireReply, Fault>),
    Message(Grant),
}

/// How long after the end of a wait its last claim may still be answered, so that the caller learns
/// something definite. Less than what the client gives a store to end a wait.
const LAST_REPLY: Duration = Duration::from_millis(40);

impl Waits {
    pub(super) fn new(mailboxes: Arc<Mailboxes>, tag: Tag) -> Self {
        let subscription = Arc::new(Subscription::new(tag));
        Self { mailboxes, subscription, contended: Contended::default() }
    }

    /// Claims until the lock is granted or the caller's time is over.
    pub(super) async fn acquire(
        &self,
        server: &Server<Parked>,
        claim: &Claim,
        context: &AcquireContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let token = claim.token;
        let mut wait = Wait::resume(self, server, claim, context);
        let mut voids = 0;
        loop {
            let is_last = match wait.wake(context.until()).await {
                Wake::Grant(grant) => return Ok(wait.entered(grant)),
                Wake::Message => continue,
                Wake::Lost => {
                    wait.doubt();
                    wait.next = Instant::now().saturating_add(pause_after_loss());
                    continue;
                }
                Wake::Over => match wait.last_word() {
                    Some(error) => return Err(server.acquire_error(token, error)),
                    None => true,
                },
                Wake::Claim => false,
            };
            let attempt = wait.claim(context).await;
            let is_last = is_last || context.is_over();
            match attempt {
                Ok(ClaimEnd::Granted(grant)) => return Ok(grant),
                Ok(ClaimEnd::Waiting(event)) => {
                    voids = 0;
                    // Also if the event is what was known before, because there is no connection:
                    // another claim would end the same way.
                    if is_last {
                        return Err(server.acquire_error(token, event.into()));
                    }
                    context.report(event);
                }
                Ok(ClaimEnd::Void) => {
                    if is_last {
                        // The server replies, so what it said a moment ago counts.
                        let error = wait.last_word().unwrap_or_else(expired_on_arrival);
                        return Err(server.acquire_error(token, error));
                    }
                    // The claim was queued behind many others, or the server's clock stepped. The
                    // reply brought its time, so the next claim should not be void.
                    voids += 1;
                    if voids > 1 {
                        let error = server.acquire_error(token, expired_on_arrival()).error;
                        wait.failed(error.clone());
                        context.report(WaitEvent::Failed(error));
                    }
                }
                Err(fault) => {
                    let is_permanent = fault.is_permanent();
                    let failed = server.acquire_fault(token, fault);
                    if is_permanent || is_last {
                        return Err(failed);
                    }
                    wait.failed(failed.error.clone());
                    context.report(WaitEvent::Failed(failed.error));
                }
            }
        }
    }
}

impl<'a> Wait<'a> {
    /// Goes on where an interrupted wait of the same token ended, or begins.
    fn resume(
        waits: &'a Waits,
        server: &'a Server<Parked>,
        claim: &'a Claim,
        context: &AcquireContext<'_>,
    ) -> Self {
        let now = Instant::now();
        if let Some(Parked { queued, next, last_known }) = server.in_doubt().resume(claim.token) {
            context.report(last_known.event.clone());
            let (queued, last_known) = (Some(queued), Some(last_known));
            return Self { waits, server, claim, contended: true, queued, next, last_known };
        }
        let contended =
            waits.contended.contains(&claim.name) || server.in_doubt().contains(claim.token);
        Self { waits, server, claim, contended, queued: None, next: now, last_known: None }
    }

    /// Waits for what comes next.
    async fn wake(&mut self, until: Option<Instant>) -> Wake {
        let Some(queued) = &mut self.queued else {
            let now = Instant::now();
            if self.last_known.is_some() && until.is_some_and(|until| until <= now) {
                return Wake::Over;
            }
            if self.next <= now {
                return Wake::Claim;
            }
            return tokio::select! {
                biased;
                () = sleep_until(self.next) => Wake::Claim,
                () = sleep_until_some(until) => Wake::Over,
            };
        };
        let event = tokio::select! {
            biased;
            event = queued.mailbox.next() => event,
            () = sleep_until(self.next) => return Wake::Claim,
            () = sleep_until_some(until) => return Wake::Over,
        };
        match event {
            Event::Grant(message, generation) => {
                let verdict = queued.ticket.judge(message, generation, Instant::now());
                self.act_on(verdict).map_or(Wake::Message, Wake::Grant)
            }
            Event::Lost => Wake::Lost,
        }
    }

    fn act_on(&mut self, verdict: Verdict) -> Option<Grant> {
        match verdict {
            Verdict::Enter(grant) => Some(grant),
            Verdict::ClaimAgain => {
                self.doubt();
                self.next = Instant::now();
                None
            }
            Verdict::Ignore => None,
        }
    }

    /// The wait is over. Not called while a claim is under way: the claim has to be on the in-doubt
    /// record before.
    fn entered(&mut self, mut grant: Grant) -> Grant {
        // Further messages for this wait go with its mailbox.
        self.queued = None;
        if self.contended {
            self.server.in_doubt().granted(self.claim.token);
        }
        if !self.claim.fencing {
            grant.fence = 0;
        }
        grant
    }

    /// Claims once. A grant message that comes meanwhile counts as well.
    async fn claim(&mut self, context: &AcquireContext<'_>) -> Result<ClaimEnd, Fault> {
        let until = context.until().map(|until| until.saturating_add(LAST_REPLY));
        if self.contended
            && let Err(fault) = self.prepare(until).await
        {
            // If the wait ended meanwhile, what was known a moment before is still true.
            return match &self.last_known {
                Some(last) if context.is_over() && last.is_busy() && last.is_recent() => {
                    Ok(ClaimEnd::Waiting(last.event.clone()))
                }
                _ => Err(fault),
            };
        }
        let sent = Instant::now();
        let (outcome, lost) = self.send(until).await;
        let reply = match outcome {
            // The claim's future is dropped by now, so the claim is on the in-doubt record.
            Outcome::Message(grant) => return Ok(ClaimEnd::Granted(self.entered(grant))),
            Outcome::Reply(reply) => reply?,
        };
        match reply {
            AcquireReply::Granted { fence, .. } => {
                let grant = Grant::new(fence, sent, self.claim.ttl);
                Ok(ClaimEnd::Granted(self.entered(grant)))
            }
            AcquireReply::Busy { holder, .. } => {
                self.waits.contended.insert(&self.claim.name);
                self.contended = true;
                self.next = Instant::now();
                Ok(self.busy(holder, self.next))
            }
            AcquireReply::Queued { us, holder, ticket, place, generation } => {
                self.server.in_doubt().queued(self.claim.token);
                let Some(queued) = &mut self.queued else { return Err(Fault::Garbled) };
                queued.ticket.queued(ticket, us, sent, generation);
                self.queued(holder, place, lost)
            }
            AcquireReply::Void { .. } => {
                if lost {
                    self.doubt();
                }
                self.next = Instant::now();
                Ok(ClaimEnd::Void)
            }
        }
    }

    /// Sends a claim and waits for its reply, or for a message that gives the lease before. Returns
    /// as well whether messages may have been lost meanwhile.
    async fn send(&mut self, until: Option<Instant>) -> (Outcome, bool) {
        let (server, claim) = (self.server, self.claim);
        let place = self.queued.as_ref().map(|queued| QueuePlace {
            member: Arc::clone(&queued.member),
            life_ms: millis_up(queued.schedule.place_life(self.waits.mailboxes.len())),
        });
        let mut lost = false;
        let mut reply = pin!(server.claim(claim, place.as_ref(), until));
        loop {
            let Some(queued) = &mut self.queued else {
                return (Outcome::Reply(reply.await), lost);
            };
            let event = tokio::select! {
                biased;
                event = queued.mailbox.next() => event,
                reply = &mut reply => return (Outcome::Reply(reply), lost),
            };
            match event {
                Event::Grant(message, generation) => {
                    let verdict = queued.ticket.judge(message, generation, Instant::now());
                    if let Some(grant) = self.act_on(verdict) {
                        return (Outcome::Message(grant), lost);
                    }
                }
                // The claim is answered, or fails, by itself, perhaps after an attempt on another
                // connection.
                Event::Lost => lost = true,
            }
        }
    }

    /// The token has its place in the queue.
    fn queued(&mut self, holder: Holder, place: u64, lost: bool) -> Result<ClaimEnd, Fault> {
        self.waits.contended.insert(&self.claim.name);
        let now = Instant::now();
        let waiting = self.busy(holder, now);
        let Some(queued) = &mut self.queued else { return Err(Fault::Garbled) };
        let pause = queued.schedule.next_pause(holder, place, self.waits.mailboxes.len());
        self.next = now.saturating_add(pause);
        let verdict = queued.ticket.judge_early(now);
        if lost {
            // The inbox may not be subscribed on the connection that carried the reply.
            self.doubt();
            self.next = self.next.min(now.saturating_add(pause_after_loss()));
        }
        match verdict {
            Verdict::Enter(grant) => return Ok(ClaimEnd::Granted(self.entered(grant))),
            Verdict::ClaimAgain => {
                self.doubt();
                // Not at once: a server that forgot its tickets would be sent claims without end.
                self.next = now.saturating_add(pause_after_loss());
            }
            Verdict::Ignore => {}
        }
        Ok(waiting)
    }

    /// Makes sure that the inbox is subscribed on the present connection, and that the token has a
    /// member for the queue. The member stays the same for as long as the token waits: another
    /// would be a second place.
    async fn prepare(&mut self, until: Option<Instant>) -> Result<(), Fault> {
        let connection = self.server.connection();
        let live = connection.live(until).await?;
        let namespace = self.claim.name.namespace();
        let until = connection.timeouts().request_until(until);
        let joined = self.waits.subscription.join(connection, &live, namespace, until).await;
        let channel = joined.map_err(Fault::before_the_call)?;
        if let Some(queued) = &mut self.queued {
            if channel.is_none() {
                queued.schedule.stop_relying_on_messages();
            }
            return Ok(());
        }
        let member = self.server.in_doubt().member(self.claim.token);
        let member = member.unwrap_or_else(|| member_of(self.claim, channel.as_deref()).into());
        // A place that was taken before may name no inbox.
        let notified = channel.is_some() && member.contains(":=");
        self.queued = Some(QueuedToken {
            member,
            mailbox: self.waits.mailboxes.open(self.claim.token),
            ticket: Ticket::default(),
            schedule: ClaimSchedule::new(self.claim.ttl, notified),
        });
        Ok(())
    }

    /// The lock is taken, as a reply said at `at`.
    fn busy(&mut self, holder: Holder, at: Instant) -> ClaimEnd {
        let event = WaitEvent::Busy(holder.left);
        self.last_known = Some(LastKnown { event: event.clone(), at: Some(at) });
        ClaimEnd::Waiting(event)
    }

    fn failed(&mut self, error: Error) {
        let now = Instant::now();
        self.last_known = Some(LastKnown { event: WaitEvent::Failed(error), at: Some(now) });
        self.next = now.saturating_add(pause_after_failure());
    }

    /// Something may have changed since the last reply.
    fn doubt(&mut self) {
        if let Some(last) = &mut self.last_known
            && last.is_busy()
        {
            last.at = None;
        }
    }

    /// What a wait whose time is over ends with, unless one more claim has to tell.
    fn last_word(&self) -> Option<Error> {
        let last = self.last_known.as_ref()?;
        (last.is_recent() || !last.is_busy()).then(|| last.event.clone().into())
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let (Some(queued), Some(last_known)) = (self.queued.take(), self.last_known.take()) {
            let parked = Parked { queued, next: self.next, last_known };
            self.server.in_doubt().park(self.claim.token, parked);
        }
    }
}

impl LastKnown {
    fn is_busy(&self) -> bool {
        matches!(self.event, WaitEvent::Busy(_))
    }

    /// Whether a wait may end with this.
    fn is_recent(&self) -> bool {
        self.at.is_some_and(|at| Instant::now().saturating_since(at) <= RECENTLY)
    }
}

/// The member of a queue that `claim` is: `token:claim_ms:=inbox`, or `token:claim_ms:~` if it
/// receives no messages.
fn member_of(claim: &Claim, inbox: Option<&str>) -> String {
    let claim_ms = millis_up(claim.ttl.min(CLAIM_TTL));
    let mut text = [0; Token::TEXT_LEN];
    let token = claim.token.encode(&mut text);
    match inbox {
        Some(inbox) => format!("{token}:{claim_ms}:={inbox}"),
        None => format!("{token}:{claim_ms}:~"),
    }
}
