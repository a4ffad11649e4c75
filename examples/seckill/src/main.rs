//! One process of the service.

use std::process::ExitCode;

use clap::Parser;
use seckill::process;
use seckill::server::{Config, Server, ServerError};

/// One instance of the coupon service: run several, with the same Redis and the same database.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

#[tokio::main]
async fn main() -> ExitCode {
    process::init_tracing();
    match run(Cli::parse().config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => process::failed(&error),
    }
}

async fn run(config: Config) -> Result<(), ServerError> {
    let server = Server::bind(config).await?;
    process::announce(server.local_addr()?)?;
    server.serve(process::stop_requested()).await
}
