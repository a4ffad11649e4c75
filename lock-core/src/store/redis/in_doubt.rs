//! In doubt: what the server may still do for a token.
//!
//! A claim without a reply may have been executed, or may be executed later. A token that waits has
//! a place in a queue, so the server may grant it the lock without another claim. Both are recorded
//! here, by token. A record ends with
//!
//! - a release that is final;
//! - the grant, unless a claim has no reply: a token with the lock has no place;
//! - time: once nothing of the token can be left, the next sweep removes its record.
//!
//! A release is final only if no claim of its token can be executed after it:
//!
//! - One connection executes commands in order. A release with a reply there has passed every claim
//!   that was sent there before it.
//! - A claim that was sent on another connection may be executed until the server's clock passes
//!   the time after which it is void. Until then the token is released again. If the release went
//!   to another server, whose clock says nothing about that, until this client's clock has passed
//!   it for certain.
//!
//! A claim is recorded as unanswered when its [`SentClaim`] is dropped without a reply, so also
//! when the caller's future is dropped. Records belong to the store: they outlive connections.
//!
//! A renewal that cuts, because the server's clock went back, is recorded from when it is sent
//! until its reply, or until it is void. Meanwhile no other renewal of the token cuts, and one for
//! more than the cut leaves counts only if the server executed it when the cut was void. The cut
//! leaves at least what the lease counted on when it was sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::Fault;
use super::transport::{ClockId, Cut};
use crate::store::{Name, Token};
use crate::time::Instant;

/// The tokens for which the server may still do something.
///
/// `P` is what an interrupted wait leaves for the task that resumes it.
pub(super) struct InDoubt<P>(Mutex<Tokens<P>>);

struct Tokens<P> {
    records: HashMap<Token, TokenRecord<P>>,
    /// Tokens that were granted the lock after they had a place, until they are released.
    served: HashMap<Token, Name>,
    /// The last tokens that were released after they had a place. A server that fell back to an
    /// older state may grant them the lock.
    released: VecDeque<(Token, Name)>,
    /// How many records there may be before the next sweep.
    sweep_at: usize,
}

struct TokenRecord<P> {
    unanswered: Option<UnansweredClaims>,
    /// The member of the queue that the token is, or was, and of which lock's.
    place: Option<(Name, Arc<str>)>,
    parked: Option<Box<P>>,
    /// Whether the server may grant the lock without another claim: the token has a place, or a
    /// claim without a reply.
    may_be_granted: bool,
    /// A renewal that cuts and has no reply.
    cut: Option<SentCut>,
    /// When neither a claim, a place nor a cut can be left, by this client's clock.
    over: Instant,
}

/// Where a command goes, or a reply comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The number of the connection.
    pub(super) generation: u64,
    pub(super) clock: ClockId,
}

/// When a call does nothing any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Void {
    /// The server's time, in microseconds.
    pub(super) after: u64,
    /// A time when the server's clock has passed that, by this client's clock.
    pub(super) by: Instant,
}

#[derive(Clone, Copy, Debug)]
struct UnansweredClaims {
    void: Void,
    /// Whose times they are void by, if it is one server's.
    clock: Option<ClockId>,
    /// The connection that carried all of them, if it was one.
    generation: Option<u64>,
}

/// A renewal that was sent, and cuts.
#[derive(Clone, Copy, Debug)]
struct SentCut {
    cut: Cut,
    /// When it is void by this client's clock.
    by: Instant,
    clock: ClockId,
}

/// A claim that was sent. Dropped without a reply, it is recorded as unanswered.
pub(super) struct SentClaim<'a, P> {
    in_doubt: &'a InDoubt<P>,
    token: Token,
    claims: UnansweredClaims,
    is_unanswered: bool,
    may_be_granted: bool,
}

/// A renewal that was sent.
pub(super) struct SentRenewal<'a, P> {
    in_doubt: &'a InDoubt<P>,
    token: Token,
    /// How it cuts.
    pub(super) cut: Option<Cut>,
    /// The server's time, in microseconds, that a reply must show for the renewal to count.
    counts_after: Option<u64>,
}

/// Records are swept when there are at least this many. A token whose release was given up is not
/// asked about again.
const SWEEP_AT: usize = 1024;
/// How many released tokens to remember, so that a late grant for one is released at once. A late
/// grant for an older one ends with its hand-off TTL. Enough for what a master that was replaced
/// serves before its clients leave it, and read at such a grant only.
const MAX_RELEASED: usize = 4_096;
/// How many tokens that have the lock to remember. With more, all are forgotten.
const MAX_SERVED: usize = 16_384;
/// Slack for clock error: a record this far past its end cannot matter any more.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

