//! What both binaries have to do with the operating system: signals, logs, the last words.

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

/// Logs go to standard error: warnings, or what `RUST_LOG` asks for.
pub fn init_tracing() {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// Tells whoever has started this process where it listens.
///
/// # Errors
///
/// When nobody reads standard output any more.
pub fn announce(address: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{READY}http://{address}")?;
    stdout.flush()
}

/// Ready when somebody wants this process to end: Ctrl-C, `kill`, or the terminal is closed.
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
    // With standard error closed there is nobody left to tell.
    writeln!(io::stderr(), "{text}").ok();
    ExitCode::FAILURE
}
