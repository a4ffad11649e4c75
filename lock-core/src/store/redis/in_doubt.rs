//! In doubt: what the server may still do for a token.
//!
//! A claim without a reply may have been executed, or may be executed later. A token that waits has
//! a place in a queue, so the server may grant it the lock without another claim. Both are recorded
//! here, by token, until a release ends them.
//!
//! A release is final only if no claim of its token can be executed after it:
//!
//! - One connection executes commands in order. A release with a reply there has passed every claim
//!   that was sent there before it.
//! - A claim that was sent on another connection may be executed until the server's clock passes
//!   the time after which it is void. Until then the token is released again.
//!
//! A claim is recorded as unanswered when its [`SentClaim`] is dropped without a reply, so also
//! when the caller's future is dropped. Records belong to the store: they outlive connections.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::Fault;
use crate::store::Token;

/// The tokens for which the server may still do something.
///
/// `P` is what an interrupted wait leaves for the task that resumes it.
pub(super) struct InDoubt<P>(Mutex<Tokens<P>>);

struct Tokens<P> {
    records: HashMap<Token, TokenRecord<P>>,
    /// The last tokens that were released after they had a place. A server that fell back to an
    /// older state may grant them the lock.
    released: VecDeque<Token>,
    /// How many records there may be before the next sweep.
    sweep_at: usize,
}

struct TokenRecord<P> {
    unanswered: Option<UnansweredClaims>,
    /// The member of the queue that the token is, or was.
    member: Option<Arc<str>>,
    parked: Option<Box<P>>,
    /// Whether the server may grant the lock without another claim: the token has a place, or a
    /// claim without a reply.
    may_be_granted: bool,
    /// The server's time, in microseconds, after which neither a claim nor a place can be left.
    over_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnansweredClaims {
    /// The server's time, in microseconds, after which they do nothing.
    void_after: u64,
    /// The connection that carried all of them, if it was one.
    generation: Option<u64>,
}

/// A claim that was sent. Dropped without a reply, it is recorded as unanswered.
pub(super) struct SentClaim<'a, P> {
    in_doubt: &'a InDoubt<P>,
    token: Token,
    sent_us: u64,
    claims: UnansweredClaims,
    is_unanswered: bool,
    may_be_granted: bool,
}

/// Records are swept when there are at least this many. A token whose release was given up is not
/// asked about again.
const SWEEP_AT: usize = 1024;
/// How many released tokens to remember, so that a late grant for one is released at once. A late
/// grant for an older one ends with its claim TTL.
const MAX_RELEASED: usize = 256;
/// Slack for clock error, in microseconds: a record this far past its end cannot matter any more.
const CLOCK_SLACK_US: u64 = 60_000_000;

impl<P> InDoubt<P> {
    /// A claim is sent at `sent_us` by the server's clock, on connection `generation`.
    pub(super) fn sent(
        &self,
        token: Token,
        sent_us: u64,
        void_after: u64,
        generation: u64,
    ) -> SentClaim<'_, P> {
        let claims = UnansweredClaims { void_after, generation: Some(generation) };
        let (is_unanswered, may_be_granted) = (true, true);
        SentClaim { in_doubt: self, token, sent_us, claims, is_unanswered, may_be_granted }
    }

    /// A claim that is sent at `sent_us` takes a place as `member`. The server keeps the place
    /// until `over_at` at most.
    pub(super) fn queueing(&self, token: Token, member: &Arc<str>, sent_us: u64, over_at: u64) {
        let mut tokens = self.lock();
        let record = tokens.record(token, sent_us);
        record.member = Some(Arc::clone(member));
        record.over_at = record.over_at.max(over_at);
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
        if tokens.records.get(&token).is_some_and(|record| record.unanswered.is_none()) {
            tokens.records.remove(&token);
        }
    }

    /// A release of the token was answered on connection `generation`, when the server's clock had
    /// passed `us`. Returns for how long a claim may still be executed.
    pub(super) fn released(&self, token: Token, generation: u64, us: u64) -> Option<Duration> {
        let mut tokens = self.lock();
        let record = tokens.records.get(&token)?;
        let left = match record.unanswered {
            Some(claims) if claims.generation != Some(generation) => {
                claims.void_after.saturating_sub(us)
            }
            _ => 0,
        };
        if left == 0 {
            let had_place = record.member.is_some();
            tokens.records.remove(&token);
            if had_place {
                tokens.released.truncate(MAX_RELEASED - 1);
                tokens.released.push_front(token);
            }
            return None;
        }
        Some(Duration::from_micros(left))
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
        self.lock().records.get(&token)?.member.clone()
    }

    /// Whether the token was released, so that no task waits for its grant.
    pub(super) fn was_released(&self, token: Token) -> bool {
        self.lock().released.contains(&token)
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
        let (records, released) = (HashMap::new(), VecDeque::new());
        Self(Mutex::new(Tokens { records, released, sweep_at: SWEEP_AT }))
    }
}

