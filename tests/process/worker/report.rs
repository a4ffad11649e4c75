//! Reports events to the process that started this one.

use std::io::Write;

use lock_testkit::history::now;

pub(crate) fn say(event: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {event}", now()).unwrap();
    out.flush().unwrap();
}
