//! Mutexes and flags of what tasks share without a store in between. In tests with `--cfg
//! lock_shuttle` they belong to a scheduler that tries many interleavings.

#[cfg(not(all(test, lock_shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicBool};

#[cfg(all(test, lock_shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool};
