//! When a waiting token claims again.
//!
//! A claim refreshes the token's place, finds a grant whose message was missed, and takes a lock
//! that fell free without a release: by its expiry, or because a foreign client deleted it.

use std::time::Duration;

use crate::backoff::jittered;
use crate::store::redis::transport::Holder;

/// The pauses between the claims of one token.
#[derive(Debug)]
pub(super) struct ClaimSchedule {
    ttl: Duration,
    /// Whether the server sends grants to this store. If not, claims are the only way to find them.
    notified: bool,
    /// The pause after the next claim that finds a foreign holder.
    foreign_pause: Duration,
    /// Whether foreign clients take turns with this one.
    beside_others: bool,
    /// How many more claims that find a foreign holder are soon repeated.
    soon: u32,
}

/// How long the server hands a lock on for, at most; the new holder lengthens it to the full ttl.
/// About three times the pause at the head of a queue, so that a missed message does not lose the
/// lock as well. `HAND_OFF_MS` of the scripts.
pub(super) const HAND_OFF_TTL: Duration = Duration::from_secs(3);
/// How often a token in a queue repeats its claim, wherever its place is: the waiters before it may
/// all be gone.
const QUEUE_PAUSE: Duration = Duration::from_secs(1);
/// How long a token may be silent and keep its place.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// The tokens of a store that are behind the heads of their queues repeat their claims no faster
/// than this in all: 0.5 % of a server's time.
const CLAIMS_PER_SECOND: u32 = 2_000;
/// The first pause for a lock of a foreign holder, which hands nothing on, and the longest.
const FOREIGN_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_FOREIGN_PAUSE: Duration = Duration::from_secs(1);
/// The pause beside foreign clients that take turns: they may lock again at once, so a claim has to
/// meet a moment in which the lock is free.
const SOON: Duration = Duration::from_millis(1);
/// How many such pauses there are in a row. A section that is longer is looked for as usual.
const MOST_SOON: u32 = 250;
/// The pause without notifications at the head of a queue, and behind it.
const POLL_PAUSE: Duration = Duration::from_millis(100);
const POLL_PAUSE_BEHIND: Duration = Duration::from_millis(250);
/// A ticket outlives three pauses by this.
const TICKET_SLACK: Duration = Duration::from_secs(1);
/// A key that has just expired for the server may not have for a replica or a slow clock.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);
/// The pause after a failed claim.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

impl ClaimSchedule {
    pub(super) fn new(ttl: Duration, notified: bool) -> Self {
        let foreign_pause = FOREIGN_PAUSE;
        Self { ttl, notified, foreign_pause, beside_others: false, soon: 0 }
    }

    /// The same beside foreign clients that take turns.
    pub(super) fn beside_others(self) -> Self {
        Self { beside_others: true, soon: MOST_SOON, ..self }
    }

    /// The server sends grants to this store from now on, or no longer.
    pub(super) fn rely_on_messages(&mut self, notified: bool) {
        self.notified = notified;
    }

    /// How long the server is to keep the token's place without another claim, when `waiting`
    /// tokens wait in this store.
    pub(super) fn place_life(&self, waiting: usize) -> Duration {
        self.longest_pause(waiting) * 3 + TICKET_SLACK
    }

    /// The pause after a claim that found `holder`, with `place` tokens ahead in the queue and
    /// `waiting` in this store.
    pub(super) fn next_pause(&mut self, holder: Holder, place: u64, waiting: usize) -> Duration {
        let usual = match (self.notified, place) {
            (false, 0) => POLL_PAUSE,
            (false, _) => POLL_PAUSE_BEHIND,
            (true, 0) => QUEUE_PAUSE,
            (true, _) => QUEUE_PAUSE.max(together(waiting)),
        };
        let mut pause = jittered_down(usual.min(self.longest_pause(waiting)));
        if self.beside_others {
            if holder.hands_on {
                self.soon = MOST_SOON;
            } else if self.soon > 0 {
                self.soon -= 1;
                return SOON;
            }
        }
        if place > 0 {
            return pause;
        }
        if holder.hands_on {
            self.foreign_pause = FOREIGN_PAUSE;
        } else {
            pause = pause.min(jittered_down(self.foreign_pause));
            self.foreign_pause = (self.foreign_pause * 2).min(LONGEST_FOREIGN_PAUSE);
        }
        pause.min(holder.left.saturating_add(AFTER_EXPIRY))
    }

    fn longest_pause(&self, waiting: usize) -> Duration {
        let longest = if self.notified {
            LONGEST_SILENCE.min(self.ttl / 3)
        } else {
            POLL_PAUSE_BEHIND.min(self.ttl / 4)
        };
        longest.max(together(waiting))
    }
}

/// The pause with which `waiting` tokens claim [`CLAIMS_PER_SECOND`] times in all.
fn together(waiting: usize) -> Duration {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    Duration::from_secs(1) / CLAIMS_PER_SECOND * waiting
}

/// The pause after a claim that failed.
pub(super) fn pause_after_failure() -> Duration {
    jittered(FAILURE_PAUSE)
}

/// The pause after messages may have been missed: short, and spread because all waiters learn of it
/// at once.
pub(super) fn pause_after_gap() -> Duration {
    jittered(FAILURE_PAUSE / 4)
}

/// Three quarters of `pause` to all of it.
fn jittered_down(pause: Duration) -> Duration {
    pause / 2 + jittered(pause / 4) + pause / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::scripts::RELEASE;

    #[test]
    fn scripts_know_the_hand_off_ttl() {
        let line = format!("local HAND_OFF_MS = {}\n", HAND_OFF_TTL.as_millis());
        assert!(RELEASE.text.contains(&line));
    }

    #[test]
    fn tokens_far_back_claim_as_often_as_the_head() {
        let mut schedule = ClaimSchedule::new(Duration::from_secs(30), true);
        let holder = Holder { hands_on: true, left: Duration::from_secs(30) };
        for place in [0, 1, 500, u64::MAX] {
            let pause = schedule.next_pause(holder, place, 500);
            assert!(QUEUE_PAUSE / 2 <= pause && pause <= QUEUE_PAUSE, "{place}: {pause:?}");
        }
        assert!(schedule.next_pause(holder, 1, 10_000) > QUEUE_PAUSE * 3);
    }

    #[test]
    fn end_of_a_foreign_turn_is_looked_for_soon_for_a_while_where_turns_are_shared() {
        let ttl = Duration::from_secs(30);
        let holder = |hands_on| Holder { hands_on, left: ttl };
        let mut alone = ClaimSchedule::new(ttl, true);
        assert!(alone.next_pause(holder(false), 0, 1) >= FOREIGN_PAUSE / 2);
        let mut shared = ClaimSchedule::new(ttl, true).beside_others();
        for place in [0, 3] {
            assert!(shared.next_pause(holder(true), place, 1) >= QUEUE_PAUSE / 2);
            for _ in 0..MOST_SOON {
                assert_eq!(shared.next_pause(holder(false), place, 1), SOON);
            }
            assert!(shared.next_pause(holder(false), place, 1) >= FOREIGN_PAUSE / 2);
        }
    }
}
