//! Several processes on one Redis server.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod cpu_starvation;
mod drain;
mod exclusion;
mod foreign_writes;
mod hand_off;
mod holder_exit;
mod holder_killed;
mod late_claim;
mod memory_full;
mod restart;
mod server_errors;
mod server_pause;
mod soak;
mod stale_write;
mod support;
mod tls;
mod wall_clock;
