//! What a client tells of its own locks, without asking the store.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::LostReason;
use crate::fencing::FencingToken;
use crate::key::Key;
use crate::time::Instant;

/// What a client held, waited for and lost when [`LockClient::activity`] looked.
///
/// Its [`Key`]s carry the label that may be shown, and the name, which often contains personal
/// data: `Debug` shows the label only.
///
/// [`LockClient::activity`]: crate::LockClient::activity
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Activity {
    /// The leases that are good, those held longest first.
    pub held: Vec<HeldLock>,
    /// The keys that tasks of this client wait for, in the order of their names.
    pub waiting: Vec<WaitingTasks>,
    /// The last leases that ended before their guards, the latest first: 64 at most.
    pub losses: Vec<Loss>,
    /// Releases that the store has not confirmed.
    pub pending_releases: usize,
    /// The client drains, or is drained: it takes no more locks.
    pub is_draining: bool,
}

/// A lease that a client holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// What is locked.
    pub key: Key,
    /// The number of the grant; 0 [without fencing](crate::LockOptions::without_fencing).
    pub fencing_token: FencingToken,
    /// How long this holder has had it.
    pub held_for: Duration,
    /// How long it is good for if nothing renews it.
    pub remaining: Duration,
    /// The last renewal was not confirmed. It is tried again until nothing of the lease remains.
    pub is_in_doubt: bool,
}

/// The tasks of a client that wait for a key, for another holder or for the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitingTasks {
    /// What they wait for.
    pub key: Key,
    /// How many they are.
    pub tasks: usize,
}

/// A lease that ended before its guard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// Counts the losses of the client, from 1.
    pub number: u64,
    /// What was locked.
    pub key: Key,
    /// The number of the grant; 0 [without fencing](crate::LockOptions::without_fencing).
    pub fencing_token: FencingToken,
    /// Why it ended.
    pub reason: LostReason,
    /// How long it had been held.
    pub held_for: Duration,
    /// When this was noticed.
    pub at: Instant,
}

impl HeldLock {
    pub(crate) fn new(
        key: Key,
        fencing_token: FencingToken,
        held_for: Duration,
        remaining: Duration,
        is_in_doubt: bool,
    ) -> Self {
        Self { key, fencing_token, held_for, remaining, is_in_doubt }
    }
}

impl WaitingTasks {
    pub(crate) fn new(key: Key, tasks: usize) -> Self {
        Self { key, tasks }
    }
}

/// More losses than these tell a reader no more, and each keeps the name of its key in memory.
const MOST_LOSSES: usize = 64;

/// The last losses of a client.
#[derive(Debug, Default)]
pub(crate) struct RecentLosses(Mutex<VecDeque<Loss>>);

impl RecentLosses {
    pub(crate) fn push(
        &self,
        key: Key,
        fencing_token: FencingToken,
        reason: LostReason,
        held_for: Duration,
        at: Instant,
    ) {
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = losses.front().map_or(0, |last| last.number) + 1;
        losses.truncate(MOST_LOSSES - 1);
        losses.push_front(Loss { number, key, fencing_token, reason, held_for, at });
    }

    /// The latest first.
    pub(crate) fn all(&self) -> Vec<Loss> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_losses_are_kept() {
        let losses = RecentLosses::default();
        let key = Key::new("k").unwrap();
        for number in 0..200 {
            let (fence, at) = (FencingToken::from_raw(number), Instant::now());
            losses.push(key.clone(), fence, LostReason::Gone, Duration::ZERO, at);
        }
        let kept: Vec<_> = losses.all().iter().map(|loss| loss.fencing_token.get()).collect();
        assert_eq!(kept, (136..200).rev().collect::<Vec<_>>());
        assert_eq!(losses.all()[0].number, 200);
    }
}
