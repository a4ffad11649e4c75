//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
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
    /// The Redis servers, ended when the demo ends.
    #[command(hide = true)]
    Redis { mode: RedisMode },
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
    /// The Redis to use, or several URLs in one argument for a quorum; without it the demo starts
    /// its own `redis-server` on a free port.
    #[arg(long, value_name = "URL", conflicts_with = "redis_mode")]
    pub(crate) redis: Option<String>,
    /// Which servers the demo starts.
    #[arg(long, value_name = "MODE", default_value = "single")]
    pub(crate) redis_mode: RedisMode,
    /// Do damage to the servers while each of the locked modes is under load. Users who get a 503
    /// press again.
    #[arg(long)]
    pub(crate) chaos: bool,
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

/// The servers that the demo starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RedisMode {
    /// One server.
    Single,
    /// A master with two replicas, and three sentinels; the damage is a `kill -9` of the master.
    Sentinel,
    /// Three masters with a replica each; the damage is a slot that moves to another master while
    /// it is used, and a `kill -9` of the third one.
    Cluster,
    /// Five servers that know nothing of each other; the damage is a `kill -9` of one of them, for
    /// good.
    Quorum,
}

impl RedisMode {
    /// As the command line names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
        }
    }
}

impl Options {
    /// What is wrong with the options together, if anything is.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.chaos && (self.redis.is_some() || self.redis_mode == RedisMode::Single) {
            return Err(
                "--chaos needs servers that survive it: add --redis-mode sentinel, cluster \
                        or quorum",
            );
        }
        Ok(())
    }
}
