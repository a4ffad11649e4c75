//! How many requests wait for a lock: counted here, so that a request over the bound is refused
//! before the store is touched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::Key;

/// The most requests that may wait for a lock at once; `None` is no bound.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) total: Option<usize>,
    pub(crate) per_key: Option<usize>,
}

/// The counts, shared by every service of a layer and by the layer's clones.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    /// Has no entry of zero, so it has one entry per key that a request waits for.
    per_key: HashMap<Key, usize>,
}

/// One request's place; dropped when the request has its lock or has given up.
#[derive(Debug)]
pub(crate) struct Place {
    counted: Option<(Arc<Waiters>, Key)>,
}

impl Waiters {
    /// A place, or `None` if there is none left.
    pub(crate) fn enter(self: &Arc<Self>, bounds: Bounds, key: &Key) -> Option<Place> {
        if bounds.total.is_none() && bounds.per_key.is_none() {
            return Some(Place { counted: None });
        }
        let mut counts = self.lock();
        let of_key = counts.per_key.get(key).copied().unwrap_or(0);
        let is_full = |bound: Option<usize>, count| bound.is_some_and(|bound| count >= bound);
        if is_full(bounds.total, counts.total) || is_full(bounds.per_key, of_key) {
            return None;
        }
        counts.total += 1;
        counts.per_key.insert(key.clone(), of_key + 1);
        Some(Place { counted: Some((Arc::clone(self), key.clone())) })
    }

    /// Nothing panics under this mutex, so a poisoned one is still consistent.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((waiters, key)) = &self.counted else { return };
        let mut counts = waiters.lock();
        counts.total -= 1;
        if let Some(of_key) = counts.per_key.get_mut(key) {
            *of_key -= 1;
            if *of_key == 0 {
                counts.per_key.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name.to_owned()).unwrap()
    }

    #[test]
    fn bounds_hold_per_key_and_in_total() {
        let waiters = Arc::new(Waiters::default());
        let bounds = Bounds { total: Some(3), per_key: Some(2) };

        let a1 = waiters.enter(bounds, &key("a")).unwrap();
        let a2 = waiters.enter(bounds, &key("a")).unwrap();
        assert!(waiters.enter(bounds, &key("a")).is_none(), "a third on one key");
        let b1 = waiters.enter(bounds, &key("b")).unwrap();
        assert!(waiters.enter(bounds, &key("c")).is_none(), "a fourth in total");

        drop(a1);
        let a3 = waiters.enter(bounds, &key("a")).unwrap();
        drop((a2, a3, b1));
        let counts = waiters.lock();
        assert_eq!((counts.total, counts.per_key.len()), (0, 0), "no count is left");
    }

    #[test]
    fn a_bound_of_zero_admits_no_request_and_no_bound_counts_nothing() {
        let waiters = Arc::new(Waiters::default());
        assert!(waiters.enter(Bounds { total: Some(0), per_key: None }, &key("a")).is_none());
        assert!(waiters.enter(Bounds { total: None, per_key: Some(0) }, &key("a")).is_none());
        let _place = waiters.enter(Bounds::default(), &key("a")).unwrap();
        assert_eq!(waiters.lock().total, 0);
    }
}
