//! Counting votes: no I/O, no clock, no randomness.

use std::time::Duration;

use crate::store::{Renewed, Vote};
use crate::time::Instant;

/// How many of `members` a lease needs: more than half of those that were configured, whether or
/// not they answer. So any two leases have a member in common.
pub(super) const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// The replies to the ballots of one round.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    replies: Vec<Reply>,
    /// The number that the ballots proposed, if they did.
    number: Option<u64>,
}

/// What one member has replied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reply {
    /// Nothing so far.
    Open,
    Vote(Vote),
    /// An error, or nothing in time. `definite`: the ballot had no effect and will have none.
    Failed {
        definite: bool,
    },
}

/// What the replies to claims say so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It depends on the members that have not replied.
    Open,
    /// A majority voted for the claim.
    Granted,
    /// A majority has the lock for the token, but no majority accepts the number: claim again with
    /// a larger one, unless some clocks are behind the number already.
    Again { is_too_large: bool },
    /// No majority can be had.
    Failed,
}

impl Tally {
    /// Of a round in which each of `members` is asked.
    pub(super) fn new(members: usize, number: Option<u64>) -> Self {
        Self { replies: vec![Reply::Open; members], number }
    }

    pub(super) fn record(&mut self, member: usize, reply: Reply) {
        self.replies[member] = reply;
    }

    /// No more replies are waited for: members without one count as silent.
    pub(super) fn close(&mut self) {
        for reply in &mut self.replies {
            if *reply == Reply::Open {
                *reply = Reply::Failed { definite: false };
            }
        }
    }

    pub(super) fn replies(&self) -> &[Reply] {
        &self.replies
    }

    fn quorum(&self) -> usize {
        majority(self.replies.len())
    }

    fn count(&self, is: impl Fn(&Reply) -> bool) -> usize {
        self.replies.iter().filter(|reply| is(reply)).count()
    }

    fn open(&self) -> usize {
        self.count(|reply| *reply == Reply::Open)
    }

    /// How many members have the lock for the token.
    pub(super) fn holding(&self) -> usize {
        self.count(|reply| matches!(reply, Reply::Vote(vote) if vote.since().is_some()))
    }

    /// How many members voted for the claim, with its number.
    pub(super) fn accepted(&self) -> usize {
        self.count(|reply| matches!(reply, Reply::Vote(Vote::Accepted { .. })))
    }

    /// How many members have replied at all.
    pub(super) fn answered(&self) -> usize {
        self.count(|reply| matches!(reply, Reply::Vote(_)))
    }

    /// Whether members that did not answer may make up a majority together with those that hold
    /// the lock.
    pub(super) fn may_be_held(&self) -> bool {
        let silent = self.count(|reply| *reply == Reply::Failed { definite: false });
        self.holding() + silent >= self.quorum()
    }

    /// What the replies to claims say.
    pub(super) fn verdict(&self) -> Verdict {
        let (quorum, open, accepted) = (self.quorum(), self.open(), self.accepted());
        if accepted >= quorum {
            return Verdict::Granted;
        }
        if accepted + open >= quorum {
            return Verdict::Open;
        }
        if self.holding() >= quorum {
            return Verdict::Again { is_too_large: self.is_too_large() };
        }
        if self.holding() + open >= quorum { Verdict::Open } else { Verdict::Failed }
    }

    /// Whether the clock of a member is so far behind that it refused the number as too large.
    fn is_too_large(&self) -> bool {
        let number = self.number.unwrap_or(0);
        let is_behind = |reply: &Reply| matches!(reply, Reply::Vote(Vote::Refused { least, .. }) if *least < number);
        self.replies.iter().any(is_behind)
    }

    /// The largest number that a member named as one that it refuses, of those up to `most`.
    pub(super) fn least(&self, most: u64) -> Option<u64> {
        let named = self.replies.iter().filter_map(|reply| match reply {
            Reply::Vote(Vote::Refused { least, .. } | Vote::Taken { least, .. }) => Some(*least),
            _ => None,
        });
        named.filter(|least| *least <= most).max()
    }

