//! A process that ends when its standard input closes, seen from both ends of the pipe.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use lock_testkit::stdin_closed;
use rustix::process::{Pid, Signal, kill_process};
use seckill::process;
use seckill::server::{Config, Server};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child as Process, ChildStdin, Command};
use tokio::time::timeout;

use crate::BoxError;

/// A program that has not said that it is ready by then will not.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A little more than an instance takes for its last requests and locks.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// The demo's end.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    // Closed when this is dropped, and that ends the process.
    stdin: ChildStdin,
}

/// The process has ended, or closed its output, before it said that it was ready.
#[derive(Debug)]
pub(crate) struct NotReady {
    /// What it said instead.
    pub(crate) said: String,
}

impl Child {
    /// Starts a command of [`this_program`].
    pub(crate) fn spawn(mut command: Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().expect("BUG: standard input is a pipe");
        Ok(Self { process, stdin })
    }

    /// Waits until its standard output has a line with this text in it.
    pub(crate) async fn says_on_stdout(&mut self, text: &str) -> Result<String, NotReady> {
        let stdout = self.process.stdout.take().expect("BUG: standard output is a pipe");
        says(stdout, text).await
    }

    /// Waits until its standard error has a line with this text in it.
    pub(crate) async fn says_on_stderr(&mut self, text: &str) -> Result<String, NotReady> {
        let stderr = self.process.stderr.take().expect("BUG: standard error is a pipe");
        says(stderr, text).await
    }

    /// Ends it and waits until it has.
    pub(crate) async fn stop(self) {
        let Self { mut process, stdin } = self;
        drop(stdin);
        if timeout(STOP_LIMIT, process.wait()).await.is_err() {
            process.kill().await.ok();
        }
    }
}

/// Reads lines until one has `text` in it, and then on and on, so that the pipe never fills.
async fn says(
    output: impl AsyncRead + Send + Unpin + 'static,
    text: &str,
) -> Result<String, NotReady> {
    let mut lines = BufReader::new(output).lines();
    let mut said = String::new();
    let ready = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains(text) {
                return Some(line);
            }
            said.push_str(&line);
            said.push('\n');
        }
        None
    };
    let Ok(Some(line)) = timeout(START_LIMIT, ready).await else {
        return Err(NotReady { said });
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}

/// A command that runs one of the demo's hidden subcommands.
pub(crate) fn this_program(subcommand: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(subcommand).stdout(Stdio::piped());
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
    process::announce(server.local_addr()?)?;
    server.serve(parent_gone).await?;
    Ok(ExitCode::SUCCESS)
}

/// The other end, in front of a program that does not look at its standard input.
pub(crate) async fn tend(program: &Path, arguments: &[OsString]) -> Result<ExitCode, BoxError> {
    let parent_gone = stdin_closed();
    let mut process = Command::new(program).args(arguments).stdin(Stdio::null()).spawn()?;
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
