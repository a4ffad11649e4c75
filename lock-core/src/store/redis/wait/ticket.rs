//! The ticket of a waiting token: which grant messages to believe.
//!
//! A message can be late. Since it was sent the token may have lost its place, or the lock may have
//! expired. So the client accepts a message only under these rules:
//!
//! - The server gives each place a ticket number and grants each ticket at most once. Replies to
//!   claims name the ticket, and so do messages.
//! - A message is believed only for the newest ticket that a reply named. One for an older ticket
//!   is ignored. One for a ticket that no reply has named yet is kept, and the client claims again.
//! - The lease counts from the last *answered* claim that named the ticket, plus the time that the
//!   server's clock shows between that reply and the grant: the lock was granted after the reply.
//!   Claims without a reply never count, because the lock may have been granted before they
//!   arrived.
//! - Times of two servers are never compared: a message on another connection than the reply, which
//!   may lead to another server, makes the client claim again.
//! - A node of a cluster that was demoted passes on what the new master publishes. It ends the
//!   subscriptions before. So a message behind the end of a subscription counts only if the claim
//!   was sent behind it as well; else the client claims again.
//! - Where replicas have to confirm grants, the client claims again: a connection can ask about its
//!   own writes only, and the grant was written on another.
//! - If too little of the lease is left, the client claims again, which lengthens it.
//!
//! Pure: the clock is an argument.

use std::time::Duration;

use crate::lease;
use crate::store::Grant;
use crate::store::redis::transport::LARGEST_NUMBER;
use crate::time::Instant;

/// What is known of a waiting token's place.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    /// A message gives no lease by itself: another client wrote the grant, so this one's claim has
    /// to be confirmed by replicas first.
    is_hint: bool,
    confirmed: Option<Confirmed>,
    /// A message for a ticket that no reply has named yet on the connection that brought it, and
    /// that connection.
    early: Option<(GrantMessage, u64)>,
    /// When messages may have been missed last.
    missed: Option<Instant>,
}

/// The newest reply that named a ticket.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    number: u64,
    /// When the claim was sent to which this was the reply.
    sent: Instant,
    /// The server's time in the reply, in microseconds.
    us: u64,
    /// The connection that brought the reply.
    generation: u64,
}

/// A message about a grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GrantMessage {
    pub(crate) ticket: u64,
    /// The number of the grant.
    pub(crate) number: u64,
    /// The server's time of the grant, in microseconds.
    pub(crate) us: u64,
    /// How long the server keeps the lock for the token.
    pub(crate) hand_off_ttl: Duration,
}

/// What to do about a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// The token has the lock.
    Enter(Grant),
    /// The token may have the lock: only the reply to another claim can tell.
    ClaimAgain,
    /// The message is outdated.
    Ignore,
}

impl Ticket {
    /// A ticket whose messages give a lease, unless replicas have to confirm it.
    pub(super) fn new(needs_acks: bool) -> Self {
        Self { is_hint: needs_acks, ..Self::default() }
    }

    /// The claim sent at `sent` was answered at the server's time `us`, on connection `generation`:
    /// the token waits with ticket `number`. Replies may come in any order.
    pub(super) fn queued(&mut self, number: u64, us: u64, sent: Instant, generation: u64) {
        let is_newer = self
            .confirmed
            .is_none_or(|last| number > last.number || number == last.number && sent > last.sent);
        if is_newer {
            self.confirmed = Some(Confirmed { number, sent, us, generation });
        }
    }

    /// Messages may have been missed, as is known at `now`: those that come from then on may be by
    /// another server than those before.
    pub(super) fn missed(&mut self, now: Instant) {
        self.early = None;
        self.missed = Some(now);
    }

    /// Judges a message that came before its ticket was known, if there is one.
    pub(super) fn judge_early(&mut self, now: Instant) -> Verdict {
        let Some((message, generation)) = self.early.take() else { return Verdict::Ignore };
        let verdict = self.judge(message, generation, now);
        // Kept once: the server that speaks now may not know of this grant, and then no reply to
        // any claim would settle it.
        self.early = None;
        verdict
    }

