//! Starts, stops and restarts a `redis-server`.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Signal, free_port, send_signal, temp_dir};

/// A `redis-server` on a free port of 127.0.0.1, in a directory of its own. Killed and removed on
/// drop.
#[derive(Debug)]
pub struct RedisServer {
    settings: RedisBuilder,
    port: u16,
    tls_port: Option<u16>,
    dir: TempDir,
    child: Option<Child>,
}

/// How a [`RedisServer`] is started.
#[derive(Clone, Debug)]
pub struct RedisBuilder {
    command: Vec<OsString>,
    config: Vec<String>,
    environment: Vec<(String, OsString)>,
    password: Option<String>,
    tls: bool,
}

/// The server did not start, and why.
#[derive(Debug)]
pub struct StartError(String);

/// The variable that names the program to run in place of the installed `redis-server`, such as
/// another version.
pub const REDIS_SERVER: &str = "LOCK_TESTS_REDIS_SERVER";
/// Another process may take a port between the search for it and the start of the server.
const ATTEMPTS: usize = 20;
/// A loaded machine takes its time to start a process.
const START_BOUND: Duration = Duration::from_secs(20);
/// How often a starting server is asked whether it is ready.
const LOOK: Duration = Duration::from_millis(5);

/// The program that tests run as the server: the installed `redis-server`, or the one that
/// `LOCK_TESTS_REDIS_SERVER` names.
///
/// # Panics
///
/// If there is no file of that name.
#[must_use]
pub fn redis_server() -> OsString {
    env::var_os(REDIS_SERVER).map_or_else(|| "redis-server".into(), existing)
}

fn existing(named: OsString) -> OsString {
    let program = Path::new(&named);
    assert!(program.is_file(), "{REDIS_SERVER} names {}, which is not a file", program.display());
    named
}

impl RedisBuilder {
    fn new() -> Self {
        Self {
            command: vec![redis_server()],
            config: Vec::new(),
            environment: Vec::new(),
            password: None,
            tls: false,
        }
    }

    /// Adds a line of configuration, such as `maxmemory 3mb`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Adds a variable to the server's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Requires a password of the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Listens for TLS as well, on a free port of its own. Its certificate is in lines of the
    /// configuration.
    #[must_use]
    pub fn by_tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Runs these words instead of `redis-server`, with the server's options behind them. They must
    /// end in the same process, as `exec` does.
    #[must_use]
    pub fn command<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.command = words.into_iter().map(W::into).collect();
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(self) -> RedisServer {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it cannot be run, or does not answer; with its log.
    pub fn try_start(self) -> Result<RedisServer, StartError> {
        let dir = temp_dir("redis");
        let mut server = RedisServer { settings: self, port: 0, tls_port: None, dir, child: None };
        for _ in 0..ATTEMPTS {
            server.port = free_port();
            server.tls_port = server.settings.tls.then(free_port);
            if server.try_boot()? {
                return Ok(server);
            }
        }
        Err(StartError(format!("redis-server does not start: {}", server.log())))
    }
}

impl RedisServer {
    /// A server that persists nothing, to be configured further.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// Starts a server that persists nothing.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts a server with more lines of configuration.
    #[must_use]
    pub fn start_with(config: &[&str]) -> Self {
        config.iter().fold(Self::builder(), |builder, line| builder.config(line)).start()
    }

    /// The URL for `RedisStore`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at("redis", self.port)
    }

    /// The same by TLS.
    ///
    /// # Panics
    ///
    /// If it was not started [so](RedisBuilder::by_tls).
    #[must_use]
    pub fn tls_url(&self) -> String {
        self.url_at("rediss", self.tls_port())
    }

    fn url_at(&self, scheme: &str, port: u16) -> String {
        let login = self.settings.password.as_ref().map(|password| format!(":{password}@"));
        format!("{scheme}://{}127.0.0.1:{port}/", login.unwrap_or_default())
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

    /// The port that it listens on for TLS.
    ///
    /// # Panics
    ///
    /// If it was not started [so](RedisBuilder::by_tls).
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("a server with TLS")
    }

    /// Suspends the process: the kernel still accepts connections and bytes, but nothing is
    /// answered.
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

    /// Whether it was not killed.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Starts the server again on its port, after [`kill`](Self::kill).
    pub fn boot(&mut self) {
        assert!(self.try_boot().unwrap(), "redis-server does not start again: {}", self.log());
    }

    /// Starts the process on its port; whether it answers, in time and before it ends.
    fn try_boot(&mut self) -> Result<bool, StartError> {
        let mut command = self.command();
        let child = command.spawn().map_err(|error| {
            let program = command.get_program().display();
            StartError(format!("{program} cannot be run: {error}"))
        })?;
        let child = self.child.insert(child);
        let pid = child.id();
        let start = Instant::now();
        while self.child.as_mut().unwrap().try_wait().unwrap().is_none() {
            if self.answers(pid) {
                return Ok(true);
            }
            if start.elapsed() > START_BOUND {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.kill();
        Ok(false)
    }

    fn command(&self) -> Command {
        let RedisBuilder { command: words, config, environment, password, tls: _ } = &self.settings;
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .arg("--logfile")
            .arg(self.dir.path().join("log"));
        for line in config {
            let (name, value) = line.split_once(' ').unwrap();
            command.arg(format!("--{name}")).args(value.split(' '));
        }
        if let Some(port) = self.tls_port {
            command.args(["--tls-port", &port.to_string()]);
        }
        if let Some(password) = password {
            command.args(["--requirepass", password]);
        }
        // What the server prints before it opens its log belongs there as well.
        let log = File::options().append(true).create(true).open(self.dir.path().join("log"));
        let log = log.unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    /// Whether the process `pid`, rather than another one that took the port first, executes
    /// commands.
    fn answers(&self, pid: u32) -> bool {
        let Ok(mut cli) = self.try_connect() else { return false };
        // A server that still loads its data answers `INFO`, and nothing else.
        cli.run::<String>("INFO").is_ok_and(|info| {
            info.contains("\nloading:0\r") && info.contains(&format!("\nprocess_id:{pid}\r"))
        })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_server_is_gone_with_its_directory() {
        let server = RedisServer::start();
        let (url, dir) = (server.url(), server.dir.path().to_owned());
        assert!(dir.exists());
        drop(server);
        assert!(!dir.exists());
        redis::Client::open(url).unwrap().get_connection().map(drop).unwrap_err();
    }

    #[test]
    fn killed_server_boots_again_on_its_port_without_data() {
        let mut server = RedisServer::start();
        let () = server.cli("SET k v");
        server.kill();
        server.boot();
        assert!(!server.has("k"));
    }

    #[test]
    fn settings_reach_the_server() {
        let server = RedisServer::builder().config("maxmemory 3mb").password("secret").start();
        let memory: (String, String) = server.cli("CONFIG GET maxmemory");
        assert_eq!(memory.1, "3145728");
    }

    #[test]
    #[should_panic(expected = "LOCK_TESTS_REDIS_SERVER names /nowhere, which is not a file")]
    fn other_server_that_does_not_exist_is_named() {
        existing("/nowhere".into());
    }

    #[test]
    fn missing_program_and_bad_option_are_named() {
        let missing = RedisServer::builder().command(["/nowhere/redis-server"]).try_start();
        assert!(missing.unwrap_err().to_string().contains("/nowhere/redis-server cannot be run"));
        let refused = RedisServer::builder().config("no-such-option 1").try_start();
        assert!(refused.unwrap_err().to_string().contains("no-such-option"));
    }
}
