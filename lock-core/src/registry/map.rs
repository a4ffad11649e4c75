//! A map from lock names, in shards, so that tasks on different keys rarely wait for each other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::PoisonError;

use crate::store::Name;
use crate::sync::{Mutex, MutexGuard};

const SHARDS: usize = 32;

#[derive(Debug)]
pub(super) struct ShardedMap<V>([Mutex<Shard<V>>; SHARDS]);

pub(super) type Shard<V> = HashMap<Name, V, BuildHasherDefault<PrehashedHasher>>;

impl<V: Clone> ShardedMap<V> {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    /// The shard that holds `name`.
    pub(super) fn shard(&self, name: &Name) -> MutexGuard<'_, Shard<V>> {
        // The maps use the low bits and the seven highest ones.
        #[allow(clippy::cast_possible_truncation)] // only a few bits matter
        let index = (name.hash_value() >> 32) as usize % SHARDS;
        Self::lock(&self.0[index])
    }

    /// All entries, sorted by name: the position in a map is random, and a simulation must repeat
    /// itself.
    pub(super) fn sorted(&self) -> Vec<V> {
        let all = |shard| -> Vec<_> { Self::lock(shard).clone().into_iter().collect() };
        let mut entries: Vec<_> = self.0.iter().flat_map(all).collect();
        entries.sort_by(|(one, _), (two, _)| one.as_str().cmp(two.as_str()));
        entries.into_iter().map(|(_, value)| value).collect()
    }

    /// What `look` makes of the entries, in no order. Each shard stays locked meanwhile.
    pub(super) fn filter_map<R>(&self, mut look: impl FnMut(&V) -> Option<R>) -> Vec<R> {
        let mut found = Vec::new();
        for shard in &self.0 {
            found.extend(Self::lock(shard).values().filter_map(&mut look));
        }
        found
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|shard| Self::lock(shard).len()).sum()
    }

    fn lock(shard: &Mutex<Shard<V>>) -> MutexGuard<'_, Shard<V>> {
        // A panic in the few lines that hold this lock leaves the map whole.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the hash that a [`Name`] carries.
#[derive(Default)]
pub(super) struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