    /// For how long a majority cannot be had because other tokens have the lock. `None` if that is
    /// not certain.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        let mut left: Vec<Duration> = self
            .replies
            .iter()
            .filter_map(|reply| match reply {
                Reply::Vote(Vote::Taken { left, .. }) => Some(*left),
                // To waiters, whose turn it is.
                Reply::Vote(Vote::Free) => Some(Duration::ZERO),
                _ => None,
            })
            .collect();
        left.sort_unstable();
        // So many members must become free.
        let missing = (left.len() + self.quorum()).checked_sub(self.replies.len())?;
        left.get(missing.checked_sub(1)?).copied()
    }

    /// Whether the claim has failed, and not because other tokens have the lock.
    pub(super) fn fails_unexplained(&self) -> bool {
        self.verdict() == Verdict::Failed && self.busy_for().is_none()
    }

    /// What the replies to renewals say of the lease if they say that it has ended.
    ///
    /// If another token has the lock on a majority, one of those members is among any replies that
    /// tell a loss. So a single one is enough for "taken", in whatever order they come.
    pub(super) fn lost(&self) -> Option<Renewed> {
        let most = self.replies.len() - self.quorum();
        let taken = self.count(|reply| matches!(reply, Reply::Vote(Vote::Taken { .. })));
        let free = self.count(|reply| matches!(reply, Reply::Vote(Vote::Free)));
        match taken + free > most {
            true if taken > 0 => Some(Renewed::TakenByOther),
            true => Some(Renewed::Gone),
            false => None,
        }
    }
}

