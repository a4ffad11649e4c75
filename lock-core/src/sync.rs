//! Mutexes and atomics for state that tasks share in memory. Under `--cfg lock_shuttle` they are
//! those of a scheduler that tries many interleavings.

#[cfg(not(all(test, lock_shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicBool};

#[cfg(all(test, lock_shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool};
