//! Who held a lock when, by the clock that all processes of a machine share.

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
    for pair in turns.windows(2) {
        let [one, two] = pair else { unreachable!() };
        let apart = one.exit.min(one.deadline) <= two.enter;
        let in_order = one.fence < two.fence;
        if apart && in_order {
            continue;
        }
        let excused = [one, two].into_iter().any(|turn| {
            let (from, to) = span_of_grant(&turns, turn);
            windows.iter().any(|window| from <= *window.end() && *window.start() <= to)
        });
        assert!(apart || excused, "{key}: {one:?} overlaps {two:?}");
        assert!(excused, "{key}: {one:?} is not numbered before {two:?}");
    }
    turns.iter().map(|turn| turn.owner).collect()
}

/// From the first turn of a grant of the store to its last.
fn span_of_grant(turns: &[Turn], of: &Turn) -> (u128, u128) {
    let same = turns.iter().filter(|turn| turn.fence >> 6 == of.fence >> 6);
    same.fold((of.enter, of.exit), |(from, to), turn| (from.min(turn.enter), to.max(turn.exit)))
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
