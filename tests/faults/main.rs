//! Faults that people met in lock libraries, each on a real Redis server. The names of public bug reports
//! stand at the tests.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod harness;
