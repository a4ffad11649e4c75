//! Clusters, sentinels and quorums under contention, while servers are killed, replaced and moved,
//! forget their locks, or are wrong about the time.
//!
//! Experiments of the programme of faults, whose numbers begin at 51: `make faults` runs many
//! rounds of each, and `cargo test` a few.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod clocks;
mod conductor;
mod failover;
mod fleet;
mod moves;
mod probe;
mod restarts;
mod sentinels;
// The suite `process` uses the rest.
#[allow(dead_code)]
#[path = "../process/support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use lock_testkit::scale;
use tokio::runtime::{Builder, Runtime};

/// Clusters and sentinels replace a server that is slow to answer, so these experiments run one
/// after another.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for quorums, which do not disturb the others.
fn alone_of_quorums() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `few` rounds for each change, and `many` for the programme of faults.
fn rounds(few: usize, many: usize) -> usize {
    /// What it sets `LOCK_TESTS_SCALE` to.
    const PROGRAMME: usize = 10;
    match scale(1) {
        1 => few,
        factor => (many * factor).div_ceil(PROGRAMME),
    }
}

/// For what a test does itself while processes contend.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
