//! A process that ends when its standard input closes, seen from both ends of the pipe.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use lock_testkit::{ChildProcess, Line, NotReady, stdin_closed};
use rustix::process::{Pid, Signal, kill_process};
use seckill::process::announce;
use seckill::server::{Config, Server};
use tokio::process;
use tokio::task::spawn_blocking;

use crate::error::BoxError;

/// A program that has not said that it is ready by then will not. Six servers that become a cluster
/// take seconds, and longer on a machine that is busy.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A little more than an instance takes for its last requests and locks.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// Starts a command of [`this_program`], and waits until it prints a line with `ready` in it.
pub(crate) async fn start(
    command: &mut Command,
    ready: &str,
) -> Result<(ChildProcess, Line), BoxError> {
    let process = ChildProcess::spawn(command)?;
    match process.line_with(ready, START_LIMIT).await {
        Ok(line) => Ok((process, line)),
        Err(NotReady { printed }) => Err(printed.into()),
    }
}

/// Ends a process and waits until it has ended.
pub(crate) async fn stop(process: ChildProcess) {
    spawn_blocking(|| process.stop(STOP_LIMIT)).await.ok();
}

/// A command that runs one of the demo's hidden subcommands.
pub(crate) fn this_program(subcommand: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(subcommand);
    Ok(command)
}

/// A command that runs another program, and ends it when its own standard input closes.
pub(crate) fn tended(program: &Path) -> io::Result<Command> {
    let mut command = this_program("tend")?;
    command.arg(program);
    Ok(command)
}

/// The other end, as an instance of the service.
pub(crate) async fn instance(config: Config) -> Result<ExitCode, BoxError> {
    let parent_gone = stdin_closed();
    let server = Server::bind(config).await?;
    announce(server.local_addr()?)?;
    server.serve(parent_gone).await?;
    Ok(ExitCode::SUCCESS)
}

/// The other end, in front of a program that does not look at its standard input.
pub(crate) async fn tend(program: &Path, arguments: &[OsString]) -> Result<ExitCode, BoxError> {
    let parent_gone = stdin_closed();
    let mut process = process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        // The demo reads one pipe.
        .stderr(io::stdout())
        .spawn()?;
    let ended = tokio::select! {
        ended = process.wait() => ended?,
        () = parent_gone => {
            if let Some(pid) = process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
                kill_process(pid, Signal::TERM)?;
            }
            process.wait().await?
        }
    };
    Ok(if ended.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
