//! What a waiter may believe.
//!
//! A message of a grant can be late: it may tell of a place that was lost since, or of a lock that has expired. So it
//! is believed only if it names the ticket under which the token waits now, and its lease counts from the last
//! *answered* claim that named that ticket: the server granted it later than that. Claims without an answer never
//! count, since the lock may have been granted before they arrived.
//!
//! Pure: the clock is an argument.

use std::time::Duration;

use super::ask::LARGEST_NUMBER;
use crate::lease;
use crate::store::Grant;
use crate::time::Instant;

/// A token that waits.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    place: Option<Ticketed>,
    /// A message for a ticket that we have not heard of yet.
    early: Option<Message>,
}

/// The newest answer that named a ticket.
#[derive(Clone, Copy, Debug)]
struct Ticketed {
    ticket: u64,
    /// When the claim that was answered was sent.
    sent: Instant,
    /// The server's time in the answer, in microseconds.
    us: u64,
}

/// A message from the inbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Message {
    pub(super) ticket: u64,
    pub(super) fence: u64,
    /// The server's time of the grant, in microseconds.
    pub(super) us: u64,
    /// How long the lock was given for.
    pub(super) claim: Duration,
}

/// What to do about a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// The lease is ours.
    Enter(Grant),
    /// It may be ours: only another claim can tell.
    AskAgain,
    /// It is of the past.
    Ignore,
}

impl Waiter {
    /// The claim that was sent at `sent` was answered at the server's time `us`: it waits under `ticket`. Answers may come in any
    /// order.
    pub(super) fn queued(&mut self, ticket: u64, us: u64, sent: Instant) {
        let newer = self.place.is_none_or(|place| {
            ticket > place.ticket || ticket == place.ticket && sent > place.sent
        });
        if newer {
            self.place = Some(Ticketed { ticket, sent, us });
        }
    }

    /// A message that came before its ticket was known, if it can be judged now.
    pub(super) fn early(&mut self, now: Instant) -> Verdict {
        self.early.take().map_or(Verdict::Ignore, |message| self.granted(message, now))
    }

    /// Judges a message that is read at `now`.
    pub(super) fn granted(&mut self, message: Message, now: Instant) -> Verdict {
        let place = match self.place {
            Some(place) if place.ticket == message.ticket => place,
            Some(place) if place.ticket > message.ticket => return Verdict::Ignore,
            _ => {
                self.early = Some(message);
                return Verdict::AskAgain;
            }
        };
        // The grant came `between` after the answer, by the server's clock, which may be 1 % fast.
        let between = Duration::from_micros(message.us.saturating_sub(place.us)) / 100 * 99;
        let since = place.sent.saturating_add(between).min(now);
        let left = lease::deadline(since, message.claim).saturating_since(now);
        if left < lease::min_remaining(message.claim) {
            return Verdict::AskAgain;
        }
        Verdict::Enter(Grant::new(message.fence, since, message.claim))
    }
}

impl Message {
    /// Reads `token ticket fence us claim_ms name`.
    pub(super) fn parse(text: &str) -> Option<(&str, Self, &str)> {
        let mut words = text.splitn(6, ' ');
        let token = words.next()?;
        let mut number = || words.next()?.parse().ok();
        let (ticket, fence, us) = (number()?, number()?, number()?);
        let claim = Duration::from_millis(number()?);
        if !(1..=LARGEST_NUMBER).contains(&fence) {
            return None;
        }
        Some((token, Self { ticket, fence, us, claim }, words.next()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_origin(Duration::from_micros(micros))
    }

    const CLAIM: Duration = Duration::from_millis(300);

    fn message(ticket: u64, us: u64) -> Message {
        Message { ticket, fence: us, us, claim: CLAIM }
    }

    #[test]
    fn a_message_is_believed_only_for_the_present_ticket() {
        let mut waiter = Waiter::default();
        waiter.queued(7, 1_000, at(1_000));
        assert!(matches!(waiter.granted(message(6, 1_100), at(1_200)), Verdict::Ignore));
        let Verdict::Enter(grant) = waiter.granted(message(7, 2_000), at(2_300)) else {
            panic!("it is for us")
        };
        assert_eq!(grant.fence, 2_000);
        assert!(grant.since >= at(1_980) && grant.since <= at(2_000), "{grant:?}");
    }

    #[test]
    fn a_message_that_is_ahead_of_the_answer_waits_for_it() {
        let mut waiter = Waiter::default();
        assert!(matches!(waiter.granted(message(7, 1_100), at(1_200)), Verdict::AskAgain));
        waiter.queued(7, 1_000, at(900));
        assert!(matches!(waiter.early(at(1_300)), Verdict::Enter(_)));
        assert!(matches!(waiter.early(at(1_300)), Verdict::Ignore), "once");

        assert!(matches!(waiter.granted(message(9, 1_500), at(1_600)), Verdict::AskAgain));
        waiter.queued(11, 1_700, at(1_700));
        assert!(
            matches!(waiter.early(at(1_800)), Verdict::Ignore),
            "a later ticket: that one is over"
        );
    }

    #[test]
    fn an_old_message_is_no_lease() {
        let mut waiter = Waiter::default();
        waiter.queued(7, 1_000, at(1_000));
        assert!(matches!(waiter.granted(message(7, 1_100), at(290_000)), Verdict::AskAgain));
    }

    #[test]
    fn answers_count_by_when_they_were_asked_for() {
        let mut waiter = Waiter::default();
        waiter.queued(7, 5_000, at(5_000));
        waiter.queued(7, 2_000, at(2_000));
        waiter.queued(6, 9_000, at(9_000));
        let Verdict::Enter(grant) = waiter.granted(message(7, 5_000), at(6_000)) else { panic!() };
        assert_eq!(grant.since, at(5_000));
    }

    #[test]
    fn messages_are_read_and_rubbish_is_not() {
        let (token, message, name) = Message::parse("t 7 8 9 300 lock:a b").unwrap();
        assert_eq!((token, name), ("t", "lock:a b"));
        assert_eq!(message, Message { ticket: 7, fence: 8, us: 9, claim: CLAIM });
        for rubbish in ["", "t", "t 7 8 9 300", "t 7 x 9 300 k", "t -7 8 9 300 k"] {
            assert!(Message::parse(rubbish).is_none(), "{rubbish}");
        }
    }

    proptest! {
        /// The lease that a message gives is over, by our clock, before the server's expiry, whatever the delays, for clocks
        /// that run at different rates within 1 %.
        #[test]
        fn a_lease_by_message_ends_before_the_lock(
            executed in 0_u64..1_000_000, until_grant in 0_u64..100_000_000, delay in 0_u64..2_000_000,
            rate in 9_900_u64..=10_100, start in 0_u64..1_000_000,
        ) {
            // All in microseconds of our clock; the server's runs at `rate` / 10,000.
            let server = |here: u64| 1_000_000_000 + here * rate / 10_000;
            let (sent, asked) = (start, start + executed);
            let granted = asked + until_grant;
            let mut waiter = Waiter::default();
            waiter.queued(7, server(asked), at(sent));
            if let Verdict::Enter(grant) = waiter.granted(message(7, server(granted)), at(granted + delay)) {
                let deadline = lease::deadline(grant.since, grant.ttl);
                let expiry = server(granted) / 1_000 + 300;
                let here = deadline.saturating_since(Instant::from_origin(Duration::ZERO));
                let end = server(u64::try_from(here.as_micros()).unwrap()) / 1_000;
                prop_assert!(end < expiry, "{end} {expiry}");
            }
        }
    }
}