impl<P> InDoubt<P> {
    /// A claim is sent.
    pub(super) fn sent(&self, token: Token, void: Void, way: Way) -> SentClaim<'_, P> {
        let Way { generation, clock } = way;
        let claims = UnansweredClaims { void, clock: Some(clock), generation: Some(generation) };
        let (is_unanswered, may_be_granted) = (true, true);
        SentClaim { in_doubt: self, token, claims, is_unanswered, may_be_granted }
    }

    /// A claim that is sent takes a place as `member` in the queue of `name`. The server keeps the
    /// place until `over` at most.
    pub(super) fn queueing(&self, token: Token, name: &Name, member: &Arc<str>, over: Instant) {
        let mut tokens = self.lock();
        let record = tokens.record(token, over);
        record.place = Some((name.clone(), Arc::clone(member)));
    }

    /// The server replied that the token has a place.
    pub(super) fn queued(&self, token: Token) {
        if let Some(record) = self.lock().records.get_mut(&token) {
            record.may_be_granted = true;
        }
    }

    /// The token was granted the lock, so it has no place. An unanswered claim may give it one.
    pub(super) fn granted(&self, token: Token) {
        let mut tokens = self.lock();
        let is_over = |record: &TokenRecord<P>| record.unanswered.is_none();
        if !tokens.records.get(&token).is_some_and(is_over) {
            return;
        }
        let place = tokens.records.remove(&token).and_then(|record| record.place);
        if let Some((name, _)) = place {
            if tokens.served.len() >= MAX_SERVED {
                tokens.served.clear();
            }
            tokens.served.insert(token, name);
        }
    }

    /// A release of the token was answered, when the server's clock had passed `us`. Returns for
    /// how long a claim may still be executed.
    pub(super) fn released(&self, token: Token, way: Way, us: u64) -> Option<Duration> {
        let mut tokens = self.lock();
        let record = tokens.records.get(&token);
        let left = match record.and_then(|record| record.unanswered) {
            Some(claims) if claims.generation != Some(way.generation) => claims.left(way.clock, us),
            _ => Duration::ZERO,
        };
        if !left.is_zero() {
            return Some(left);
        }
        let place = take(&mut tokens.records, token).and_then(|record| record.place);
        let served = take(&mut tokens.served, token);
        if let Some(name) = place.map(|(name, _)| name).or(served) {
            tokens.released.truncate(MAX_RELEASED - 1);
            tokens.released.push_front((token, name));
        }
        None
    }

    /// A renewal of the token for `ttl_ms` is sent when `clock` has passed `us`. It cuts as `cut`
    /// says, which also tells when it is void by this client's clock, unless another call of the
    /// token may still be executed. `cut` is called with the records locked, so that the lease does
    /// not begin another call unnoticed.
    pub(super) fn renewing(
        &self,
        token: Token,
        ttl_ms: u64,
        clock: ClockId,
        us: u64,
        cut: impl FnOnce() -> Option<(Cut, Instant)>,
    ) -> SentRenewal<'_, P> {
        let mut tokens = self.lock();
        let record = tokens.records.get(&token);
        let unanswered = record.and_then(|record| record.unanswered);
        let before = record.and_then(|record| record.cut).filter(|cut| !cut.is_over(clock, us));
        let is_alone =
            before.is_none() && unanswered.is_none_or(|claims| claims.is_over(clock, us));
        let cut = if is_alone { cut() } else { None };
        if let Some((cut, by)) = cut {
            tokens.record(token, by).cut = Some(SentCut { cut, by, clock });
        }
        let more = before.filter(|before| ttl_ms > before.cut.longest_ms);
        // No reply shows that a cut by another clock is void.
        let void_after = |sent: SentCut| {
            if sent.clock == clock { sent.cut.void_after } else { u64::MAX }
        };
        let (cut, counts_after) = (cut.map(|(cut, _)| cut), more.map(void_after));
        SentRenewal { in_doubt: self, token, cut, counts_after }
    }

    /// Whether the server may do anything for the token: execute a claim, or grant it the lock.
    pub(super) fn contains(&self, token: Token) -> bool {
        self.lock().records.contains_key(&token)
    }

    /// Whether the token may have the lock, or be granted it, because of what was sent before.
    pub(super) fn may_be_granted(&self, token: Token) -> bool {
        self.lock().records.get(&token).is_some_and(|record| record.may_be_granted)
    }

    /// The member of the queue that the token may be.
    pub(super) fn member(&self, token: Token) -> Option<Arc<str>> {
        let tokens = self.lock();
        let (_, member) = tokens.records.get(&token)?.place.as_ref()?;
        Some(Arc::clone(member))
    }

    /// The lock for which the token was released, if no task waits for its grant.
    pub(super) fn released_from(&self, token: Token) -> Option<Name> {
        let tokens = self.lock();
        let (_, name) = tokens.released.iter().find(|(released, _)| *released == token)?;
        Some(name.clone())
    }

    /// Keeps what an interrupted wait knows for the task that resumes it.
    pub(super) fn park(&self, token: Token, parked: P) {
        // Without a record the token is settled, and no task resumes the wait.
        if let Some(record) = self.lock().records.get_mut(&token) {
            record.parked = Some(Box::new(parked));
        }
    }

    /// Takes what an interrupted wait with this token knew.
    pub(super) fn resume(&self, token: Token) -> Option<P> {
        Some(*self.lock().records.get_mut(&token)?.parked.take()?)
    }

    fn lock(&self) -> MutexGuard<'_, Tokens<P>> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Derived, it would need `P: Default`.
