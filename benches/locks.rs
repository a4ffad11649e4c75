//! What locks cost: lock-core next to a bare connection and next to other lock crates, in one run.
//!
//! `cargo bench --package lock-benches --bench locks --features peers -- --help` lists the options.
//! The benchmark starts its own redis-server and worker processes, and stops them at the end. It
//! fails if two critical sections overlapped.

// A benchmark prints, fails by panicking, reads the clock directly and spawns tasks freely. Its
// figures are far below 2^52.
#![cfg_attr(
    target_os = "linux",
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::disallowed_methods,
        clippy::future_not_send,
        clippy::large_futures,
        clippy::print_stderr,
        clippy::print_stdout,
        clippy::unwrap_used
    )
)]

// Imports go one way: `cli`, then `scenarios`, then `support`, then `peers`.
#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod peers;
#[cfg(target_os = "linux")]
mod scenarios;
#[cfg(target_os = "linux")]
mod support;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    // timerfd, CPU affinity and signals to processes have no substitute here.
    panic!("the benches need Linux");
}
