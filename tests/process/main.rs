//! Several processes on one Redis server.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod clock_step;
mod cpu_starvation;
mod drain;
mod exclusion;
mod foreign_writes;
mod hand_off;
mod holder_exit;
mod holder_killed;
mod late_claim;
mod member_clock;
mod memory_full;
mod quorum_clock;
mod restart;
mod server_errors;
mod server_pause;
mod soak;
mod stale_write;
// The suite `topologies` uses the rest.
#[allow(dead_code)]
mod support;
mod tls;
mod wall_clock;
