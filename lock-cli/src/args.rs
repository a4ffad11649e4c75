//! The command line.

use std::ffi::OsString;
use std::iter::successors;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use lock_core::LockOptions;

use crate::failure::{Failure, USAGE};

/// Runs a command under a distributed lock, shows who holds locks, and frees them.
#[derive(Debug, Parser)]
#[command(name = "lockctl", version, max_term_width = 100, after_help = STATUSES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const STATUSES: &str = "\
Exit status:
  0     done
  1     `who`: the lock is free; `release`: nothing was done; `doctor`: something puts locks at risk
  2     a mistake in the command line, a key or an option
  69    the store cannot be reached, or refused (`run --store-status`)
  74    `run`: the lock was lost, and the command was stopped (`--lost-status`)
  75    another owner has the lock, and `--wait` is over (`--busy-status`)
  126   `run`: the command cannot be executed
  127   `run`: the command was not found
  128+n `run`: the command, or lockctl while it waited, was ended by signal n
Otherwise `run` exits as its command did.";

#[derive(Args, Debug)]
pub(crate) struct Global {
    /// The store that keeps the locks: `redis://user:password@host:port/database`, where only the
    /// host is needed, `rediss://` for TLS, `redis+sentinel://host,host,host/master-name`, or
    /// `redis+cluster://host,host,host`; several of the first two, with spaces in between, are a
    /// quorum
    #[arg(
        long,
        global = true,
        env = "LOCK_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1/"
    )]
    pub(crate) store: String,
    /// What stands before each key in the store
    #[arg(long, global = true, env = "LOCK_NAMESPACE", default_value = "lock")]
    namespace: String,
    /// Puts nothing before the keys, as another library may do, whatever `LOCK_NAMESPACE` says;
    /// `ls` cannot tell such locks from other keys
    #[arg(long, global = true)]
    no_namespace: bool,
    /// Prints JSON, one value a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Tells on standard error what the library does
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while holding a lock
    ///
    /// The command gets `LOCK_KEY` and `LOCK_FENCE`, the fencing token, in its environment. Signals
    /// are passed on to it and, unless standard input is a terminal, to all that it started. On a
    /// terminal, the command shares lockctl's process group: it gets once what the terminal sends
    /// to the group, such as Ctrl-C, and more than once what a process sends to the group, as `kill
    /// %1` and `timeout` do. The lock is kept until the command has ended, however long it takes
    /// after a signal, and what it leaves running then for `--grace` at most. If the lock is lost,
    /// they get SIGTERM, and SIGKILL after `--grace`. They may therefore be alive for a moment when
    /// another owner has the lock: what they change should check `LOCK_FENCE`. If lockctl itself is
    /// killed by SIGKILL, the command goes on without the lock.
    Run(RunArgs),
    /// Lists the locks that are taken
    Ls(LsArgs),
    /// Shows who holds a lock
    Who {
        /// The key, without the namespace
        key: String,
    },
    /// Waits until a lock is free
    ///
    /// It waits in the queue, and holds the lock for a moment when its turn comes.
    Wait {
        /// The key, without the namespace
        key: String,
        /// Gives up after this long [default: never]
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
    },
    /// Takes a lock from its holder
    ///
    /// The first waiter gets it, or it becomes free. The holder is not asked: its section may still
    /// run when the next one begins. It gets a message at once, or notices at its next renewal,
    /// after a third of what is left of its lease.
    Release(ReleaseArgs),
    /// Checks that a store can keep locks
    ///
    /// Connects, tries which permissions the user has, takes and hands on a lock of its own under
    /// --namespace (with --no-namespace under `lock`, where the records beside such locks are), and
    /// reads the settings that matter. What is missing is named as `ACL SETUSER` takes it; each
    /// permission that is missing is an entry in the server's `ACL LOG`.
    Doctor {
        /// The store to check [default: that of --store]
        url: Option<String>,
    },
    /// Prints the completions for a shell
    Completions { shell: Shell },
    /// Prints a manual page
    ///
    /// Each command has a page of its own, `lockctl-run(1)` and so on.
    Man {
        /// The command whose page to print [default: the page of lockctl]
        command: Option<String>,
        /// Writes all pages into this directory instead, for a package
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The key, without the namespace
    #[arg(short, long)]
    pub(crate) key: String,
    /// How long the store keeps the lock without a renewal [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// How long to wait for another holder: a duration, `none` or `forever` [default: 5s]
    #[arg(short, long, value_name = "DURATION", value_parser = wait)]
    wait: Option<Wait>,
    /// Stops the command after this long
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_hold: Option<Duration>,
    /// Keeps the lock taken at least this long, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    min_hold: Option<Duration>,
    /// How long the command may take to end when the lock is lost, and what it started when it has
    /// ended after a signal; then they are killed
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration,
        default_value = "5s")]
    pub(crate) grace: Duration,
    /// The exit status if another owner has the lock
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = 75)]
    pub(crate) busy_status: u8,
    /// The exit status if the store cannot be reached, or refuses
    #[arg(long, value_name = "STATUS", default_value_t = 69)]
    pub(crate) store_status: u8,
    /// The exit status if the lock was lost
    #[arg(long, value_name = "STATUS", default_value_t = 74)]
    pub(crate) lost_status: u8,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Lists again and again, every this many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) watch: Option<u64>,
    /// The most locks to list
    #[arg(long, default_value_t = 1_000, value_parser = limit)]
    pub(crate) limit: usize,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The key, without the namespace
    pub(crate) key: String,
    /// Says that the lock is taken from a holder that was not asked
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    None,
    Forever,
    UpTo(Duration),
}

fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("choose 1 or more".to_owned()),
        limit => limit.map_err(|error: std::num::ParseIntError| error.to_string()),
    }
}

fn wait(text: &str) -> Result<Wait, humantime::DurationError> {
    match text {
        "none" => Ok(Wait::None),
        "forever" => Ok(Wait::Forever),
        text => humantime::parse_duration(text).map(Wait::UpTo),
    }
}

impl Cli {
    /// Reads the command line. If something is wrong with it, says so and ends the program.
    pub(crate) fn read() -> Self {
        let matches = Self::command().try_get_matches().unwrap_or_else(|error| refuse(&error));
        // Each level has the global options that follow it.
        let levels = || successors(Some(&matches), |level| Some(level.subcommand()?.1));
        let is_given =
            |level: &ArgMatches| level.value_source("namespace") == Some(ValueSource::CommandLine);
        if levels().any(is_given) && levels().any(|level| level.get_flag("no_namespace")) {
            let problem = "the argument '--no-namespace' cannot be used with '--namespace'";
            refuse(&Self::command().error(ErrorKind::ArgumentConflict, problem));
        }
        Self::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error))
    }
}

/// Ends the program because of its command line, or with the help that was wanted.
fn refuse(error: &clap::Error) -> ! {
    let own = std::env::args_os().take_while(|word| word != "--");
    if !error.use_stderr() || own.into_iter().all(|word| word != "--json") {
        error.exit();
    }
    let text = error.render().to_string();
    // What follows is how to use the command.
    let problem = text.split("\n\nUsage: ").next().unwrap_or_default();
    let words: Vec<_> = problem.trim_start_matches("error: ").split_whitespace().collect();
    Failure::new(USAGE, words.join(" ")).print(true);
    std::process::exit(USAGE.into());
}

impl Global {
    /// What stands before each key; `None`: nothing.
    pub(crate) fn namespace(&self) -> Option<&str> {
        (!self.no_namespace).then_some(&*self.namespace)
    }
}

impl RunArgs {
    /// What is said about the lock.
    pub(crate) fn options(&self) -> LockOptions {
        let mut options = LockOptions::new();
        if let Some(ttl) = self.ttl {
            options = options.with_ttl(ttl);
        }
        match self.wait {
            Some(Wait::None) => options = options.without_wait(),
            Some(Wait::Forever) => options = options.wait_forever(),
            Some(Wait::UpTo(wait)) => options = options.with_wait(wait),
            None => {}
        }
        if let Some(max_hold) = self.max_hold {
            options = options.with_max_hold(max_hold);
        }
        if let Some(min_hold) = self.min_hold {
            options = options.with_min_hold(min_hold);
        }
        options
    }
}
