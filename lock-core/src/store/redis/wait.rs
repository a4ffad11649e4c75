//! Waiting for a lock in its queue.
//!
//! A waiter claims once; if the lock is taken it claims again for a place in the queue, and then listens. The release of whoever
//! is before it hands the lock over and tells the inbox. Claims are repeated at intervals, to keep the place and to find a
//! grant whose message was lost, and when the lock may have fallen free without a release: at the holder's
//! expiry, and often while the holder is not one of ours, which hands nothing on.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::ask::{Claimed, Place, Taken};
use super::error::Fault;
use super::inbox::{Inbox, Mailbox, News};
use super::waiter::{Message, Verdict, Waiter};
use super::{RedisStore, come_too_late, jittered, millis_up};
use crate::error::Error;
use crate::store::Token;
use crate::store::{AcquireContext, AcquireError, Claim, Grant, RECENTLY, WaitEvent};
use crate::time::{Instant, sleep_until, sleep_until_some};

/// What is kept of a wait between the tasks that take turns at it.
#[derive(Debug)]
pub(super) struct Parked {
    queued: Queued,
    next: Instant,
    known: WaitEvent,
    told: Option<Instant>,
}

/// A token in a queue.
#[derive(Debug)]
struct Queued {
    member: Arc<str>,
    /// Whether grants are told to the mailbox.
    told: bool,
    mail: Mailbox,
    waiter: Waiter,
    /// The last pause between two claims for a lock of a foreign holder.
    foreign_pause: Duration,
}

/// A wait in progress. Broken off, it leaves what it knows for whoever goes on with the token.
struct Wait<'a> {
    store: &'a RedisStore,
    claim: &'a Claim,
    /// Whether to ask for a place at once: it was taken before, or the token may have one.
    contended: bool,
    queued: Option<Queued>,
    /// When to claim next.
    next: Instant,
    /// What the last answer said, and when; not when if it may be so no more.
    known: Option<(WaitEvent, Option<Instant>)>,
}

enum Event {
    Ask,
    Over,
    Grant(Message),
    Lost,
}

/// For how long a lock is handed over, at most; whoever gets it makes it the full ttl. About three times as long as a place at
/// the head goes without another claim, so that a message that is lost does not lose the lock as well.
const CLAIM_TTL: Duration = Duration::from_secs(3);
/// How often the head of a queue repeats its claim.
const HEAD_PAUSE: Duration = Duration::from_secs(1);
/// How often at least everybody does.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A store with many waiters repeats its claims no faster than this in all: 0.5 % of a server's time for a thousand of them.
const CLAIMS_PER_SECOND: u32 = 2_000;
/// How often a lock of a foreign holder is asked for: at first, and after a while.
const FOREIGN_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_FOREIGN_PAUSE: Duration = Duration::from_secs(1);
/// How often the head asks if nothing is told, and the others.
const UNTOLD_PAUSE: Duration = Duration::from_millis(100);
const UNTOLD_PAUSE_BEHIND: Duration = Duration::from_millis(250);
/// A ticket outlives three claims by this.
const TICKET_SLACK: Duration = Duration::from_secs(1);
/// A key that has just expired for the server may not have for a replica or a slow clock.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// The pause after a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// How long after its wait a claim may still be answered, so that the last one is told something. Less than what
/// the client gives a store to end a wait.
const LAST_ANSWER: Duration = Duration::from_millis(40);