    /// Judges a message that came on connection `generation` and is read at `now`.
    pub(super) fn judge(
        &mut self,
        message: GrantMessage,
        generation: u64,
        now: Instant,
    ) -> Verdict {
        let confirmed = match self.confirmed {
            Some(confirmed) if confirmed.number == message.ticket => confirmed,
            Some(confirmed) if confirmed.number > message.ticket => return Verdict::Ignore,
            _ => {
                self.early = Some((message, generation));
                return Verdict::ClaimAgain;
            }
        };
        let is_outdated = self.missed.is_some_and(|missed| confirmed.sent <= missed);
        if self.is_hint || is_outdated || confirmed.generation != generation {
            // The reply to a claim that is under way may name the ticket, and be by that server.
            self.early = Some((message, generation));
            return Verdict::ClaimAgain;
        }
        // Between the reply and the grant, by the server's clock, which may be 1 % fast.
        let between = Duration::from_micros(message.us.saturating_sub(confirmed.us)) / 100 * 99;
        let since = confirmed.sent.saturating_add(between).min(now);
        let left = lease::deadline(since, message.hand_off_ttl).saturating_since(now);
        if left < lease::min_remaining(message.hand_off_ttl) {
            return Verdict::ClaimAgain;
        }
        Verdict::Enter(Grant::new(message.number, since, message.hand_off_ttl).handed_on())
    }
}

impl GrantMessage {
    /// Reads `token ticket number us hand_off_ms name`: the token, the message and the name.
    pub(crate) fn parse(text: &str) -> Option<(&str, Self, &str)> {
        let mut words = text.splitn(6, ' ');
        let token = words.next()?;
        let mut next = || words.next()?.parse().ok();
        let (ticket, number, us) = (next()?, next()?, next()?);
        let hand_off_ttl = Duration::from_millis(next()?);
        if !(1..=LARGEST_NUMBER).contains(&number) {
            return None;
        }
        Some((token, Self { ticket, number, us, hand_off_ttl }, words.next()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_origin(Duration::from_micros(micros))
    }

    const HAND_OFF_TTL: Duration = Duration::from_millis(300);

    fn message(ticket: u64, us: u64) -> GrantMessage {
        GrantMessage { ticket, number: us, us, hand_off_ttl: HAND_OFF_TTL }
    }

    #[test]
    fn message_is_believed_only_for_the_present_ticket() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 1_000, at(1_000), 1);
        assert!(matches!(ticket.judge(message(6, 1_100), 1, at(1_200)), Verdict::Ignore));
        let Verdict::Enter(grant) = ticket.judge(message(7, 2_000), 1, at(2_300)) else {
            panic!("the present ticket was granted")
        };
        assert_eq!(grant.number, 2_000);
        assert!(grant.since >= at(1_980) && grant.since <= at(2_000), "{grant:?}");
    }

    #[test]
    fn message_ahead_of_the_reply_waits_for_it() {
        let mut ticket = Ticket::default();
        assert!(matches!(ticket.judge(message(7, 1_100), 1, at(1_200)), Verdict::ClaimAgain));
        ticket.queued(7, 1_000, at(900), 1);
        assert!(matches!(ticket.judge_early(at(1_300)), Verdict::Enter(_)));
        assert!(matches!(ticket.judge_early(at(1_300)), Verdict::Ignore), "once");

        assert!(matches!(ticket.judge(message(9, 1_500), 1, at(1_600)), Verdict::ClaimAgain));
        ticket.queued(11, 1_700, at(1_700), 1);
        assert!(
            matches!(ticket.judge_early(at(1_800)), Verdict::Ignore),
            "a later ticket: the earlier one is over"
        );
    }

