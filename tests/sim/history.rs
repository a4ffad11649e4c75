//! Who held what when, and what must be true of it.

use std::sync::{Arc, Mutex};

/// The turns of all tasks. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    turns: Vec<Turn>,
    losses: Vec<Loss>,
}

/// One turn of a holder. Points in time are numbers of events, which are in order even within a millisecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) key: usize,
    #[allow(dead_code)] // told when something is wrong
    pub(crate) owner: usize,
    /// When it began to ask.
    pub(crate) asked: u64,
    pub(crate) entered: u64,
    /// When it was last told that its lease is good.
    pub(crate) good_at: u64,
    /// 0: without one.
    pub(crate) fence: u64,
}

/// The server forgot its keys.
#[derive(Clone, Copy, Debug)]
struct Loss {
    at: u64,
    /// By the server's clock, which fencing tokens follow.
    clock_us: u64,
}

/// By so many microseconds the counter may be ahead of the clock.
const AHEAD_US: u64 = 1_000;

impl Turn {
    /// Whether its lease began before the server forgot all locks, and was believed in after that.
    fn outlives(&self, loss: &Loss) -> bool {
        self.fence >> 6 <= loss.clock_us + AHEAD_US && self.good_at >= loss.at
    }

    /// How many holders of the process had the grant before.
    pub(crate) fn handed_on(&self) -> u64 {
        self.fence & 63
    }
}

impl History {
    /// Notes a turn that has just begun.
    pub(crate) fn enter(&self, turn: Turn) -> usize {
        let mut inner = self.0.lock().unwrap();
        inner.turns.push(turn);
        inner.turns.len() - 1
    }

    /// The holder was told that its lease is still good.
    pub(crate) fn still_good(&self, turn: usize, at: u64) {
        self.0.lock().unwrap().turns[turn].good_at = at;
    }

    /// The server forgot its keys.
    pub(crate) fn forgotten(&self, at: u64, clock_us: u64) {
        self.0.lock().unwrap().losses.push(Loss { at, clock_us });
    }

    pub(crate) fn turn(&self, turn: usize) -> Turn {
        self.0.lock().unwrap().turns[turn]
    }

    pub(crate) fn turns(&self) -> Vec<Turn> {
        self.0.lock().unwrap().turns.clone()
    }

    /// How many overlaps there are that the server is to blame for, since it forgot a lock; and the others.
    pub(crate) fn check_exclusion(&self) -> (usize, Vec<String>) {
        let Inner { turns, losses } = &*self.0.lock().unwrap();
        let (mut excused, mut overlaps) = (0, Vec::new());
        for (one, two) in pairs(turns) {
            if one.good_at <= two.entered {
                continue;
            }
            if losses.iter().any(|loss| one.outlives(loss) || two.outlives(loss)) {
                excused += 1;
            } else {
                overlaps.push(format!("overlap: {one:?} and {two:?}"));
            }
        }
        (excused, overlaps)
    }

    /// A grant has a greater number than every grant that was there before it was asked for. A forgotten counter is no excuse.
    pub(crate) fn check_fences(&self, mut violation: impl FnMut(String)) {
        let Inner { turns, .. } = &*self.0.lock().unwrap();
        for (one, two) in pairs(turns) {
            if one.fence == 0 || two.fence == 0 {
                continue;
            }
            if one.entered < two.asked && one.fence >= two.fence {
                violation(format!("fences do not grow: {one:?} and {two:?}"));
            }
            if one.fence == two.fence {
                violation(format!("one fence for two: {one:?} and {two:?}"));
            }
        }
    }
}

/// All pairs of turns with the same key, the one that entered first in front.
fn pairs(turns: &[Turn]) -> impl Iterator<Item = (&Turn, &Turn)> {
    turns.iter().enumerate().flat_map(|(at, one)| {
        let later = turns[at + 1..].iter();
        later.filter(|two| two.key == one.key).map(move |two| (one, two))
    })
}
