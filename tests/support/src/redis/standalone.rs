//! A server for programs that cannot hold a [`RedisServer`](super::RedisServer): scripts in other
//! languages, and processes that may be killed.

use std::error::Error;
use std::io::{self, Write};

use super::RedisBuilder;
use crate::process::{stdin_closed, stop_signal};

/// Starts a server, prints its URL, and stops the server when standard input closes or a signal
/// asks this process to end.
///
/// # Errors
///
/// If the server does not start, or standard output is closed.
pub async fn run_standalone(settings: RedisBuilder) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = stop_signal()?;
    let server = settings.try_start()?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", server.url())?;
    stdout.flush()?;
    tokio::select! {
        () = stdin_closed() => {}
        () = stop => {}
    }
    Ok(())
}
