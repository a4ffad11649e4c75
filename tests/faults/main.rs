//! Faults that people met in lock libraries, each on a real Redis server. The public reports stand at the
//! tests; the letters are those of the collection that the tests follow.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod acquire;
mod bad_input;
mod cancelled;
mod deadline;
mod fencing;
mod harness;
mod keys;
mod lifecycle;
mod locked_functions;
mod observed;
mod outage;
mod permissions;
mod release;
mod renewal;
mod waiting;
