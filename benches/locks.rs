//! What locks cost: ours beside the raw limit and beside the crates that one would otherwise use, in one run.
//!
//! `cargo bench --package lock-benches --bench locks --features peers -- --help` lists the options. The run starts
//! its own redis-server and worker processes, and ends them. It fails if two critical sections overlapped.

// A benchmark prints, fails by panicking, reads the clock as it likes and spawns where it measures. Its figures are
// far below 2^52.
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

#[cfg(target_os = "linux")]
mod cells;
#[cfg(target_os = "linux")]
mod contenders;
#[cfg(target_os = "linux")]
mod support;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    support::args::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    // timerfd, CPU affinity and signals to processes are used without a substitute.
    panic!("the benches need Linux");
}
