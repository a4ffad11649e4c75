//! Waiting for a lock in its queue.
//!
//! A waiter claims once. If the lock is taken it subscribes its inbox, claims again for a place in
//! the queue, and then waits for a message. The release of the holder before it hands the lock on
//! and publishes the grant to the inbox.
//!
//! Messages can be missed, so a waiter also claims again:
//!
//! - at intervals, which keeps its place and finds a grant whose message was missed;
//! - when the holder's expiry has passed, because the lock may be free without a release;
//! - often, while the holder is not a client of this crate and hands nothing on;
//! - when its connection was replaced.
//!
//! A wait can be interrupted and resumed, with the same token, by another task of the process: what
//! it knows is parked with the token's in-doubt record.

#[cfg(feature = "redis-cluster")]
mod from_cluster;
mod mailbox;
mod pubsub;
mod schedule;
mod ticket;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(feature = "redis-cluster")]
pub(super) use self::from_cluster::IncomingFromCluster;
use self::mailbox::{Event, Mailbox};
pub(super) use self::mailbox::{Incoming, Mailboxes};
use self::pubsub::Subscription;
use self::schedule::{ClaimSchedule, HAND_OFF_TTL, pause_after_failure, pause_after_gap};
#[cfg(feature = "test-util")]
pub(super) use self::ticket::GrantMessage;
use self::ticket::{Ticket, Verdict};
use super::error::Fault;
use super::protocol::{Server, expired_on_arrival};
use super::servers::Servers;
use super::transport::{AcquireReply, Holder, QueuePlace, millis_up};
use crate::error::Error;
use crate::store::{
    AcquireContext, AcquireError, Claim, Contended, ForceReleaseListener, Grant, RECENTLY, Renewal,
    Token, WaitEvent,
};
use crate::time::{Instant, sleep_until, sleep_until_some};

/// What the waits of a store share.
pub(super) struct Waits {
    mailboxes: Arc<Mailboxes>,
    subscription: Arc<Subscription>,
    contended: Contended,
}

/// What an interrupted wait knows.
pub(super) struct Parked {
    queued: Box<QueuedToken>,
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
    /// Boxed: most locks are free, and need no room for it.
    queued: Option<Box<QueuedToken>>,
    /// When to claim next.
    next: Instant,
    last_known: Option<LastKnown>,
    /// Claims in a row that were void.
    voids: u32,
    /// A message came that only the reply to a later claim can confirm.
    hinted: bool,
    /// When a claim first met the present foreign holder, or the one before it.
    behind_others_since: Option<Instant>,
    /// For how long claims met foreign holders before that.
    behind_others: Duration,
}

/// Why a wait goes on.
enum Wake {
    Claim,
    Grant(Grant),
    /// A message came, and gave no lease.
    Message,
    /// Messages may have been missed.
    Missed,
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
    /// With when the claim was sent that was answered.
    Reply(Result<(AcquireReply, Instant), Fault>),
    Message(Grant),
}

/// A time that has passed.
const AT_ONCE: Instant = Instant::from_origin(Duration::ZERO);
/// How long after the end of a wait its last claim may still be answered, so that the caller learns
/// something definite. Less than what the client gives a store to end a wait.
const LAST_REPLY: Duration = Duration::from_millis(40);

impl Waits {
    pub(super) fn new(mailboxes: Arc<Mailboxes>) -> Self {
        let (subscription, contended) = (Arc::default(), Contended::default());
        Self { mailboxes, subscription, contended }
    }

    /// Tells `listener` of locks that were taken by force.
    pub(super) fn report_forced_releases(&self, listener: Weak<dyn ForceReleaseListener>) {
        self.mailboxes.report_forced_releases(listener);
    }

    /// Makes sure, in the background, that the store learns of forced releases where these leases
    /// are held. On a cluster it does not: that would be a subscription for each slot.
    pub(super) fn listen_for_forced_releases(&self, server: &Server<Parked>, renewals: &[Renewal]) {
        let Servers::One(connection) = server.servers() else { return };
        let Some(live) = connection.open() else { return };
        let namespaces = renewals.iter().map(|renewal| renewal.name.namespace());
        let mut last = None;
        for namespace in namespaces {
            if last != Some(namespace) {
                self.subscription.listen_for_forced_releases(connection, &live, namespace);
            }
            last = Some(namespace);
        }
    }