impl RedisStore {
    /// Claims until the lock is granted or the wait is over.
    pub(super) async fn claim_until(
        &self,
        claim: &Claim,
        waiting: &AcquireContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let mut wait = Wait::resume(self, claim, waiting);
        let mut voids = 0;
        loop {
            let last = match wait.event(waiting.until()).await {
                Event::Grant(message) => match wait.judge(message) {
                    Some(grant) => return Ok(wait.entered(grant)),
                    None => continue,
                },
                Event::Lost => {
                    wait.doubt();
                    wait.next = after_a_loss(Instant::now());
                    continue;
                }
                Event::Over => match wait.last_word() {
                    Some(error) => return Err(self.refusal(claim, error)),
                    None => true,
                },
                Event::Ask => false,
            };
            match wait.ask(waiting).await {
                Ok(Answer::Granted(grant)) => return Ok(grant),
                Ok(Answer::Told(known)) => {
                    voids = 0;
                    // Also if it is what was known before, since there is no connection to ask on: to ask again
                    // would be to go round in circles.
                    if last || waiting.is_over() {
                        return Err(self.refusal(claim, known.into()));
                    }
                    waiting.report(known);
                }
                Ok(Answer::Void) => {
                    if last || waiting.is_over() {
                        // The server answers, so what it said a moment ago counts.
                        let error = wait.last_word().unwrap_or_else(come_too_late);
                        return Err(self.refusal(claim, error));
                    }
                    // It stood behind others for long, or the server's clock made a step, which we know of by now.
                    voids += 1;
                    if voids > 1 {
                        let error = self.refusal(claim, come_too_late()).error;
                        wait.failed(error.clone());
                        waiting.report(WaitEvent::Failed(error));
                    }
                }
                Err(fault) => {
                    let permanent = fault.is_permanent();
                    let refusal = self.fault(claim, fault);
                    if permanent || last || waiting.is_over() {
                        return Err(refusal);
                    }
                    wait.failed(refusal.error.clone());
                    waiting.report(WaitEvent::Failed(refusal.error));
                }
            }
        }
    }
}

/// What a waiter met while it claimed.
enum Met {
    Answer(Result<Claimed, Fault>),
    Grant(Grant),
}

/// How a claim of a waiter fared.
enum Answer {
    Granted(Grant),
    /// It goes on waiting, and knows this.
    Told(WaitEvent),
    Void,
}

impl<'a> Wait<'a> {
    fn resume(store: &'a RedisStore, claim: &'a Claim, waiting: &AcquireContext<'_>) -> Self {
        let now = Instant::now();
        let traces = store.connection.traces();
        if let Some(Parked { queued, next, known, told }) = traces.resume(claim.token) {
            waiting.report(known.clone());
            let known = Some((known, told));
            return Self { store, claim, contended: true, queued: Some(queued), next, known };
        }
        let contended = store.contended.is(&claim.name) || traces.has(claim.token);
        Self { store, claim, contended, queued: None, next: now, known: None }
    }

    /// What happens next.
    async fn event(&mut self, until: Option<Instant>) -> Event {
        let Some(queued) = &mut self.queued else {
            let now = Instant::now();
            if self.known.is_some() && until.is_some_and(|until| until <= now) {
                return Event::Over;
            }
            if self.next <= now {
                return Event::Ask;
            }
            return tokio::select! {
                biased;
                () = sleep_until(self.next) => Event::Ask,
                () = sleep_until_some(until) => Event::Over,
            };
        };
        tokio::select! {
            biased;
            news = queued.mail.next() => match news {
                News::Grant(message) => Event::Grant(message),
                News::Lost => Event::Lost,
            },
            () = sleep_until(self.next) => Event::Ask,
            () = sleep_until_some(until) => Event::Over,
        }
    }

    /// The grant that a message stands for, if it does.
    fn judge(&mut self, message: Message) -> Option<Grant> {
        let queued = self.queued.as_mut()?;
        let verdict = queued.waiter.granted(message, Instant::now());
        self.act_on(verdict)
    }

    fn act_on(&mut self, verdict: Verdict) -> Option<Grant> {
        match verdict {
            Verdict::Enter(grant) => Some(grant),
            Verdict::AskAgain => {
                self.doubt();
                self.next = Instant::now();
                None
            }
            Verdict::Ignore => None,
        }
    }

    /// The wait is over. Not while a claim is under way, of which the token's trace must tell first.
    fn entered(&mut self, mut grant: Grant) -> Grant {
        // With the mailbox goes whatever is still told of this wait.
        self.queued = None;
        if self.contended {
            self.store.connection.traces().granted(self.claim.token);
        }
        if !self.claim.fencing {
            grant.fence = 0;
        }
        grant
    }