/// The time until which a majority of the members holds a lease, from the time of each: never later
/// than the moment at which fewer hold it.
pub(super) fn until(members: &[Option<Instant>]) -> Option<Instant> {
    let mut known: Vec<Instant> = members.iter().flatten().copied().collect();
    known.sort_unstable();
    known.reverse();
    known.get(majority(members.len()) - 1).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NUMBER: u64 = 1_000;

    fn reply() -> impl Strategy<Value = Reply> {
        let since = Instant::from_origin(Duration::ZERO);
        prop_oneof![
            4 => Just(Reply::Vote(Vote::Accepted { since })),
            2 => (900..1_100_u64)
                .prop_map(move |least| Reply::Vote(Vote::Refused { since, least })),
            2 => (0..5_000_u64).prop_map(|left| {
                Reply::Vote(Vote::Taken { left: Duration::from_millis(left), least: left })
            }),
            1 => Just(Reply::Vote(Vote::Free)),
            1 => Just(Reply::Vote(Vote::Quarantined { left: Duration::from_secs(1) })),
            1 => Just(Reply::Vote(Vote::Void)),
            1 => any::<bool>().prop_map(|definite| Reply::Failed { definite }),
        ]
    }

    /// Replies in the order in which they come.
    fn round() -> impl Strategy<Value = (usize, Vec<(usize, Reply)>)> {
        (3..8_usize).prop_flat_map(|members| {
            let order = Just((0..members).collect::<Vec<_>>()).prop_shuffle();
            let replies = proptest::collection::vec(reply(), members);
            (
                Just(members),
                (order, replies)
                    .prop_map(|(order, replies)| order.into_iter().zip(replies).collect()),
            )
        })
    }

    fn accepts(reply: &Reply) -> bool {
        matches!(reply, Reply::Vote(Vote::Accepted { .. }))
    }

    proptest! {
        /// A verdict that is not open stays as it is, whatever comes later, but that "again" may
        /// not be needed any more.
        #[test]
        fn verdict_is_right_and_final((members, replies) in round()) {
            let mut tally = Tally::new(members, Some(NUMBER));
            let mut before = Verdict::Open;
            for (member, reply) in replies {
                tally.record(member, reply);
                let verdict = tally.verdict();
                match before {
                    Verdict::Open => {}
                    Verdict::Again { .. } => {
                        let is_same = matches!(verdict, Verdict::Again { .. });
                        prop_assert!(is_same);
                    }
                    final_one => prop_assert_eq!(verdict, final_one),
                }
                before = verdict;
            }
            let accepted = tally.replies().iter().filter(|reply| accepts(reply)).count();
            prop_assert_eq!(before == Verdict::Granted, accepted > members / 2);
            prop_assert!(before != Verdict::Open);
            prop_assert!(before != Verdict::Failed || tally.holding() <= members / 2);
        }

        /// A lease ends for its holder before fewer than a majority hold it, and not earlier than
        /// it must.
        #[test]
        fn majority_holds_until_the_time_that_counts(
            times in proptest::collection::vec(proptest::option::of(0..50_u64), 3..8),
        ) {
            let at = |millis| Instant::from_origin(Duration::from_millis(millis));
            let members: Vec<_> = times.iter().map(|time| time.map(at)).collect();
            let hold = |now: Instant| {
                members.iter().flatten().filter(|until| **until >= now).count()
            };
            match until(&members) {
                None => prop_assert!(hold(at(0)) <= members.len() / 2),
                Some(time) => {
                    prop_assert!(hold(time) > members.len() / 2);
                    let later = time.saturating_add(Duration::from_nanos(1));
                    prop_assert!(hold(later) <= members.len() / 2);
                }
            }
        }

        /// "Busy" only if other tokens certainly keep a majority from the claim, and until so many
        /// of them have gone that a majority is left.
        #[test]
        fn busy_is_certain((members, replies) in round(), silent in 0..8_usize) {
            let mut tally = Tally::new(members, Some(NUMBER));
            for (member, reply) in replies.into_iter().skip(silent) {
                tally.record(member, reply);
            }
            tally.close();
            let others = tally.replies().iter().filter_map(|reply| match reply {
                Reply::Vote(Vote::Taken { left, .. }) => Some(*left),
                Reply::Vote(Vote::Free) => Some(Duration::ZERO),
                _ => None,
            });
            let others: Vec<_> = others.collect();
            match tally.busy_for() {
                None => prop_assert!(others.len() < majority(members)
                    || members - others.len() >= majority(members)),
                Some(left) => {
                    prop_assert!(members - others.len() < majority(members));
                    let free = others.iter().filter(|other| **other <= left).count();
                    prop_assert!(members - others.len() + free >= majority(members));
                }
            }
        }
    }

    #[test]
    fn majority_is_more_than_half_of_the_configured_members() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(majority), [1, 2, 2, 3, 3, 4, 4]);
    }

    /// One member whose clock is ahead names numbers that the others do not accept yet.
    #[test]
    fn number_of_a_wrong_clock_hides_no_other() {
        let mut tally = Tally::new(3, Some(NUMBER));
        let since = Instant::from_origin(Duration::ZERO);
        tally.record(0, Reply::Vote(Vote::Refused { since, least: 1_010 }));
        tally.record(1, Reply::Vote(Vote::Taken { left: Duration::ZERO, least: 1_005 }));
        tally.record(2, Reply::Vote(Vote::Refused { since, least: 9_000 }));
        assert_eq!(tally.least(2_000), Some(1_010));
        assert_eq!(tally.least(1_000), None);
    }

    #[test]
    fn renewal_tells_a_loss_only_if_a_majority_cannot_hold_the_lock() {
        let taken = Reply::Vote(Vote::Taken { left: Duration::ZERO, least: 0 });
        let lost = |replies: &[Reply]| {
            let mut tally = Tally::new(3, None);
            for (member, reply) in replies.iter().enumerate() {
                tally.record(member, *reply);
            }
            tally.lost()
        };
        let quarantined = Reply::Vote(Vote::Quarantined { left: Duration::ZERO });
        assert_eq!(lost(&[taken]), None);
        assert_eq!(lost(&[taken, quarantined, quarantined]), None);
        assert_eq!(lost(&[taken, taken]), Some(Renewed::TakenByOther));
        let free = Reply::Vote(Vote::Free);
        assert_eq!(lost(&[free, free]), Some(Renewed::Gone));
        assert_eq!(lost(&[free, Reply::Failed { definite: false }]), None);
        // The member that replied last has not granted it to the other token yet.
        assert_eq!(lost(&[taken, free]), Some(Renewed::TakenByOther));
        assert_eq!(lost(&[free, taken]), Some(Renewed::TakenByOther));
    }
}
