//! Who held a lock when, by a clock that all holders share, and what must be true of it.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::time::Instant;
use lock_core::{Error, MutexGuard, Released};

/// One turn of a holder. Times are nanoseconds of boot time; in a simulation, numbers of events.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The process or client.
    pub owner: usize,
    /// When its task requested the lock.
    pub requested: u128,
    /// When it was granted, as seen by the holder.
    pub enter: u128,
    /// When the holder was done.
    pub exit: u128,
    /// When its lease ended by its own account.
    pub deadline: u128,
    /// The fencing token; 0 without one.
    pub fence: u64,
}

/// The turns of many tasks on one key.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<Vec<Turn>>>);

/// Nanoseconds on the clock that all processes share.
#[must_use]
pub fn now() -> u128 {
    Instant::now().saturating_since(Instant::from_origin(Duration::ZERO)).as_nanos()
}

/// Asserts that no two turns overlap, that none began after its deadline, and that fencing tokens
/// grow from turn to turn. Gives the owners in the order of their turns.
///
/// # Panics
///
/// If that is not so, with `key`.
pub fn check(key: impl fmt::Display, turns: Vec<Turn>) -> Vec<usize> {
    check_but_within(key, turns, &[])
}

/// When a server lost its keys.
#[derive(Clone, Debug)]
pub struct Loss {
    /// As [`now`] tells it.
    at: RangeInclusive<u128>,
    /// The grants whose replies may have been on their way then: those of the last second.
    grants: RangeInclusive<u64>,
}

impl Loss {
    /// While `cause` ran. The server is on this machine and numbers grants by its clock.
    pub fn by(cause: impl FnOnce()) -> Self {
        const SECOND: u64 = 1_000_000;
        let begun = now();
        cause();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self { at: begun..=now(), grants: last.saturating_sub(SECOND)..=last }
    }
}

/// As [`check`], except for turns of grants that the server had given when it lost its keys, at one
/// of `losses`.
pub fn check_but_at(key: impl fmt::Display, turns: Vec<Turn>, losses: &[Loss]) -> Vec<usize> {
    let windows: Vec<_> = losses.iter().map(|loss| loss.at.clone()).collect();
    let is_on_its_way = |turn: &Turn| {
        losses
            .iter()
            .any(|loss| loss.grants.contains(&turn.grant()) && *loss.at.start() <= turn.exit)
    };
    check_but(key, turns, &windows, is_on_its_way)
}

/// As [`check`], except for turns of grants that were held within one of `windows`: from when the
/// server forgot or misjudged something until the last lease from before ended.
///
/// All turns of a grant are excepted together: a process may hand it on after the window.
pub fn check_but_within(
    key: impl fmt::Display,
    turns: Vec<Turn>,
    windows: &[RangeInclusive<u128>],
) -> Vec<usize> {
    check_but(key, turns, windows, |_| false)
}

fn check_but(
    key: impl fmt::Display,
    mut turns: Vec<Turn>,
    windows: &[RangeInclusive<u128>],
    is_excepted: impl Fn(&Turn) -> bool,
) -> Vec<usize> {
    turns.sort_by_key(|turn| turn.enter);
    for turn in &turns {
        assert!(turn.enter < turn.deadline, "{key}: {turn:?} began too late");
    }
    let spans = if windows.is_empty() { HashMap::new() } else { spans_of_grants(&turns) };
    let is_excused = |turn: &Turn| {
        if is_excepted(turn) {
            return true;
        }
        let Some((from, to)) = spans.get(&turn.grant()) else { return false };
        windows.iter().any(|window| from <= window.end() && window.start() <= to)
    };
    let promised: Vec<_> = turns.iter().filter(|turn| !is_excused(turn)).copied().collect();
    if let Some((one, other)) = overlaps(&promised).first() {
        panic!("{key}: {one:?} overlaps {other:?}");
    }
    for pair in promised.windows(2) {
        let [before, turn] = pair else { unreachable!() };
        assert!(before.fence < turn.fence, "{key}: {before:?} is not numbered before {turn:?}");
    }
    turns.iter().map(|turn| turn.owner).collect()
}

/// All pairs of turns that overlap, the earlier one first.
#[must_use]
pub fn overlaps(turns: &[Turn]) -> Vec<(Turn, Turn)> {
    let (mut overlaps, mut present) = (Vec::new(), Vec::<Turn>::new());
    for turn in by_enter(turns) {
        present.retain(|before| before.end() > turn.enter);
        overlaps.extend(present.iter().map(|before| (*before, turn)));
        present.push(turn);
    }
    overlaps
}