    /// Claims once. Grants that are told meanwhile count as well.
    async fn ask(&mut self, waiting: &AcquireContext<'_>) -> Result<Answer, Fault> {
        let until = waiting.until().map(|until| until.saturating_add(LAST_ANSWER));
        if self.contended
            && let Err(fault) = self.prepare(until).await
        {
            // The wait ended meanwhile: what was known a moment before is still true.
            return match &self.known {
                Some((known @ WaitEvent::Busy(_), told)) if waiting.is_over() && recent(*told) => {
                    Ok(Answer::Told(known.clone()))
                }
                _ => Err(fault),
            };
        }
        let sent = Instant::now();
        let store = self.store;
        let place = self.queued.as_ref().map(|queued| Place {
            member: Arc::clone(&queued.member),
            life_ms: millis_up(
                longest_pause(queued.told, self.claim.ttl, store) * 3 + TICKET_SLACK,
            ),
        });
        let mut lost = false;
        let met = {
            let mut claimed = pin!(store.claim(self.claim, place.as_ref(), until));
            loop {
                let Some(queued) = &mut self.queued else { break Met::Answer(claimed.await) };
                let news = tokio::select! {
                    biased;
                    news = queued.mail.next() => news,
                    answer = &mut claimed => break Met::Answer(answer),
                };
                match news {
                    News::Grant(message) => {
                        if let Some(grant) = self.judge(message) {
                            break Met::Grant(grant);
                        }
                    }
                    // The claim is answered, or fails, by itself, perhaps after an attempt on another connection.
                    News::Lost => lost = true,
                }
            }
        };
        let answer = match met {
            // The claim is still under way, and known to be, now that its future is dropped.
            Met::Grant(grant) => return Ok(Answer::Granted(self.entered(grant))),
            Met::Answer(answer) => answer?,
        };
        match answer {
            Claimed::Granted { fence, .. } => {
                let grant = Grant::new(fence, sent, self.claim.ttl);
                Ok(Answer::Granted(self.entered(grant)))
            }
            Claimed::Busy { taken, .. } => {
                store.contended.note(&self.claim.name);
                self.contended = true;
                self.next = Instant::now();
                self.known = Some((WaitEvent::Busy(taken.left), Some(self.next)));
                Ok(Answer::Told(WaitEvent::Busy(taken.left)))
            }
            Claimed::Queued { us, taken, ticket, place } => {
                store.contended.note(&self.claim.name);
                store.connection.traces().placed(self.claim.token);
                let now = Instant::now();
                self.known = Some((WaitEvent::Busy(taken.left), Some(now)));
                let Some(queued) = &mut self.queued else { return Err(Fault::Garbled) };
                self.next = now.saturating_add(queued.pause(taken, place, self.claim.ttl, store));
                queued.waiter.queued(ticket, us, sent);
                let verdict = queued.waiter.early(now);
                if lost {
                    // Where it was answered nobody listens yet.
                    self.doubt();
                    self.next = self.next.min(after_a_loss(now));
                }
                if let Verdict::Enter(grant) = verdict {
                    return Ok(Answer::Granted(self.entered(grant)));
                }
                if let Verdict::AskAgain = verdict {
                    self.doubt();
                    // Not at once: a server that forgot its tickets would be asked without end.
                    self.next = after_a_loss(now);
                }
                Ok(Answer::Told(WaitEvent::Busy(taken.left)))
            }
            Claimed::Void { .. } => {
                if lost {
                    self.doubt();
                }
                self.next = Instant::now();
                Ok(Answer::Void)
            }
        }
    }

