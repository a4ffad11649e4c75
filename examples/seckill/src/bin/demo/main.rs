//! Puts several instances of the service under load and shows what the lock is worth.

mod cli;
mod error;
mod fleet;
mod load;
mod mode;
mod report;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use lock_testkit::{RedisServer, run_cluster, run_quorum, run_sentinels, run_standalone};
use seckill::process;
use seckill::server::NAMESPACE;

use self::cli::{Cli, Command, Options, RedisMode};
use self::error::BoxError;
use self::fleet::{Fleet, child};
use self::report::Report;

/// 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(message) = cli.options.check() {
        Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    process::init_tracing();
    let done = match cli.command {
        Some(Command::Instance(config)) => child::instance(config).await,
        Some(Command::Redis { mode }) => redis(mode).await,
        Some(Command::Tend { program, arguments }) => child::tend(&program, &arguments).await,
        None => demo(&cli.options).await,
    };
    done.unwrap_or_else(|error| process::failed(&*error))
}

/// The Redis servers, in a process that ends when the demo ends.
async fn redis(mode: RedisMode) -> Result<ExitCode, BoxError> {
    match mode {
        RedisMode::Single => run_standalone(RedisServer::builder()).await?,
        RedisMode::Sentinel => run_sentinels().await?,
        RedisMode::Cluster => run_cluster().await?,
        RedisMode::Quorum => run_quorum(NAMESPACE).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn demo(options: &Options) -> Result<ExitCode, BoxError> {
    let mut fleet = Fleet::new()?;
    let done = tokio::select! {
        done = measure(&mut fleet, options) => done,
        () = process::stop_requested() => Ok(ExitCode::from(INTERRUPTED)),
    };
    fleet.stop().await;
    done
}

async fn measure(fleet: &mut Fleet, options: &Options) -> Result<ExitCode, BoxError> {
    fleet.start(options).await?;
    let report = Report {
        redis: fleet.redis(),
        instances: options.instances,
        modes: load::every_mode(fleet, options).await?,
    };
    let broken = report.broken_promises(options);
    report.print(options.json, &broken)?;
    if options.stay {
        report::invite(fleet.addresses())?;
        process::stop_requested().await;
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
