//! Which locks are contended, so that the first claim takes a place in the queue at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Name;
use crate::time::Instant;

/// The locks that were found taken a moment ago, with the time of that.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Name, Instant>>);

/// For how long a lock that was found taken is expected to be taken again.
const CONTENDED_FOR: Duration = Duration::from_secs(5);
/// Outdated names are removed when there are this many.
const SWEEP_AT: usize = 1024;

impl Contended {
    /// The lock was found taken.
    pub(crate) fn insert(&self, name: &Name) {
        let now = Instant::now();
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= SWEEP_AT && !names.contains_key(name) {
            names.retain(|_, seen| now.saturating_since(*seen) < CONTENDED_FOR);
            if names.len() >= SWEEP_AT {
                // Too many at once. Forgetting one costs its next claim a round trip.
                names.clear();
            }
        }
        names.insert(name.clone(), now);
    }

    pub(crate) fn contains(&self, name: &Name) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.is_empty() {
            return false;
        }
        names.get(name).is_some_and(|seen| Instant::now().saturating_since(*seen) < CONTENDED_FOR)
    }
}
