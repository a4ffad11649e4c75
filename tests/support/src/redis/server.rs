//! A Redis server of a test's own.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult, ToRedisArgs, Value};

use super::scripts;
use crate::process::{Signal, send_signal};

/// A `redis-server` on a free port of 127.0.0.1, in a directory of its own. Killed and removed on drop.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    dir: PathBuf,
    config: Vec<String>,
    environment: Vec<(&'static str, String)>,
    password: Option<String>,
    child: Option<Child>,
}

/// A plain connection for foreign commands.
pub struct Cli(redis::Connection);

/// Below the range from which the kernel takes ports for outgoing connections, so that a port stays free while its
/// server is restarted.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;
/// A loaded machine takes its time to start a process.
const START_BOUND: Duration = Duration::from_secs(20);
/// Commands of tests are answered at once, unless the server is stopped on purpose.
const CLI_TIMEOUT: Duration = Duration::from_secs(10);
const STORE_DOCS: &str = include_str!("../../../../lock-core/src/store/redis/mod.rs");

impl RedisServer {
    /// Starts a server that persists nothing.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more lines of configuration, such as `maxmemory 3mb`.
    #[must_use]
    pub fn start_with(config: &[&str]) -> Self {
        Self::launch(None, config, &[])
    }

    /// Starts a server with more lines of configuration, and with variables in its environment.
    #[must_use]
    pub fn start_under(config: &[&str], environment: &[(&'static str, String)]) -> Self {
        Self::launch(None, config, environment)
    }

    /// Starts a server whose default user has a password.
    #[must_use]
    pub fn start_with_password(password: &str) -> Self {
        Self::launch(Some(password), &[], &[])
    }

    fn launch(
        password: Option<&str>,
        config: &[&str],
        environment: &[(&'static str, String)],
    ) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("lock-tests-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut server = Self {
            port: 0,
            dir,
            config: config.iter().map(|&line| line.to_owned()).collect(),
            environment: environment.to_vec(),
            password: password.map(str::to_owned),
            child: None,
        };
        for _ in 0..20 {
            server.kill();
            server.port = free_port();
            // Somebody may take the port in this moment.
            if server.try_boot() {
                return server;
            }
        }
        panic!("redis-server does not start: {}", server.log());
    }

    /// The URL for `RedisStore`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}/", self.port),
            None => format!("redis://127.0.0.1:{}/", self.port),
        }
    }

    /// The URL for a user of the access control list.
    #[must_use]
    pub fn url_for(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}/", self.port)
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new connection for foreign commands.
    #[must_use]
    pub fn connect(&self) -> Cli {
        let client = redis::Client::open(self.url()).unwrap();
        let connection = client.get_connection_with_timeout(CLI_TIMEOUT).unwrap();
        connection.set_read_timeout(Some(CLI_TIMEOUT)).unwrap();
        Cli(connection)
    }

    /// Runs one foreign command, given as words that hold no spaces.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[allow(clippy::must_use_candidate)] // most commands are for their effect
    pub fn cli<T: FromRedisValue>(&self, command: &str) -> T {
        self.connect().run(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        self.connect().run(&format!("GET {key}")).unwrap()
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

    /// How often clients called `command` since the last [`reset_calls`](Self::reset_calls): calls that failed included, those
    /// that were not permitted not. What scripts call inside does count, too, so ask for `evalsha` rather than for `set`.
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

    /// How often the server has answered with an error of this code, such as `NOPERM`, since the last
    /// [`reset_calls`](Self::reset_calls).
    #[must_use]
    pub fn errors(&self, code: &str) -> u64 {
        let stats: String = self.cli("INFO errorstats");
        let prefix = format!("errorstat_{code}:count=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Counts from zero again.
    pub fn reset_calls(&self) {
        let () = self.cli("CONFIG RESETSTAT");
    }

    /// Teaches the server the lock scripts, so that none is sent twice at its first call.
    pub fn load_scripts(&self) {
        let mut cli = self.connect();
        for text in scripts::TEXTS {
            let _: String = cli.command(&["SCRIPT", "LOAD", text]).unwrap();
        }
    }

    /// Suspends the process: the kernel still accepts connections and bytes, nobody answers.
    pub fn pause(&self) {
        send_signal(self.child.as_ref().unwrap(), Signal::STOP);
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        send_signal(self.child.as_ref().unwrap(), Signal::CONT);
    }

    /// Kills the server: connections are reset, new ones refused.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            let _ = child.wait().unwrap();
        }
    }

    /// Starts the server again on its port, after [`kill`](Self::kill).
    pub fn boot(&mut self) {
        assert!(self.try_boot(), "redis-server does not start again: {}", self.log());
    }

    fn try_boot(&mut self) -> bool {
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"])
            .args(["--daemonize", "no", "--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(&self.dir)
            .arg("--logfile")
            .arg(self.dir.join("log"));
        for line in &self.config {
            let (name, value) = line.split_once(' ').unwrap();
            command.arg(format!("--{name}")).args(value.split(' '));
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        // What it says before it has a log is told as well.
        let log = File::options().append(true).create(true).open(self.dir.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("redis-server cannot be run: {error}"));
        let pid = child.id();
        let start = Instant::now();
        let client = redis::Client::open(self.url()).unwrap();
        while start.elapsed() < START_BOUND {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if let Ok(mut connection) = client.get_connection_with_timeout(CLI_TIMEOUT) {
                let info = redis::cmd("INFO").query::<String>(&mut connection);
                // It says so much while it reads what it wrote down, but answers nothing else.
                if let Some(info) = info.ok().filter(|info| info.contains("\nloading:0\r")) {
                    self.child = Some(child);
                    // Else it is the server of somebody who took the port first.
                    return info.contains(&format!("process_id:{pid}\r"));
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child = Some(child);
        false
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Cli {
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What the documentation of `RedisStore` writes behind `ACL SETUSER`: a name, and what this user needs.
///
/// # Panics
///
/// If it does not show that.
#[must_use]
pub fn documented_user() -> Vec<&'static str> {
    let line = STORE_DOCS
        .lines()
        .find_map(|line| line.trim_start_matches(['/', '!']).trim().strip_prefix("ACL SETUSER "));
    line.expect("the docs show the permissions").split(' ').collect()
}

/// A port of 127.0.0.1 that nobody listens on, and that no other test of this machine is likely to take.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time start at different places.
    let start = std::process::id().wrapping_mul(7919) as u16;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST_PORT + start.wrapping_add(step) % PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