    /// Sees to it that grants are told here, on the connection of this moment, and that the token has a member for the
    /// queue. The member stays the same for as long as the token waits: another would be a second place.
    async fn prepare(&mut self, until: Option<Instant>) -> Result<(), Fault> {
        let connection = &self.store.connection;
        let live = connection.live(until).await?;
        let namespace = self.claim.name.namespace();
        let joined = Inbox::join(connection, &live, namespace, connection.patience(until)).await;
        let channel = joined.map_err(Fault::before_the_call)?;
        if let Some(queued) = &mut self.queued {
            queued.told &= channel.is_some();
            return Ok(());
        }
        let claim_ms = millis_up(self.claim.ttl.min(CLAIM_TTL));
        let mut text = [0; Token::TEXT_LEN];
        let token = self.claim.token.encode(&mut text);
        let member = connection.traces().member(self.claim.token);
        let member = member.unwrap_or_else(|| match &channel {
            Some(channel) => format!("{token}:{claim_ms}:={channel}").into(),
            None => format!("{token}:{claim_ms}:~").into(),
        });
        self.queued = Some(Queued {
            // A place that was taken before may name no inbox.
            told: channel.is_some() && member.contains(":="),
            member,
            mail: connection.inbox().mailbox(self.claim.token),
            waiter: Waiter::default(),
            foreign_pause: FOREIGN_PAUSE,
        });
        Ok(())
    }

    fn failed(&mut self, error: Error) {
        let now = Instant::now();
        self.known = Some((WaitEvent::Failed(error), Some(now)));
        self.next = now.saturating_add(jittered(FAILURE_PAUSE));
    }

    /// Something may have changed since the last answer.
    fn doubt(&mut self) {
        if let Some((WaitEvent::Busy(_), told)) = &mut self.known {
            *told = None;
        }
    }

    /// What a wait that is over ends on, unless that must be asked for once more.
    fn last_word(&self) -> Option<Error> {
        let (known, told) = self.known.as_ref()?;
        (recent(*told) || matches!(known, WaitEvent::Failed(_))).then(|| known.clone().into())
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let (Some(queued), Some((known, told))) = (self.queued.take(), self.known.take()) {
            let parked = Parked { queued, next: self.next, known, told };
            self.store.connection.traces().park(self.claim.token, parked);
        }
    }
}

impl Queued {
    /// How long until the next claim, with `place` others in front.
    fn pause(&mut self, taken: Taken, place: u64, ttl: Duration, store: &RedisStore) -> Duration {
        let longest = longest_pause(self.told, ttl, store);
        let usual = match (self.told, place) {
            (false, 0) => UNTOLD_PAUSE,
            (false, _) => UNTOLD_PAUSE_BEHIND,
            (true, 0) => HEAD_PAUSE,
            (true, place) => HEAD_PAUSE + HEAD_PAUSE * u32::try_from(place / 64).unwrap_or(4),
        };
        let mut pause = jittered_down(usual.min(longest));
        if place > 0 {
            return pause;
        }
        if taken.by_ours {
            self.foreign_pause = FOREIGN_PAUSE;
        } else {
            pause = pause.min(jittered_down(self.foreign_pause));
            self.foreign_pause = (self.foreign_pause * 2).min(LONGEST_FOREIGN_PAUSE);
        }
        pause.min(taken.left.saturating_add(AFTER_EXPIRY))
    }
}

/// Whether a wait may end on what was `told` then.
fn recent(told: Option<Instant>) -> bool {
    told.is_some_and(|told| Instant::now().saturating_since(told) <= RECENTLY)
}

/// When to ask again after the connection was lost: spread, since all who wait hear of it.
fn after_a_loss(now: Instant) -> Instant {
    now.saturating_add(jittered(FAILURE_PAUSE / 4))
}

/// The longest pause between two claims, for a token that is told of its grant or is not.
fn longest_pause(told: bool, ttl: Duration, store: &RedisStore) -> Duration {
    let longest = if told { LONGEST_PAUSE.min(ttl / 3) } else { UNTOLD_PAUSE_BEHIND.min(ttl / 4) };
    let waiting = u32::try_from(store.connection.inbox().waiting()).unwrap_or(u32::MAX);
    longest.max(Duration::from_secs(1) / CLAIMS_PER_SECOND * waiting)
}

/// Three quarters of `pause` to all of it.
fn jittered_down(pause: Duration) -> Duration {
    pause / 2 + jittered(pause / 4) + pause / 8
}
