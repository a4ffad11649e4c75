//! Who held a lock when, by the clock that all processes of a machine share.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::time::Instant;
use lock_core::{Error, MutexGuard, Released};

/// One turn of a holder. Times are nanoseconds of boot time.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The process or client.
    pub owner: usize,
    /// When it was granted, as seen by the holder.
    pub enter: u128,
    /// When the holder was done.
    pub exit: u128,
    /// When its lease ended by its own account.
    pub deadline: u128,
    /// The number of its grant.
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

/// Asserts that no two turns overlap, that none began after its deadline, and that fencing tokens grow from turn to
/// turn. Gives the owners in the order of their turns.
///
/// # Panics
///
/// If it is not so. `key` is named then.
pub fn check(key: impl fmt::Display, turns: Vec<Turn>) -> Vec<usize> {
    check_but_at(key, turns, &[])
}

/// As [`check`], except for turns of grants that were under way at a time of `forgotten`, when the server lost its keys: they may
/// overlap, and so may those to whom the process handed such a grant on.
pub fn check_but_at(key: impl fmt::Display, turns: Vec<Turn>, forgotten: &[u128]) -> Vec<usize> {
    let windows: Vec<_> = forgotten.iter().map(|at| *at..=*at).collect();
    check_but_within(key, turns, &windows)
}

/// The same for windows of time: from when the server forgets or misjudges something, until nobody holds a lease that was granted
/// before.
pub fn check_but_within(
    key: impl fmt::Display,
    mut turns: Vec<Turn>,
    windows: &[RangeInclusive<u128>],
) -> Vec<usize> {
    turns.sort_by_key(|turn| turn.enter);
    for turn in &turns {
        assert!(turn.enter < turn.deadline, "{key}: {turn:?} began too late");
    }
    let spans = if windows.is_empty() { HashMap::new() } else { spans_of_grants(&turns) };
    let is_excused = |turn: &Turn| {
        let Some((from, to)) = spans.get(&grant_of(turn)) else { return false };
        windows.iter().any(|window| from <= window.end() && window.start() <= to)
    };
    // All pairs of the others are compared: whoever has the longest lease and the greatest number so far stands for those before.
    let mut promised = turns.iter().filter(|turn| !is_excused(turn));
    if let Some(first) = promised.next() {
        let (mut longest, mut greatest) = (first, first);
        for turn in promised {
            assert!(longest.end() <= turn.enter, "{key}: {longest:?} overlaps {turn:?}");
            assert!(
                greatest.fence < turn.fence,
                "{key}: {greatest:?} is not numbered before {turn:?}"
            );
            longest = if turn.end() > longest.end() { turn } else { longest };
            greatest = turn;
        }
    }
    turns.iter().map(|turn| turn.owner).collect()
}

/// Tells the grants of the store apart: a process numbers those whom it hands one on to in the lowest bits.
fn grant_of(turn: &Turn) -> u64 {
    turn.fence >> 6
}

/// From the first turn of each grant of the store to its last.
fn spans_of_grants(turns: &[Turn]) -> HashMap<u64, (u128, u128)> {
    let mut spans = HashMap::new();
    for turn in turns {
        let (from, to) = spans.entry(grant_of(turn)).or_insert((turn.enter, turn.exit));
        (*from, *to) = (turn.enter.min(*from), turn.exit.max(*to));
    }
    spans
}

impl Turn {
    /// When nobody else is kept out any more.
    fn end(&self) -> u128 {
        self.exit.min(self.deadline)
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
        self.0.lock().unwrap().push(Turn { owner, enter, exit: now(), deadline, fence });
        guard.release().await
    }

    /// How many turns have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether nobody has had a turn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The turns, as they ended.
    #[must_use]
    pub fn all(&self) -> Vec<Turn> {
        self.0.lock().unwrap().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn of a grant of its own, with a lease that is longer than it.
    fn turn(enter: u128, exit: u128, grant: u64) -> Turn {
        Turn { owner: 0, enter, exit, deadline: exit + 100, fence: grant << 6 }
    }

    #[test]
    fn turns_that_follow_each_other_are_fine() {
        let other = Turn { owner: 1, ..turn(10, 20, 2) };
        let owners = check("k", vec![turn(20, 30, 3), other, turn(0, 10, 1)]);
        assert_eq!(owners, [0, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn a_turn_within_another_is_noticed() {
        let _owners = check("k", vec![turn(0, 100, 1), turn(50, 60, 2)]);
    }

    #[test]
    fn a_turn_after_a_lease_is_no_overlap() {
        let stopped = Turn { deadline: 40, ..turn(0, 100, 1) };
        let _owners = check("k", vec![stopped, turn(50, 60, 2)]);
    }

    #[test]
    #[should_panic(expected = "began too late")]
    fn a_turn_that_begins_after_its_lease_is_noticed() {
        let _owners = check("k", vec![Turn { deadline: 10, ..turn(10, 20, 1) }]);
    }

    #[test]
    #[should_panic(expected = "is not numbered before")]
    fn a_number_that_does_not_grow_is_noticed() {
        let _owners = check("k", vec![turn(0, 10, 2), turn(10, 20, 1)]);
    }

    #[test]
    fn what_the_server_forgot_is_excused() {
        let _owners = check_but_at("k", vec![turn(0, 100, 2), turn(50, 60, 1)], &[55]);
    }

    /// Of the grant of the second turn, a later one is within the window; neither the first turn nor the third is.
    #[test]
    #[should_panic(expected = "overlaps")]
    fn an_overlap_across_an_excused_turn_is_noticed() {
        let handed_on = Turn { fence: (2 << 6) + 1, ..turn(1_100, 1_110, 2) };
        let turns = vec![turn(0, 1_000, 1), turn(50, 60, 2), turn(500, 510, 3), handed_on];
        let _owners = check_but_at("k", turns, &[1_105]);
    }

    #[test]
    #[should_panic(expected = "is not numbered before")]
    fn a_number_that_falls_across_an_excused_turn_is_noticed() {
        let turns = vec![turn(0, 10, 5), turn(20, 30, 6), turn(40, 50, 4)];
        let _owners = check_but_at("k", turns, &[25]);
    }
}
