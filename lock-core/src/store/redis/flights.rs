//! Claims that nobody answered: until when they may still take effect.
//!
//! A token is given up for good only when no claim of it can arrive any more: because a release was answered on the
//! connection that carried its last claim, behind it, or because the server's clock is past what makes the claims void.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::token::Token;

/// The tokens with unanswered claims.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Token, Flight>>);

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
    flights: &'a Flights,
    token: Token,
    sent_us: u64,
    flight: Flight,
    open: bool,
}

/// Unanswered claims are swept when there are this many: a token whose release was given up is not asked for again.
const MANY: usize = 1024;
/// A claim that was to be void this long ago, in microseconds, is, however far off our idea of the server's clock.
const LANDED_US: u64 = 60_000_000;

impl Flights {
    /// A claim leaves, on connection `generation`, at `sent_us` by the server's clock.
    pub(super) fn leave(
        &self,
        token: Token,
        sent_us: u64,
        void_after: u64,
        generation: u64,
    ) -> InFlight<'_> {
        let flight = Flight { void_after, generation: Some(generation) };
        InFlight { flights: self, token, sent_us, flight, open: true }
    }

    /// Whether a claim of the token may still take effect.
    pub(super) fn has(&self, token: Token) -> bool {
        self.lock().contains_key(&token)
    }

    /// A release of the token was answered on connection `generation`, at `us` by the server's clock: how long a claim
    /// may still be under way.
    pub(super) fn land(&self, token: Token, generation: u64, us: u64) -> Option<Duration> {
        let mut flights = self.lock();
        let flight = flights.get(&token)?;
        let left = flight.void_after.saturating_sub(us);
        if flight.generation == Some(generation) || left == 0 {
            flights.remove(&token);
            return None;
        }
        Some(Duration::from_micros(left))
    }

    /// Nothing of the token can take effect.
    pub(super) fn forget(&self, token: Token) {
        self.lock().remove(&token);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Token, Flight>> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlight<'_> {
    /// The server has dealt with the claim.
    pub(super) fn answered(mut self) {
        self.open = false;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let mut flights = self.flights.lock();
        if flights.len() >= MANY {
            flights.retain(|_, flight| flight.void_after.saturating_add(LANDED_US) > self.sent_us);
        }
        let mut flight = self.flight;
        if let Some(before) = flights.get(&self.token) {
            flight.void_after = flight.void_after.max(before.void_after);
            // One that left on another connection may arrive behind any release on this one.
            if before.generation != flight.generation {
                flight.generation = None;
            }
        }
        flights.insert(self.token, flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_on_the_connection_of_the_claim_settles_it() {
        let (flights, token) = (Flights::default(), Token::fresh().unwrap());
        drop(flights.leave(token, 0, 1_000, 1));
        assert!(flights.has(token));
        assert_eq!(flights.land(token, 1, 500), None);
        assert!(!flights.has(token));
    }

    #[test]
    fn claims_on_two_connections_are_settled_by_time_alone() {
        let (flights, token) = (Flights::default(), Token::fresh().unwrap());
        drop(flights.leave(token, 0, 1_000, 1));
        drop(flights.leave(token, 100, 1_200, 2));
        for generation in [1, 2, 3] {
            let left = flights.land(token, generation, 500);
            assert_eq!(left, Some(Duration::from_micros(700)));
        }
        assert_eq!(flights.land(token, 2, 1_200), None);
        assert!(!flights.has(token));
    }

    #[test]
    fn an_answered_claim_is_not_recorded_and_old_ones_are_swept() {
        let flights = Flights::default();
        flights.leave(Token::fresh().unwrap(), 0, 1_000, 1).answered();
        assert_eq!(flights.lock().len(), 0);
        for turn in 0..3 * MANY as u64 {
            let now = turn * LANDED_US;
            drop(flights.leave(Token::fresh().unwrap(), now, now + 1_000, 1));
        }
        assert!(flights.lock().len() <= MANY);
    }
}
