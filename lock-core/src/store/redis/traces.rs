//! What of a token may be left in the server: claims that nobody has heard of again, and a place in a queue.
//!
//! A release is final only if no claim of its token can be executed any more. On one connection commands are executed in order,
//! so a release that is answered there has passed every claim that left before it. Claims that left on another
//! connection are over because the server's clock is past what makes them void.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::Fault;
use super::wait::Parked;
use crate::store::Token;

/// The tokens of which something may be left.
#[derive(Debug, Default)]
pub(super) struct Traces(Mutex<Tokens>);

#[derive(Debug, Default)]
struct Tokens {
    traces: HashMap<Token, Trace>,
    /// The last tokens that gave up their place. A server that fell back to an older state may grant them the lock.
    gone: VecDeque<Token>,
    /// How many there may be before the next sweep.
    enough: usize,
}

#[derive(Debug, Default)]
struct Trace {
    flight: Option<Flight>,
    /// The place in the queue that the token has, or had.
    member: Option<Arc<str>>,
    /// What a wait knew when it was broken off.
    parked: Option<Box<Parked>>,
    /// Whether the token may be given the lock without another claim: it has a place, or a claim that nobody has heard of again.
    in_doubt: bool,
    /// The server's time, in microseconds, after which neither a claim nor a place can be left.
    over_at: u64,
}

/// The unanswered claims of a token.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// The server's time, in microseconds, after which they do nothing.
    void_after: u64,
    /// The connection that carried all of them, if it was one.
    generation: Option<u64>,
}

/// A claim that is under way. Recorded as unanswered unless it is told otherwise, so also when its future is dropped.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    traces: &'a Traces,
    token: Token,
    sent_us: u64,
    flight: Flight,
    open: bool,
    in_doubt: bool,
}

/// Traces are swept when there are at least this many: a token whose release was given up is not asked for again.
const MANY: usize = 1024;
/// Of so many tokens that are gone a late grant is recognised; one of others costs its claim's time.
const GONE: usize = 256;
/// What was to be over this long ago, in microseconds, is, however far off our idea of the server's clock.
const LONG_OVER_US: u64 = 60_000_000;

impl Traces {
    /// A claim leaves, on connection `generation`, at `sent_us` by the server's clock.
    pub(super) fn leave(
        &self,
        token: Token,
        sent_us: u64,
        void_after: u64,
        generation: u64,
    ) -> InFlight<'_> {
        let flight = Flight { void_after, generation: Some(generation) };
        InFlight { traces: self, token, sent_us, flight, open: true, in_doubt: true }
    }

    /// A claim that leaves at `sent_us` asks for the place `member`, which the server keeps until `over_at` at most.
    pub(super) fn queue(&self, token: Token, member: &Arc<str>, sent_us: u64, over_at: u64) {
        let mut tokens = self.lock();
        let trace = tokens.trace(token, sent_us);
        trace.member = Some(Arc::clone(member));
        trace.over_at = trace.over_at.max(over_at);
    }

    /// A claim of the token was answered: it has its place.
    pub(super) fn placed(&self, token: Token) {
        if let Some(trace) = self.lock().traces.get_mut(&token) {
            trace.in_doubt = true;
        }
    }

    /// Whether the token may be given the lock, or have it, by what it did before.
    pub(super) fn are_in_doubt(&self, token: Token) -> bool {
        self.lock().traces.get(&token).is_some_and(|trace| trace.in_doubt)
    }

    /// The place that the token may have.
    pub(super) fn member(&self, token: Token) -> Option<Arc<str>> {
        self.lock().traces.get(&token)?.member.clone()
    }

    /// Whether a claim of the token may still take effect, or it has a place.
    pub(super) fn has(&self, token: Token) -> bool {
        self.lock().traces.contains_key(&token)
    }

    /// Keeps what a wait knows, for whoever goes on with its token.
    pub(super) fn park(&self, token: Token, parked: Parked) {
        // Without a trace the token is settled, and nobody will go on.
        if let Some(trace) = self.lock().traces.get_mut(&token) {
            trace.parked = Some(Box::new(parked));
        }
    }

    /// What an earlier wait with this token knew.
    pub(super) fn resume(&self, token: Token) -> Option<Parked> {
        Some(*self.lock().traces.get_mut(&token)?.parked.take()?)
    }

    /// The token was granted the lock, so it has no place; a claim that is still under way may give it one.
    pub(super) fn granted(&self, token: Token) {
        let mut tokens = self.lock();
        if tokens.traces.get(&token).is_some_and(|trace| trace.flight.is_none()) {
            tokens.traces.remove(&token);
        }
    }

    /// A release of the token was answered on connection `generation`, when the server's clock had passed `us`: how long a claim
    /// may still be under way.
    pub(super) fn land(&self, token: Token, generation: u64, us: u64) -> Option<Duration> {
        let mut tokens = self.lock();
        let trace = tokens.traces.get(&token)?;
        let left = match trace.flight {
            Some(flight) if flight.generation != Some(generation) => {
                flight.void_after.saturating_sub(us)
            }
            _ => 0,
        };
        if left == 0 {
            let waited = trace.member.is_some();
            tokens.traces.remove(&token);
            if waited {
                tokens.gone.truncate(GONE - 1);
                tokens.gone.push_front(token);
            }
            return None;
        }
        Some(Duration::from_micros(left))
    }

    /// Whether the token gave up its place, so that nobody is there for a grant.
    pub(super) fn is_gone(&self, token: Token) -> bool {
        self.lock().gone.contains(&token)
    }

    fn lock(&self) -> MutexGuard<'_, Tokens> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tokens {
    fn trace(&mut self, token: Token, now_us: u64) -> &mut Trace {
        if self.traces.len() >= self.enough.max(MANY) {
            self.traces.retain(|_, trace| trace.over_at.saturating_add(LONG_OVER_US) > now_us);
            self.enough = self.traces.len() * 2;
        }
        self.traces.entry(token).or_default()
    }
}

