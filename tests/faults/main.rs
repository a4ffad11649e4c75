//! Faults that were reported for other lock libraries, each on a real Redis server. Each test cites
//! the public reports. The letters are those of the table in `tests/README.md`.
// Figures are printed, and show with `--nocapture`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod acquire;
mod bad_input;
mod canaries;
mod cancelled;
mod cancelled_waiter;
mod deadline;
#[path = "../macros/ending.rs"]
mod ending;
mod fencing;
mod handed;
mod harness;
mod inbox;
mod keys;
mod lane;
mod late;
mod lifecycle;
mod locked_functions;
mod observed;
mod outage;
mod permissions;
mod queue;
mod release;
mod renewal;
mod stale_grant;
mod sweep;
mod table;
mod together;
mod told;
mod unnoticed;
mod upheaval;
mod waiting;