impl<P> Default for InDoubt<P> {
    fn default() -> Self {
        Self(Mutex::new(Tokens {
            records: HashMap::new(),
            served: HashMap::new(),
            released: VecDeque::new(),
            sweep_at: SWEEP_AT,
        }))
    }
}

impl<P> Tokens<P> {
    /// The record of the token, which is not over before `over`.
    fn record(&mut self, token: Token, over: Instant) -> &mut TokenRecord<P> {
        if self.records.len() >= self.sweep_at {
            self.sweep(Instant::now());
        }
        let record = self.records.entry(token).or_insert(TokenRecord {
            unanswered: None,
            place: None,
            parked: None,
            may_be_granted: false,
            cut: None,
            over,
        });
        record.over = record.over.max(over);
        record
    }

    fn sweep(&mut self, now: Instant) {
        self.records.retain(|_, record| record.over.saturating_add(CLOCK_SLACK) > now);
        self.sweep_at = SWEEP_AT.max(self.records.len() * 2);
    }
}

impl UnansweredClaims {
    /// For how long they may still be executed, if `clock` has passed `us`.
    fn left(&self, clock: ClockId, us: u64) -> Duration {
        if self.clock == Some(clock) {
            Duration::from_micros(self.void.after.saturating_sub(us))
        } else {
            self.void.by.remaining()
        }
    }

    /// Whether they do nothing any more, if `clock` has passed `us`.
    fn is_over(&self, clock: ClockId, us: u64) -> bool {
        is_over(self.clock == Some(clock), self.void, us)
    }
}

impl SentCut {
    /// Whether it cuts no more, if `clock` has passed `us`.
    fn is_over(&self, clock: ClockId, us: u64) -> bool {
        let void = Void { after: self.cut.void_after, by: self.by };
        is_over(self.clock == clock, void, us)
    }
}

/// Whether a call is void when a server's clock has passed `us`; `is_its`: whether that is the
/// clock by which it is void.
fn is_over(is_its: bool, void: Void, us: u64) -> bool {
    if is_its { void.after < us } else { void.by.remaining().is_zero() }
}

impl<P> SentRenewal<'_, P> {
    /// The renewal has its reply, or will have none. Returns whether it counts, if the server
    /// executed it at `us`.
    pub(super) fn answered<T>(self, reply: &Result<T, Fault>, us: u64) -> bool {
        let is_answered = reply.as_ref().map_or_else(Fault::is_without_effect, |_| true);
        if is_answered && self.cut.is_some() {
            let mut tokens = self.in_doubt.lock();
            // Released meanwhile, the token has no record.
            if let Some(record) = tokens.records.get_mut(&self.token)
                && record.cut.map(|sent| sent.cut) == self.cut
            {
                record.cut = None;
                if record.is_empty() {
                    tokens.records.remove(&self.token);
                }
            }
        }
        self.counts_after.is_none_or(|after| us > after)
    }
}

/// Removes what is known of the token. Most releases find nothing at all, and hash no token then.
fn take<T>(tokens: &mut HashMap<Token, T>, token: Token) -> Option<T> {
    if tokens.is_empty() { None } else { tokens.remove(&token) }
}

impl<P> TokenRecord<P> {
    /// Whether it says nothing.
    fn is_empty(&self) -> bool {
        let is_waiting = self.place.is_some() || self.parked.is_some() || self.may_be_granted;
        self.unanswered.is_none() && self.cut.is_none() && !is_waiting
    }
}

impl<P> SentClaim<'_, P> {
    /// The claim has its reply, or will have none. A reply that does not tell what became of the
    /// claim is as good as none.
    pub(super) fn answered<T>(mut self, reply: &Result<T, Fault>) {
        self.is_unanswered = reply.as_ref().is_err_and(|fault| !fault.is_without_effect());
        self.may_be_granted = reply.as_ref().is_err_and(|fault| !fault.is_undone());
    }
}

impl<P> Drop for SentClaim<'_, P> {
    fn drop(&mut self) {
        if !self.is_unanswered {
            return;
        }
        let mut tokens = self.in_doubt.lock();
        let mut claims = self.claims;
        let record = tokens.record(self.token, claims.void.by);
        if let Some(before) = record.unanswered {
            claims.void.after = claims.void.after.max(before.void.after);
            claims.void.by = claims.void.by.max(before.void.by);
            if before.clock != claims.clock {
                claims.clock = None;
            }
            // A claim on another connection may arrive behind any release on this one.
            if before.generation != claims.generation {
                claims.generation = None;
            }
        }
        record.unanswered = Some(claims);
        record.may_be_granted |= self.may_be_granted;
    }
}

#[cfg(test)]
mod tests;
