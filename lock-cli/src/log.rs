//! What the library tells, on standard error.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command};

/// What was logged before the command is under way. If the command fails at its start, this is
/// dropped, since the command's own message says why.
static HELD_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(Some(Vec::new()));

fn held_back() -> MutexGuard<'static, Option<Vec<u8>>> {
    HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the library's warnings to standard error, for the commands that hold or await a lock. The
/// other commands report themselves what they found.
pub(crate) fn start(cli: &Cli) {
    let is_long = matches!(cli.command, Command::Run(_) | Command::Wait { .. });
    let level = if cli.global.verbose {
        "lock_core=debug"
    } else if is_long && !cli.global.json {
        "lock_core=warn"
    } else {
        // A program that wants JSON reads standard error, too.
        "off"
    };
    if cli.global.verbose {
        under_way();
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(|| Stderr)
        .with_ansi(io::stderr().is_terminal() && !plain)
        .without_time()
        .with_target(false)
        .init();
}

/// The command has begun: writes what was held back, and from now on every line at once.
pub(crate) fn under_way() {
    // If standard error is closed, no one reads it.
    drop(io::stderr().write_all(&held_back().take().unwrap_or_default()));
}

struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match &mut *held_back() {
            Some(held) => held.write(text),
            None => io::stderr().write(text),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
