//! A Redis server of the test's own, which can be frozen and killed.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

pub(crate) struct RedisServer {
    port: u16,
    process: Child,
    /// Kept open, so that the server can go on writing its log.
    _log: BufReader<ChildStdout>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        // Between the choice of a port and its use somebody else may take it.
        (0..10).find_map(|_| Self::try_start()).expect("no redis-server would start")
    }

    fn try_start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server should be installed");
        let mut log = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            if line.contains("Ready to accept connections") {
                return Some(Self { port, process, _log: log });
            }
            line.clear();
        }
        process.wait().unwrap();
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Connections stay open, and nothing is answered until [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