impl<P> Tokens<P> {
    fn record(&mut self, token: Token, now_us: u64) -> &mut TokenRecord<P> {
        if self.records.len() >= self.sweep_at {
            self.records.retain(|_, record| record.over_at.saturating_add(CLOCK_SLACK_US) > now_us);
            self.sweep_at = SWEEP_AT.max(self.records.len() * 2);
        }
        self.records.entry(token).or_insert(TokenRecord {
            unanswered: None,
            member: None,
            parked: None,
            may_be_granted: false,
            over_at: 0,
        })
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
        let record = tokens.record(self.token, self.sent_us);
        let mut claims = self.claims;
        if let Some(before) = record.unanswered {
            claims.void_after = claims.void_after.max(before.void_after);
            // A claim on another connection may arrive behind any release on this one.
            if before.generation != claims.generation {
                claims.generation = None;
            }
        }
        record.unanswered = Some(claims);
        record.may_be_granted |= self.may_be_granted;
        record.over_at = record.over_at.max(claims.void_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> (InDoubt<()>, Token) {
        (InDoubt::default(), Token::fresh().unwrap())
    }

    #[test]
    fn release_on_the_connection_of_the_claim_is_final() {
        let (in_doubt, token) = token();
        drop(in_doubt.sent(token, 0, 1_000, 1));
        assert!(in_doubt.contains(token));
        assert_eq!(in_doubt.released(token, 1, 500), None);
        assert!(!in_doubt.contains(token));
    }

    #[test]
    fn claims_on_two_connections_end_by_time_alone() {
        let (in_doubt, token) = token();
        drop(in_doubt.sent(token, 0, 1_000, 1));
        drop(in_doubt.sent(token, 100, 1_200, 2));
        for generation in [1, 2, 3] {
            let left = in_doubt.released(token, generation, 500);
            assert_eq!(left, Some(Duration::from_micros(700)));
        }
        assert_eq!(in_doubt.released(token, 2, 1_200), None);
        assert!(!in_doubt.contains(token));
    }

    #[test]
    fn place_is_known_until_a_grant_or_a_release_ends_it() {
        let (in_doubt, token) = token();
        let member: Arc<str> = "t:1:=i".into();
        in_doubt.queueing(token, &member, 0, 1_000);
        assert_eq!(in_doubt.member(token).as_ref(), Some(&member));
        in_doubt.granted(token);
        assert!(!in_doubt.contains(token));

        in_doubt.queueing(token, &member, 0, 1_000);
        drop(in_doubt.sent(token, 0, 1_000, 1));
        in_doubt.granted(token);
        assert_eq!(
            in_doubt.member(token),
            Some(member),
            "the unanswered claim may give it a place again"
        );
        assert_eq!(in_doubt.released(token, 1, 0), None);
        assert!(!in_doubt.contains(token));
    }

    #[test]
    fn refused_claim_for_a_place_leaves_no_doubt() {
        let (in_doubt, token) = token();
        in_doubt.queueing(token, &"t:1:=i".into(), 0, 1_000);
        let refused = Fault::of(redis::make_extension_error("LOADING".into(), None));
        in_doubt.sent(token, 0, 1_000, 1).answered::<()>(&Err(refused));
        assert!(in_doubt.contains(token) && !in_doubt.may_be_granted(token));
        let no_memory = Fault::of(redis::make_extension_error("OOM".into(), None));
        in_doubt.sent(token, 0, 1_000, 1).answered::<()>(&Err(no_memory));
        assert!(!in_doubt.may_be_granted(token));

        drop(in_doubt.sent(token, 0, 1_000, 1));
        assert!(in_doubt.may_be_granted(token), "this claim had no reply");
        assert_eq!(in_doubt.released(token, 1, 500), None);
        assert!(!in_doubt.may_be_granted(token));

        in_doubt.queueing(token, &"t:1:=i".into(), 0, 1_000);
        in_doubt.queued(token);
        assert!(in_doubt.may_be_granted(token));
    }

    #[test]
    fn answered_claims_leave_no_record_and_old_records_are_swept() {
        let (in_doubt, token) = token();
        in_doubt.sent(token, 0, 1_000, 1).answered(&Ok(()));
        assert_eq!(in_doubt.lock().records.len(), 0);
        for turn in 0..3 * SWEEP_AT as u64 {
            let now = turn * CLOCK_SLACK_US;
            drop(in_doubt.sent(Token::fresh().unwrap(), now, now + 1_000, 1));
        }
        assert!(in_doubt.lock().records.len() <= SWEEP_AT);
    }
}
