//! Several processes on one Redis server.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod drain;
mod exclusion;
mod forgotten;
mod handoff;
mod holder;
mod late_claim;
mod leaving;
mod memory_full;
mod refused;
mod restart;
mod soak;
mod stale_write;
mod standstill;
mod starved;
mod support;
mod tls;
mod wall_clock;