/// The turns whose fencing token belongs to another turn too, or is not greater than that of a turn
/// that began before this one was requested; with that other turn. There are none even if the
/// server forgets its keys.
///
/// `is_grant` leaves out turns that may be older, such as those that a process handed on.
pub fn misnumbered(turns: &[Turn], is_grant: impl Fn(&Turn) -> bool) -> Vec<(Turn, Turn)> {
    let begun: Vec<_> = by_enter(turns).into_iter().filter(|turn| turn.fence != 0).collect();
    let mut misnumbered = Vec::new();
    let mut seen = HashMap::new();
    for turn in &begun {
        if let Some(other) = seen.insert(turn.fence, *turn) {
            misnumbered.push((other, *turn));
        }
    }
    let mut requests: Vec<_> = begun.iter().filter(|turn| is_grant(turn)).collect();
    requests.sort_by_key(|turn| turn.requested);
    let (mut next, mut newest) = (0, None::<Turn>);
    for turn in requests {
        while let Some(before) = begun.get(next).filter(|before| before.enter < turn.requested) {
            newest = newest.filter(|newest| newest.fence > before.fence).or(Some(*before));
            next += 1;
        }
        misnumbered.extend(
            newest.filter(|newest| newest.fence >= turn.fence).map(|newest| (newest, *turn)),
        );
    }
    misnumbered
}

/// How many turns followed a turn of another owner.
#[must_use]
pub fn hand_offs(turns: &[Turn]) -> usize {
    by_enter(turns).windows(2).filter(|pair| pair[0].owner != pair[1].owner).count()
}

/// The grants of the store that came out of turn, each with the turn that it went ahead of: its
/// process was granted the lock for the second time, while another one waited from before the first
/// time on.
#[must_use]
pub fn out_of_turn(turns: &[Turn]) -> Vec<(Turn, Turn)> {
    let turns = by_enter(turns);
    let mut of_owner = HashMap::<usize, Vec<Turn>>::new();
    for turn in &turns {
        of_owner.entry(turn.owner).or_default().push(*turn);
    }
    let (mut found, mut latest) = (Vec::new(), HashMap::<usize, Turn>::new());
    for grant in first_turns(&turns) {
        let Some(before) = latest.insert(grant.owner, grant) else { continue };
        let went_ahead_of = of_owner.iter().find_map(|(owner, turns)| {
            // The tasks of a process have their turns in the order of their requests.
            let next = turns.iter().skip(turns.partition_point(|turn| turn.enter < before.enter));
            let next = next.copied().next().filter(|_| *owner != grant.owner)?;
            (grant.enter < next.enter && next.requested < before.enter).then_some(next)
        });
        found.extend(went_ahead_of.map(|next| (grant, next)));
    }
    found
}

/// The first turn of each grant of the store, in order.
#[must_use]
pub fn first_turns(turns: &[Turn]) -> Vec<Turn> {
    let turns = by_enter(turns);
    turns.chunk_by(|turn, next| turn.grant() == next.grant()).map(|grant| grant[0]).collect()
}

fn by_enter(turns: &[Turn]) -> Vec<Turn> {
    let mut turns = turns.to_vec();
    turns.sort_by_key(|turn| turn.enter);
    turns
}

/// From the first turn of each grant of the store to its last.
fn spans_of_grants(turns: &[Turn]) -> HashMap<u64, (u128, u128)> {
    let mut spans = HashMap::new();
    for turn in turns {
        let (from, to) = spans.entry(turn.grant()).or_insert((turn.enter, turn.exit));
        (*from, *to) = (turn.enter.min(*from), turn.exit.max(*to));
    }
    spans
}

impl Turn {
    /// When it no longer keeps other holders out.
    #[must_use]
    pub fn end(&self) -> u128 {
        self.exit.min(self.deadline)
    }

    /// How many holders of its process had the grant before, from the lowest bits of the token.
    #[must_use]
    pub fn handed_on(&self) -> u64 {
        self.fence & 63
    }

    /// The grant of the store, which a process may hand on.
    #[must_use]
    pub fn grant(&self) -> u64 {
        self.fence >> 6
    }
}

