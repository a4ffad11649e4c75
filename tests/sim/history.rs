//! Which task held which lock when, and what must be true of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use lock_testkit::history::{Turn, misnumbered, overlaps};

/// The turns of all tasks. Points in time are numbers of events, which are in order even within a
/// millisecond. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// With their keys.
    turns: Vec<(usize, Turn)>,
    losses: Vec<Loss>,
}

/// The server forgot its keys.
#[derive(Clone, Copy, Debug)]
struct Loss {
    at: u128,
    /// By the server's clock, which fencing tokens follow.
    clock_us: u64,
}

/// By how many microseconds the counter may be ahead of the clock.
const AHEAD_US: u64 = 1_000;

impl Loss {
    /// Whether a lease began before the server forgot all locks, and its holder relied on it after
    /// that.
    fn is_outlived_by(&self, turn: &Turn) -> bool {
        turn.grant() <= self.clock_us + AHEAD_US && turn.exit >= self.at
    }
}

impl History {
    /// Records a turn that has just begun.
    pub(crate) fn enter(
        &self,
        key: usize,
        owner: usize,
        [requested, enter]: [u64; 2],
        fence: u64,
    ) -> usize {
        let (requested, enter) = (u128::from(requested), u128::from(enter));
        // Until the holder learns that its lease is still good.
        let turn = Turn { owner, requested, enter, exit: enter, deadline: u128::MAX, fence };
        let turns = &mut self.0.lock().unwrap().turns;
        turns.push((key, turn));
        turns.len() - 1
    }

    /// The holder has learned that its lease is still good.
    pub(crate) fn still_good(&self, turn: usize, at: u64) {
        self.0.lock().unwrap().turns[turn].1.exit = at.into();
    }

    /// The server forgot its keys.
    pub(crate) fn forgotten(&self, at: u64, clock_us: u64) {
        self.0.lock().unwrap().losses.push(Loss { at: at.into(), clock_us });
    }

    /// A turn, with its key.
    pub(crate) fn turn(&self, turn: usize) -> (usize, Turn) {
        self.0.lock().unwrap().turns[turn]
    }

    pub(crate) fn turns(&self) -> Vec<Turn> {
        self.0.lock().unwrap().turns.iter().map(|(_, turn)| *turn).collect()
    }

    /// How many overlaps the server caused, because it forgot a lock; and the others.
    pub(crate) fn check_exclusion(&self) -> (usize, Vec<String>) {
        let losses = self.0.lock().unwrap().losses.clone();
        let outlives = |turn: &Turn| losses.iter().any(|loss| loss.is_outlived_by(turn));
        let all = self.by_key().into_values().flat_map(|turns| overlaps(&turns));
        let (excused, others): (Vec<_>, Vec<_>) =
            all.partition(|(one, two)| outlives(one) || outlives(two));
        let overlap = |(one, two)| format!("overlap: {one:?} and {two:?}");
        (excused.len(), others.into_iter().map(overlap).collect())
    }

    /// A grant has a greater fencing token than every grant that was made before its claim, even if
    /// the counter was lost.
    pub(crate) fn check_fences(&self, mut violation: impl FnMut(String)) {
        for turns in self.by_key().into_values() {
            for (one, two) in misnumbered(&turns, |_| true) {
                violation(format!("fences do not grow: {one:?} and {two:?}"));
            }
        }
    }

    fn by_key(&self) -> BTreeMap<usize, Vec<Turn>> {
        let mut by_key = BTreeMap::<_, Vec<_>>::new();
        for (key, turn) in &self.0.lock().unwrap().turns {
            by_key.entry(*key).or_default().push(*turn);
        }
        by_key
    }
}
