//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use seckill::server::Config;

/// Starts several instances of a coupon service, lets many users press the button several times at
/// once, and counts who got more than one coupon: without a lock, with the macro, with the layer.
///
/// Needs `redis-server` unless --redis names one. Ends with status 0 if the locked modes gave every
/// user exactly one order (and the unlocked one did not), 1 if not.
#[derive(Debug, Parser)]
#[command(name = "demo", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One instance of the service; the demo starts itself with this.
    #[command(hide = true)]
    Instance(Config),
    /// A Redis server, ended when the demo ends.
    #[command(hide = true)]
    Redis { program: PathBuf },
    /// Another program of the fleet, ended when the demo ends.
    #[command(hide = true)]
    Tend {
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many users want a coupon.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) users: u32,
    /// How often each presses the button, all at once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) duplicates: u32,
    /// How many processes serve them, in turn.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) instances: u16,
    /// How many users press at the same moment.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) concurrency: u32,
    /// The Redis to use; without it the demo starts its own `redis-server` on a free port.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// The database to use; without it a SQLite file that is deleted in the end.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// How long the payment provider takes to answer, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub(crate) payment_ms: u64,
    /// Put a real nginx in front of the instances, with the `nginx.conf` of this example.
    #[arg(long)]
    pub(crate) nginx: bool,
    /// Print one JSON object on standard output instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Afterwards keep the instances running until Ctrl-C, to press the button in a browser.
    #[arg(long)]
    pub(crate) stay: bool,
}