    /// After a failover the clock of the new primary may be far ahead.
    #[test]
    fn message_by_another_server_gives_no_lease() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 1_000, at(1_000), 1);
        assert!(matches!(ticket.judge(message(7, 900_000), 2, at(2_300)), Verdict::ClaimAgain));
        ticket.queued(7, 900_100, at(2_400), 2);
        assert!(matches!(ticket.judge(message(7, 900_200), 2, at(2_600)), Verdict::Enter(_)));
    }

    /// The slot of a lock has moved: a claim is under way to its new node when that one's message
    /// comes, and the reply says that it was executed before.
    #[test]
    fn message_by_another_server_waits_once_for_a_reply_by_that_server() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 1_000, at(1_000), 1);
        assert!(matches!(ticket.judge(message(7, 900_000), 2, at(2_300)), Verdict::ClaimAgain));
        ticket.queued(7, 899_900, at(2_200), 2);
        assert!(matches!(ticket.judge_early(at(2_400)), Verdict::Enter(_)));
        assert!(matches!(ticket.judge(message(7, 900_000), 3, at(2_500)), Verdict::ClaimAgain));
        ticket.queued(7, 900_100, at(2_600), 2);
        assert!(matches!(ticket.judge_early(at(2_700)), Verdict::ClaimAgain));
        assert!(matches!(ticket.judge_early(at(2_800)), Verdict::Ignore));
    }

    /// The server was demoted, which ended the subscription, and passes on what the new master
    /// publishes. That one did not count this client, and has granted the lock to another one.
    #[test]
    fn message_behind_the_end_of_a_subscription_gives_no_lease() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 1_000, at(1_000), 1);
        ticket.missed(at(1_500));
        assert!(matches!(ticket.judge(message(7, 2_000), 1, at(2_100)), Verdict::ClaimAgain));
        // Its claim was sent before.
        ticket.queued(7, 1_400, at(1_400), 1);
        assert!(matches!(ticket.judge_early(at(2_200)), Verdict::ClaimAgain));
        // The server has the lock's slot after all: it has answered since.
        ticket.queued(7, 2_400, at(2_300), 1);
        assert!(matches!(ticket.judge_early(at(2_500)), Verdict::Ignore), "once");
        assert!(matches!(ticket.judge(message(7, 2_600), 1, at(2_700)), Verdict::Enter(_)));
    }

    #[test]
    fn message_before_the_end_of_a_subscription_waits_for_no_reply() {
        let mut ticket = Ticket::default();
        assert!(matches!(ticket.judge(message(7, 1_100), 1, at(1_200)), Verdict::ClaimAgain));
        ticket.missed(at(1_300));
        ticket.queued(7, 1_000, at(1_400), 1);
        assert!(matches!(ticket.judge_early(at(1_500)), Verdict::Ignore));
    }

    #[test]
    fn old_message_gives_no_lease() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 1_000, at(1_000), 1);
        assert!(matches!(ticket.judge(message(7, 1_100), 1, at(290_000)), Verdict::ClaimAgain));
    }

    #[test]
    fn replies_count_by_when_their_claims_were_sent() {
        let mut ticket = Ticket::default();
        ticket.queued(7, 5_000, at(5_000), 1);
        ticket.queued(7, 2_000, at(2_000), 1);
        ticket.queued(6, 9_000, at(9_000), 1);
        let Verdict::Enter(grant) = ticket.judge(message(7, 5_000), 1, at(6_000)) else { panic!() };
        assert_eq!(grant.since, at(5_000));
    }

    #[test]
    fn messages_are_read_and_garbage_is_refused() {
        let (token, message, name) = GrantMessage::parse("t 7 8 9 300 lock:a b").unwrap();
        assert_eq!((token, name), ("t", "lock:a b"));
        assert_eq!(
            message,
            GrantMessage { ticket: 7, number: 8, us: 9, hand_off_ttl: HAND_OFF_TTL }
        );
        for garbage in ["", "t", "t 7 8 9 300", "t 7 x 9 300 k", "t -7 8 9 300 k"] {
            assert!(GrantMessage::parse(garbage).is_none(), "{garbage}");
        }
    }

    proptest! {
        /// The lease from a message ends, by the client's clock, before the lock expires on the
        /// server, whatever the delays, for clocks whose rates differ by up to 1 %.
        #[test]
        fn lease_by_message_ends_before_the_lock(
            executed in 0_u64..1_000_000, until_grant in 0_u64..100_000_000,
            delay in 0_u64..2_000_000, rate in 9_900_u64..=10_100, start in 0_u64..1_000_000,
        ) {
            // In microseconds of the client's clock; the server's runs at `rate` / 10,000.
            let server = |here: u64| 1_000_000_000 + here * rate / 10_000;
            let (sent, queued) = (start, start + executed);
            let granted = queued + until_grant;
            let mut ticket = Ticket::default();
            ticket.queued(7, server(queued), at(sent), 1);
            let verdict = ticket.judge(message(7, server(granted)), 1, at(granted + delay));
            if let Verdict::Enter(grant) = verdict {
                let deadline = lease::deadline(grant.since, grant.ttl);
                let expiry = server(granted) / 1_000 + 300;
                let here = deadline.saturating_since(Instant::from_origin(Duration::ZERO));
                let end = server(u64::try_from(here.as_micros()).unwrap()) / 1_000;
                prop_assert!(end < expiry, "{end} {expiry}");
            }
        }
    }
}
