//! `lockctl`: distributed locks from the command line.
//!
//! `lockctl --help` tells how to use it.
// It is a command: it prints, and measures with the usual clock.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod args;
mod client;
mod doctor;
mod failure;
mod man;
mod output;
mod run;
mod show;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::CommandFactory;
use tracing_subscriber::EnvFilter;

use self::args::{Cli, Command, Global};
use self::client::connect;
use self::failure::Failure;
use self::output::write;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::read();
    log(&cli.global);
    match execute(&cli).await {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            failure.print(cli.global.json);
            ExitCode::from(failure.status)
        }
    }
}

async fn execute(cli: &Cli) -> Result<u8, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "lockctl", &mut text);
            write(&text)
        }
        Command::Man { dir: Some(dir), .. } => man::write_all(dir).map(|()| 0),
        Command::Man { command, dir: None } => write(&man::page(command.as_deref())?),
        Command::Doctor { url } => doctor::check(global, url.as_deref()).await,
        Command::Run(args) => run::run(global, args).await,
        Command::Ls(args) => show::list(&connect(global).await?, global, args).await,
        Command::Who { key } => show::owner(&connect(global).await?, global, key).await,
        Command::Wait { key, timeout } => run::wait(&connect(global).await?, key, *timeout).await,
        Command::Release(args) => show::release(&connect(global).await?, global, args).await,
    }
}

/// Warnings of the library go to standard error.
fn log(global: &Global) {
    let level = match (global.verbose, global.json) {
        (true, _) => "lock_core=debug",
        (false, false) => "lock_core=warn",
        // A program reads standard error, too.
        (false, true) => "off",
    };
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !plain)
        .without_time()
        .with_target(false)
        .init();
}