impl Turns {
    /// Holds `guard` for some time and releases it.
    pub async fn hold(
        &self,
        owner: usize,
        guard: MutexGuard,
        span: Duration,
    ) -> Result<Released, Error> {
        let enter = now();
        let deadline = enter + guard.remaining().as_nanos();
        if span.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(span).await;
        }
        let fence = guard.fencing_token().get();
        let turn = Turn { owner, requested: enter, enter, exit: now(), deadline, fence };
        self.push(turn);
        guard.release().await
    }

    /// Records a turn.
    pub fn push(&self, turn: Turn) {
        self.0.lock().unwrap().push(turn);
    }

    /// How many turns have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether no turn has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The turns, in the order in which they ended.
    #[must_use]
    pub fn all(&self) -> Vec<Turn> {
        self.0.lock().unwrap().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn of a grant of its own, with a lease that lasts longer.
    fn turn(enter: u128, exit: u128, grant: u64) -> Turn {
        Turn { owner: 0, requested: enter, enter, exit, deadline: exit + 100, fence: grant << 6 }
    }

    /// The server lost its keys at `at`, when `grant` was the last one.
    fn loss(at: u128, grant: u64) -> Loss {
        Loss { at: at..=at, grants: grant.saturating_sub(10)..=grant }
    }

    fn is_any(_: &Turn) -> bool {
        true
    }

    #[test]
    fn consecutive_turns_pass_and_their_owners_are_in_order() {
        let other = Turn { owner: 1, ..turn(10, 20, 2) };
        let turns = vec![turn(20, 30, 3), other, turn(0, 10, 1)];
        assert_eq!(hand_offs(&turns), 2);
        assert_eq!(check("k", turns), [0, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn turn_within_another_fails() {
        let _owners = check("k", vec![turn(0, 100, 1), turn(50, 60, 2)]);
    }

    #[test]
    fn turn_after_the_lease_of_a_stopped_holder_passes() {
        let stopped = Turn { deadline: 40, ..turn(0, 100, 1) };
        let _owners = check("k", vec![stopped, turn(50, 60, 2)]);
    }

    #[test]
    #[should_panic(expected = "began too late")]
    fn turn_that_begins_after_its_lease_fails() {
        let _owners = check("k", vec![Turn { deadline: 10, ..turn(10, 20, 1) }]);
    }

    #[test]
    #[should_panic(expected = "is not numbered before")]
    fn token_that_does_not_grow_fails() {
        let _owners = check("k", vec![turn(0, 10, 2), turn(10, 20, 1)]);
    }

    #[test]
    fn overlap_in_a_window_passes() {
        let _owners = check_but_at("k", vec![turn(0, 100, 2), turn(50, 60, 1)], &[loss(55, 2)]);
    }

    /// The grant of the second turn is excepted, because it is handed on within the window.
    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlap_across_an_excepted_turn_fails() {
        let handed_on = Turn { fence: (2 << 6) + 1, ..turn(1_100, 1_110, 2) };
        let turns = vec![turn(0, 1_000, 1), turn(50, 60, 2), turn(500, 510, 3), handed_on];
        let _owners = check_but_at("k", turns, &[loss(1_105, 2)]);
    }

    #[test]
    #[should_panic(expected = "is not numbered before")]
    fn token_that_falls_across_an_excepted_turn_fails() {
        let turns = vec![turn(0, 10, 15), turn(20, 30, 16), turn(40, 50, 4)];
        let _owners = check_but_at("k", turns, &[loss(25, 16)]);
    }

    #[test]
    fn grant_whose_reply_was_on_its_way_at_a_loss_is_excepted() {
        let turns = vec![turn(30, 40, 16), turn(31, 41, 17)];
        let _owners = check_but_at("k", turns, &[loss(25, 16)]);
    }

    #[test]
    fn every_overlapping_pair_is_found() {
        let turns = [turn(20, 30, 3), turn(0, 100, 1), turn(10, 50, 2), turn(60, 70, 4)];
        let pairs: Vec<_> =
            overlaps(&turns).iter().map(|(one, other)| (one.grant(), other.grant())).collect();
        assert_eq!(pairs, [(1, 2), (1, 3), (2, 3), (1, 4)]);
    }

    /// A grant of its own of the process `owner`.
    fn granted(owner: usize, requested: u128, enter: u128) -> Turn {
        Turn { owner, requested, ..turn(enter, enter + 10, enter as u64) }
    }

    #[test]
    fn second_grant_of_a_process_while_another_waits_is_out_of_turn() {
        let in_turn =
            [granted(0, 0, 10), granted(1, 0, 20), granted(0, 15, 30), granted(1, 25, 40)];
        assert!(out_of_turn(&in_turn).is_empty());
        let second = granted(0, 15, 30);
        let found = out_of_turn(&[granted(0, 0, 10), second, granted(1, 9, 40)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.enter, found[0].1.enter), (30, 40));
        // Requested too late to have had a place before.
        assert!(out_of_turn(&[granted(0, 0, 10), second, granted(1, 11, 40)]).is_empty());
    }

    #[test]
    fn turn_that_is_handed_on_within_a_process_belongs_to_its_grant() {
        let handed_on = Turn { fence: (10 << 6) + 1, ..granted(0, 0, 20) };
        let turns = [granted(0, 0, 10), handed_on, granted(1, 0, 40)];
        assert!(out_of_turn(&turns).is_empty());
        assert_eq!(first_turns(&turns).len(), 2);
    }

    #[test]
    fn tokens_of_turns_that_were_requested_together_may_be_in_any_order() {
        let early = Turn { requested: 5, ..turn(20, 30, 1) };
        assert!(misnumbered(&[turn(10, 20, 2), early], is_any).is_empty());
        let late = Turn { requested: 11, ..turn(20, 30, 1) };
        assert_eq!(misnumbered(&[turn(10, 20, 2), late], is_any).len(), 1);
        assert!(misnumbered(&[turn(10, 20, 2), late], |turn| turn.grant() != 1).is_empty());
    }

    #[test]
    fn token_that_two_turns_have_is_misnumbered_unless_they_have_none() {
        let together = Turn { requested: 0, ..turn(20, 30, 1) };
        assert_eq!(misnumbered(&[turn(10, 20, 1), together], is_any).len(), 1);
        let without = |enter| turn(enter, enter + 10, 0);
        assert!(misnumbered(&[without(10), without(30)], is_any).is_empty());
    }
}
