//! Foreign commands, and what the server tells about itself.

use std::time::Duration;

use redis::{FromRedisValue, RedisResult, ToRedisArgs, Value};

use super::scripts;
use super::server::RedisServer;

/// A plain connection for foreign commands.
pub struct Cli(redis::Connection);

/// Commands of tests are answered at once, unless the server is stopped on purpose.
const CLI_TIMEOUT: Duration = Duration::from_secs(10);

/// Each of three sentinels may give a server its role.
const ROLE_CHANGES: usize = 3;

impl RedisServer {
    /// A new connection for foreign commands.
    #[must_use]
    pub fn connect(&self) -> Cli {
        self.try_connect().unwrap()
    }

    pub(super) fn try_connect(&self) -> RedisResult<Cli> {
        Cli::to(&self.url())
    }

    /// Runs one foreign command, given as words that hold no spaces. It is run again if the server
    /// closes the connection, as it does when a sentinel makes it the master or a replica.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[allow(clippy::must_use_candidate)] // most commands are for their effect
    pub fn cli<T: FromRedisValue>(&self, command: &str) -> T {
        let once = || self.try_connect()?.run(command);
        let mut result = once();
        for _ in 0..ROLE_CHANGES {
            match &result {
                Err(error) if error.is_connection_dropped() => result = once(),
                _ => break,
            }
        }
        result.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        self.cli(&format!("GET {key}"))
    }

    /// Milliseconds until a key expires; -1: never; -2: there is none.
    #[must_use]
    pub fn pttl(&self, key: &str) -> i64 {
        self.cli(&format!("PTTL {key}"))
    }

    /// Whether there is a key of this name.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.pttl(key) != -2
    }

    /// How often `command` was called since the last [`reset_calls`](Self::reset_calls). Calls that
    /// failed count, calls without permission do not. Calls by scripts count as well, so give
    /// `evalsha` rather than `set`.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.cli("INFO commandstats");
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Calls of lock scripts.
    #[must_use]
    pub fn script_calls(&self) -> u64 {
        self.calls("evalsha") + self.calls("eval")
    }

    /// How often the server has answered with an error of this code, such as `NOPERM`, since the
    /// last [`reset_calls`](Self::reset_calls).
    #[must_use]
    pub fn errors(&self, code: &str) -> u64 {
        let stats: String = self.cli("INFO errorstats");
        let prefix = format!("errorstat_{code}:count=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Sets the counters of calls and errors to zero.
    pub fn reset_calls(&self) {
        let () = self.cli("CONFIG RESETSTAT");
    }

    /// Loads the lock scripts, so that none is sent twice at its first call.
    pub fn load_scripts(&self) {
        let mut cli = self.connect();
        for text in scripts::TEXTS {
            let _: String = cli.command(&["SCRIPT", "LOAD", text]).unwrap();
        }
    }
}

impl Cli {
    /// Connects to `url`.
    pub(super) fn to(url: &str) -> RedisResult<Self> {
        let client = redis::Client::open(url)?;
        let connection = client.get_connection_with_timeout(CLI_TIMEOUT)?;
        connection.set_read_timeout(Some(CLI_TIMEOUT))?;
        Ok(Self(connection))
    }

    /// Runs one command, given as words that hold no spaces.
    ///
    /// # Errors
    ///
    /// What the server says, or that it does not answer.
    pub fn run<T: FromRedisValue>(&mut self, command: &str) -> RedisResult<T> {
        self.command(&command.split(' ').collect::<Vec<_>>())
    }

    /// Runs one command, given as its arguments.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn command<T: FromRedisValue>(&mut self, args: &[impl ToRedisArgs]) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg);
        }
        let value: Value = command.query(&mut self.0)?;
        Ok(redis::from_redis_value(value)?)
    }
}

impl std::fmt::Debug for Cli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cli")
    }
}
