//! Which locks are worth a place in the queue at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::store::Name;
use crate::time::Instant;

/// The locks that were found taken a moment ago: there the first claim asks for a place at once.
#[derive(Debug, Default)]
pub(super) struct Contended(Mutex<HashMap<Name, Instant>>);

/// For how long a lock that was found taken is expected to be taken again.
const CONTENDED_FOR: Duration = Duration::from_secs(5);
/// Names are swept out when there are this many.
const MANY: usize = 1024;

impl Contended {
    pub(super) fn note(&self, name: &Name) {
        let now = Instant::now();
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MANY && !names.contains_key(name) {
            names.retain(|_, seen| now.saturating_since(*seen) < CONTENDED_FOR);
            if names.len() >= MANY {
                // So many at once: not knowing costs each a round trip.
                names.clear();
            }
        }
        names.insert(name.clone(), now);
    }

    pub(super) fn is(&self, name: &Name) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.is_empty() {
            return false;
        }
        names.get(name).is_some_and(|seen| Instant::now().saturating_since(*seen) < CONTENDED_FOR)
    }
}
