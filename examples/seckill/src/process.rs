//! Signals, logs and exit messages of both binaries.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// What a process says on standard output, before its address, once it accepts requests.
pub const READY: &str = "listening on ";

/// Without sqlx's remarks on slow statements: under load, writers wait for each other.
const DEFAULT_FILTER: &str = "warn,sqlx::query=error";

/// Logs go to standard error: warnings, or what `RUST_LOG` selects.
pub fn init_tracing() {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// Tells the parent process where this process listens.
///
/// # Errors
///
/// When standard output is closed.
pub fn announce(address: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{READY}http://{address}")?;
    stdout.flush()
}

/// Ready when this process should end: Ctrl-C, `kill`, or a closed terminal.
///
/// # Panics
///
/// Outside a tokio runtime.
pub async fn stop_requested() {
    let listen = |kind| signal(kind).expect("BUG: these signals can be listened to");
    let (mut interrupt, mut terminate, mut hangup) = (
        listen(SignalKind::interrupt()),
        listen(SignalKind::terminate()),
        listen(SignalKind::hangup()),
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// Prints an error with its causes, and gives the status to exit with.
pub fn failed(error: &dyn Error) -> ExitCode {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n  because: {error}"));
        cause = error.source();
    }
    // If standard error is closed, the message is lost.
    writeln!(io::stderr(), "{text}").ok();
    ExitCode::FAILURE
}
