//! Signals to the processes that a test started.

use std::process::Child;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Sends `signal` to a process that this test started and has not reaped.
pub fn send_signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}
