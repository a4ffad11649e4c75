//! Tests that need a program which a machine may not have.

use std::env::var_os;
use std::fmt;
use std::io::Write;

use crate::experiment::REPORT;

/// If set, no test may be skipped. Neither may tests of a report.
const ALL: &str = "LOCK_TESTS_ALL";

/// Says that the running test is skipped, and `why`.
///
/// # Panics
///
/// If no test may be skipped.
pub fn skip(why: impl fmt::Display) {
    let needed = [ALL, REPORT].into_iter().find(|name| var_os(name).is_some());
    assert!(needed.is_none(), "{why}, but {needed:?} is set");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    // Past the capture of output, which shows that of failed tests alone.
    writeln!(std::io::stderr().lock(), "SKIPPED in {test}: {why}").unwrap();
}