impl InFlight<'_> {
    /// The claim has its answer, or gets none. One that does not tell what became of the claim is as good as none.
    pub(super) fn ended<T>(mut self, answer: &Result<T, Fault>) {
        self.open = answer.as_ref().is_err_and(|fault| !fault.is_without_effect());
        self.in_doubt = answer.as_ref().is_err_and(|fault| !fault.is_undone());
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let mut tokens = self.traces.lock();
        let trace = tokens.trace(self.token, self.sent_us);
        let mut flight = self.flight;
        if let Some(before) = trace.flight {
            flight.void_after = flight.void_after.max(before.void_after);
            // One that left on another connection may arrive behind any release on this one.
            if before.generation != flight.generation {
                flight.generation = None;
            }
        }
        trace.flight = Some(flight);
        trace.in_doubt |= self.in_doubt;
        trace.over_at = trace.over_at.max(flight.void_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_on_the_connection_of_the_claim_settles_it() {
        let (traces, token) = (Traces::default(), Token::fresh().unwrap());
        drop(traces.leave(token, 0, 1_000, 1));
        assert!(traces.has(token));
        assert_eq!(traces.land(token, 1, 500), None);
        assert!(!traces.has(token));
    }

    #[test]
    fn claims_on_two_connections_are_settled_by_time_alone() {
        let (traces, token) = (Traces::default(), Token::fresh().unwrap());
        drop(traces.leave(token, 0, 1_000, 1));
        drop(traces.leave(token, 100, 1_200, 2));
        for generation in [1, 2, 3] {
            let left = traces.land(token, generation, 500);
            assert_eq!(left, Some(Duration::from_micros(700)));
        }
        assert_eq!(traces.land(token, 2, 1_200), None);
        assert!(!traces.has(token));
    }

    #[test]
    fn a_place_is_known_until_a_release_or_a_grant_ends_it() {
        let (traces, token) = (Traces::default(), Token::fresh().unwrap());
        let member: Arc<str> = "t:1:=i".into();
        traces.queue(token, &member, 0, 1_000);
        assert_eq!(traces.member(token).as_ref(), Some(&member));
        traces.granted(token);
        assert!(!traces.has(token));

        traces.queue(token, &member, 0, 1_000);
        drop(traces.leave(token, 0, 1_000, 1));
        traces.granted(token);
        assert_eq!(
            traces.member(token),
            Some(member),
            "the claim under way may give it a place again"
        );
        assert_eq!(traces.land(token, 1, 0), None);
        assert!(!traces.has(token));
    }

    #[test]
    fn a_place_that_was_asked_for_in_vain_leaves_no_doubt() {
        let (traces, token) = (Traces::default(), Token::fresh().unwrap());
        traces.queue(token, &"t:1:=i".into(), 0, 1_000);
        let refused = Fault::of(redis::make_extension_error("LOADING".into(), None));
        traces.leave(token, 0, 1_000, 1).ended::<()>(&Err(refused));
        assert!(traces.has(token) && !traces.are_in_doubt(token));
        let no_memory = Fault::of(redis::make_extension_error("OOM".into(), None));
        traces.leave(token, 0, 1_000, 1).ended::<()>(&Err(no_memory));
        assert!(!traces.are_in_doubt(token));

        drop(traces.leave(token, 0, 1_000, 1));
        assert!(traces.are_in_doubt(token), "nobody heard of it");
        assert_eq!(traces.land(token, 1, 500), None);
        assert!(!traces.are_in_doubt(token));

        traces.queue(token, &"t:1:=i".into(), 0, 1_000);
        traces.placed(token);
        assert!(traces.are_in_doubt(token));
    }

    #[test]
    fn an_answered_claim_is_not_recorded_and_old_ones_are_swept() {
        let traces = Traces::default();
        traces.leave(Token::fresh().unwrap(), 0, 1_000, 1).ended(&Ok(()));
        assert_eq!(traces.lock().traces.len(), 0);
        for turn in 0..3 * MANY as u64 {
            let now = turn * LONG_OVER_US;
            drop(traces.leave(Token::fresh().unwrap(), now, now + 1_000, 1));
        }
        assert!(traces.lock().traces.len() <= MANY);
    }
}
