//! `lockctl`: distributed locks from the command line.
//!
//! `lockctl --help` tells how to use it.
// It is a command: it prints, and measures with the usual clock.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod args;
mod client;
mod doctor;
mod failure;
mod log;
mod man;
mod output;
mod run;
mod show;
mod signals;

use std::process::ExitCode;

use clap::CommandFactory;

use self::args::{Cli, Command};
use self::client::connect;
use self::failure::Failure;
use self::output::write;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::read();
    log::start(&cli);
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
        Command::Wait { key, timeout } => {
            run::wait(&connect(global).await?, global.json, key, *timeout).await
        }
        Command::Release(args) => show::release(&connect(global).await?, global, args).await,
    }
}