    /// Claims until the lock is granted or the caller's time is over.
    pub(super) async fn acquire(
        &self,
        server: &Server<Parked>,
        claim: &Claim,
        context: &AcquireContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let mut wait = Wait::resume(self, server, claim, context);
        loop {
            let is_last = match wait.wake(context.until()).await {
                Wake::Grant(grant) => return Ok(wait.entered(grant)),
                Wake::Message => continue,
                Wake::Missed => {
                    wait.doubt();
                    wait.next = Instant::now().saturating_add(pause_after_gap());
                    continue;
                }
                Wake::Over => match wait.last_word() {
                    Some(error) => return Err(server.acquire_error(claim.token, error)),
                    None => true,
                },
                Wake::Claim => false,
            };
            let attempt = wait.claim(context).await;
            let is_last = is_last || context.is_over();
            match wait.conclude(attempt, is_last) {
                ControlFlow::Break(outcome) => return outcome,
                ControlFlow::Continue(Some(event)) => context.report(event),
                ControlFlow::Continue(None) => {}
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
        if let Some(Parked { queued, next, last_known }) = server.in_doubt().resume(claim.token) {
            context.report(last_known.event.clone());
            let (queued, last_known) = (Some(queued), Some(last_known));
            return Self { queued, next, last_known, ..Self::new(waits, server, claim, true) };
        }
        let contended =
            waits.contended.contains(&claim.name) || server.in_doubt().contains(claim.token);
        Self::new(waits, server, claim, contended)
    }

    fn new(
        waits: &'a Waits,
        server: &'a Server<Parked>,
        claim: &'a Claim,
        contended: bool,
    ) -> Self {
        Self {
            waits,
            server,
            claim,
            contended,
            queued: None,
            next: AT_ONCE,
            last_known: None,
            voids: 0,
            hinted: false,
            behind_others_since: None,
            behind_others: Duration::ZERO,
        }
    }

    /// Draws the conclusions from a claim: the wait ends, with the last claim at the
    /// latest, or goes on, perhaps with something to report.
    fn conclude(
        &mut self,
        attempt: Result<ClaimEnd, Fault>,
        is_last: bool,
    ) -> ControlFlow<Result<Grant, AcquireError>, Option<WaitEvent>> {
        let (server, token) = (self.server, self.claim.token);
        let event = match attempt {
            Ok(ClaimEnd::Granted(grant)) => return ControlFlow::Break(Ok(grant)),
            // Also if the event is what was known before, because there is no connection: another
            // claim would end the same way.
            Ok(ClaimEnd::Waiting(event)) if is_last => {
                return ControlFlow::Break(Err(server.acquire_error(token, event.into())));
            }
            Ok(ClaimEnd::Waiting(event)) => {
                self.voids = 0;
                event
            }
            Ok(ClaimEnd::Void) if is_last => {
                // The server replies, so what it said a moment ago counts.
                let error = self.last_word().unwrap_or_else(expired_on_arrival);
                return ControlFlow::Break(Err(server.acquire_error(token, error)));
            }
            Ok(ClaimEnd::Void) => {
                // The claim was queued behind many others, or the server's clock stepped. The reply
                // brought its time, so the next claim should not be void.
                self.voids += 1;
                if self.voids == 1 {
                    return ControlFlow::Continue(None);
                }
                self.failed(server.acquire_error(token, expired_on_arrival()).error)
            }
            Err(fault) => {
                let is_permanent = fault.is_permanent();
                let failed = server.acquire_fault(token, fault);
                if is_permanent || is_last {
                    return ControlFlow::Break(Err(failed));
                }
                self.failed(failed.error)
            }
        };
        ControlFlow::Continue(Some(event))
    }

    /// Waits for what comes next.
    async fn wake(&mut self, until: Option<Instant>) -> Wake {
        let Some(queued) = &mut self.queued else {
            if self.last_known.is_none() {
                // No claim was answered yet, but perhaps with void.
                return Wake::Claim;
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
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
            Event::Missed => {
                queued.ticket.missed(Instant::now());
                Wake::Missed
            }
        }
    }

    fn act_on(&mut self, verdict: Verdict) -> Option<Grant> {
        match verdict {
            Verdict::Enter(grant) => Some(grant),
            Verdict::ClaimAgain => {
                self.doubt();
                self.next = Instant::now();
                self.hinted = self.server.servers().needs_acks();
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
            grant.number = 0;
        }
        if self.behind_others_since.is_some() {
            self.met(true, Instant::now());
        }
        grant.behind_others = self.behind_others;
        grant
    }

    /// At `now` a client of this library has the lock (`hands_on`), or a foreign one.
    fn met(&mut self, hands_on: bool, now: Instant) {
        if !hands_on {
            self.behind_others_since.get_or_insert(now);
        } else if let Some(since) = self.behind_others_since.take() {
            self.behind_others = self.behind_others.saturating_add(now.saturating_since(since));
        }
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
        let (outcome, missed) = self.send(until).await;
        let (reply, sent) = match outcome {
            // The claim's future is dropped by now, so the claim is on the in-doubt record.
            Outcome::Message(grant) => return Ok(ClaimEnd::Granted(self.entered(grant))),
            Outcome::Reply(reply) => reply?,
        };
        match reply {
            AcquireReply::Granted { number, .. } => {
                let grant = Grant::new(number, sent, self.claim.ttl);
                Ok(ClaimEnd::Granted(self.entered(grant)))
            }
            AcquireReply::Busy { holder, .. } => {
                self.met(holder.hands_on, sent);
                self.waits.contended.insert(&self.claim.name);
                self.contended = true;
                self.next = Instant::now();
                Ok(self.busy(holder, self.next))
            }
            AcquireReply::Queued { us, holder, ticket, place, generation } => {
                self.met(holder.hands_on, sent);
                self.server.in_doubt().queued(self.claim.token);
                let Some(queued) = &mut self.queued else { return Err(Fault::Garbled) };
                queued.ticket.queued(ticket, us, sent, generation);
                let missed = missed || !self.server.servers().hears(&self.claim.name);
                self.queued(holder, place, missed)
            }
            AcquireReply::Void { .. } => {
                if missed {
                    self.doubt();
                }
                self.next = Instant::now();
                Ok(ClaimEnd::Void)
            }
        }
    }

    /// Sends a claim and waits for its reply, or for a message that gives the lease before. Returns
    /// as well whether messages may have been missed meanwhile.
    async fn send(&mut self, until: Option<Instant>) -> (Outcome, bool) {
        let (server, claim) = (self.server, self.claim);
        let place = self.queued.as_ref().map(|queued| QueuePlace {
            member: Arc::clone(&queued.member),
            keep_ms: millis_up(queued.schedule.place_life(self.waits.mailboxes.len())),
        });
        let mut missed = false;
        let mut reply = pin!(server.claim(claim, place.as_ref(), until));
        loop {
            let Some(queued) = &mut self.queued else {
                return (Outcome::Reply(reply.await), missed);
            };
            let event = tokio::select! {
                biased;
                event = queued.mailbox.next() => event,
                reply = &mut reply => return (Outcome::Reply(reply), missed),
            };
            match event {
                Event::Grant(message, generation) => {
                    let verdict = queued.ticket.judge(message, generation, Instant::now());
                    if let Some(grant) = self.act_on(verdict) {
                        return (Outcome::Message(grant), missed);
                    }
                }
                // The claim is answered, or fails, by itself, perhaps after an attempt on another
                // connection.
                Event::Missed => {
                    queued.ticket.missed(Instant::now());
                    missed = true;
                }
            }
        }
    }

    /// The token has its place in the queue.
    fn queued(&mut self, holder: Holder, place: u64, missed: bool) -> Result<ClaimEnd, Fault> {
        self.waits.contended.insert(&self.claim.name);
        let now = Instant::now();
        let waiting = self.busy(holder, now);
        let Some(queued) = &mut self.queued else { return Err(Fault::Garbled) };
        let pause = queued.schedule.next_pause(holder, place, self.waits.mailboxes.len());
        self.next = now.saturating_add(pause);
        let verdict = queued.ticket.judge_early(now);
        if missed {
            // The inbox may not be subscribed on the connection that carried the reply.
            self.doubt();
            self.next = self.next.min(now.saturating_add(pause_after_gap()));
        }
        match verdict {
            Verdict::Enter(grant) => return Ok(ClaimEnd::Granted(self.entered(grant))),
            Verdict::ClaimAgain => {
                self.doubt();
                // Not at once: a server that forgot its tickets would be sent claims without end.
                self.next = now.saturating_add(pause_after_gap());
            }
            Verdict::Ignore => {}
        }
        // The reply may be older than the message.
        if std::mem::take(&mut self.hinted) {
            self.doubt();
            self.next = now;
        }
        Ok(waiting)
    }

    /// Makes sure that the inbox is subscribed on the present connection, and that the token has a
    /// member for the queue. The member stays the same for as long as the token waits: another
    /// would be a second place.
    async fn prepare(&mut self, until: Option<Instant>) -> Result<(), Fault> {
        let name = &self.claim.name;
        let servers = self.server.servers();
        let (channel, sign) = match servers {
            Servers::One(connection) => {
                let live = connection.live(until).await?;
                let until = connection.timeouts().request_until(until);
                let subscription = &self.waits.subscription;
                let joined = subscription.join(connection, &live, name.namespace(), until).await;
                (joined.map_err(Fault::before_the_call)?, '=')
            }
            Servers::Cluster(cluster) => (Box::pin(cluster.join(name, until)).await?, '#'),
        };
        if let Some(queued) = &mut self.queued {
            let notified = channel.is_some() && names_inbox(&queued.member);
            queued.schedule.rely_on_messages(notified);
            return Ok(());
        }
        let member = self.server.in_doubt().member(self.claim.token);
        let member =
            member.unwrap_or_else(|| member_of(self.claim, sign, channel.as_deref()).into());
        // A place that was taken before may name no inbox.
        let notified = channel.is_some() && names_inbox(&member);
        let schedule = ClaimSchedule::new(self.claim.ttl, notified);
        let schedule = if self.claim.beside_others { schedule.beside_others() } else { schedule };
        self.queued = Some(Box::new(QueuedToken {
            member,
            mailbox: self.waits.mailboxes.open(self.claim.token, servers.tag(name)),
            ticket: Ticket::new(servers.needs_acks()),
            schedule,
        }));
        Ok(())
    }

    /// The lock is taken, as a reply said at `at`.
    fn busy(&mut self, holder: Holder, at: Instant) -> ClaimEnd {
        let event = WaitEvent::Busy(holder.left);
        self.last_known = Some(LastKnown { event: event.clone(), at: Some(at) });
        ClaimEnd::Waiting(event)
    }

    /// The claim failed, and is repeated after a pause.
    fn failed(&mut self, error: Error) -> WaitEvent {
        let (now, event) = (Instant::now(), WaitEvent::Failed(error));
        self.last_known = Some(LastKnown { event: event.clone(), at: Some(now) });
        self.next = now.saturating_add(pause_after_failure());
        event
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

/// Whether grants are sent to the member of a queue.
fn names_inbox(member: &str) -> bool {
    !member.ends_with(":~")
}

/// The member of a queue that `claim` is: `token:hand_off_ms:=inbox`, with another sign for a
/// sharded inbox, or `token:hand_off_ms:~` if it receives no messages.
fn member_of(claim: &Claim, sign: char, inbox: Option<&str>) -> String {
    let hand_off_ms = millis_up(claim.ttl.min(HAND_OFF_TTL));
    let mut text = [0; Token::TEXT_LEN];
    let token = claim.token.encode(&mut text);
    match inbox {
        Some(inbox) => format!("{token}:{hand_off_ms}:{sign}{inbox}"),
        None => format!("{token}:{hand_off_ms}:~"),
    }
}
