//! What is known of the messages of one node: whether they come, and when to try again if not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Instant;

#[derive(Default)]
pub(super) struct Hearing(Mutex<State>);

#[derive(Default)]
struct State {
    /// Until when it is not tried to subscribe.
    silent_until: Option<Instant>,
    /// Attempts in a row that ended without an answer.
    failed: u32,
    may_publish: bool,
    warned: bool,
}

/// When to try again to subscribe after it was refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// The first pause after attempts without an answer. It doubles with each further one, up to that
/// after a refusal: each attempt costs a connection, and some waiters the time of a request.
const FAILED_PAUSE: Duration = Duration::from_secs(5);
/// This many in a row are no outage: packets to the listener vanish, or a proxy swallows the
/// command, or closes the connection at it.
const MOST_FAILED: u32 = 2;

impl Hearing {
    /// Whether waiters do without messages for now.
    pub(super) fn is_given_up(&self) -> bool {
        self.lock().silent_until.is_some_and(|until| !until.remaining().is_zero())
    }

    /// The server refuses to subscribe, or to publish.
    pub(super) fn refused(&self) {
        self.lock().silent_until = Some(Instant::now().saturating_add(REFUSED_PAUSE));
    }

    /// An attempt ended without an answer. Returns whether waiters do without messages from now on.
    pub(super) fn failed(&self) -> bool {
        let mut state = self.lock();
        state.failed = state.failed.saturating_add(1);
        let Some(further) = state.failed.checked_sub(MOST_FAILED) else { return false };
        let pause = FAILED_PAUSE.saturating_mul(1_u32.checked_shl(further).unwrap_or(u32::MAX));
        let pause = pause.min(REFUSED_PAUSE);
        state.silent_until = Some(Instant::now().saturating_add(pause));
        true
    }

    /// A channel is subscribed.
    pub(super) fn works(&self) {
        let mut state = self.lock();
        (state.failed, state.silent_until) = (0, None);
    }

    pub(super) fn may_publish(&self) -> bool {
        self.lock().may_publish
    }

    pub(super) fn published(&self) {
        self.lock().may_publish = true;
    }

    /// Whether this is the first warning about the node.
    pub(super) fn is_first_warning(&self) -> bool {
        !std::mem::replace(&mut self.lock().warned, true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_given_up_after_failures_in_a_row_until_a_subscription_works() {
        let hearing = Hearing::default();
        assert!(!hearing.failed() && !hearing.is_given_up());
        hearing.works();
        assert!(!hearing.failed() && !hearing.is_given_up());
        for _ in 0..70 {
            assert!(hearing.failed() && hearing.is_given_up());
        }
        hearing.works();
        assert!(!hearing.is_given_up());
        hearing.refused();
        assert!(hearing.is_given_up());
    }
}
