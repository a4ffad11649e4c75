//! The demo behind a real nginx.
//!
//! `cargo test` leaves it out because no other test needs nginx: run `make test-nginx`.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const USERS: u32 = 100;
const PRESSES: u32 = 4;
/// It takes a few seconds, and many times as long on a machine that has much else to do.
const LONGEST_RUN: Duration = Duration::from_secs(120);
/// The page is there at once, and so is the end.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Ends with the test, and with it all that it started.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).ok();
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed() < AT_ONCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What is written to `pipe`, line by line, until its end.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may be gone.
        BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// The head of the answer to a look at `path`, in lower case.
fn look(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(AT_ONCE)).unwrap();
    let host = "host: localhost\r\nconnection: close";
    write!(stream, "GET {path} HTTP/1.1\r\n{host}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    text.split("\r\n\r\n").next().unwrap().to_owned()
}

#[test]
fn nginx_in_front_changes_nothing() {
    let (users, presses) = (USERS.to_string(), PRESSES.to_string());
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    demo.args(["--nginx", "--json", "--stay", "--instances", "2"])
        .args(["--users", &users, "--duplicates", &presses])
        .env_remove("DATABASE_URL")
        .env_remove("REDIS_URL")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut demo = Demo(demo.spawn().unwrap());
    let (said, told) = (lines(demo.0.stdout.take().unwrap()), lines(demo.0.stderr.take().unwrap()));
    let report = said.recv_timeout(LONGEST_RUN).unwrap_or_else(|error| {
        // What it says last may still be on its way.
        let last = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(1)).ok());
        panic!("no report: {error}: {:?}", last.collect::<Vec<_>>());
    });
    let report: Value = serde_json::from_str(&report).unwrap();
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 3);
    for mode in modes {
        assert_eq!(mode["requests"], USERS * PRESSES);
        assert_eq!(mode["errors"], 0, "{mode}");
        if mode["mode"] != "none" {
            assert_eq!(mode["orders"], USERS, "{mode}");
            assert_eq!(mode["users_with_duplicates"], 0, "{mode}");
            assert_eq!(mode["oversold"], 0, "{mode}");
        }
    }

    // The demo prints only nginx's address, and both instances are behind it.
    let mut told = std::iter::from_fn(|| told.recv_timeout(AT_ONCE).ok());
    let address = told.find_map(|line| line.trim().strip_prefix("http://").map(str::to_owned));
    let address = address.expect("the demo stays, and says where");
    let address = address.trim_end_matches('/');
    let mut instances = HashSet::new();
    for _ in 0..20 {
        let head = look(address, "/");
        assert!(head.contains("server: nginx"), "{head}");
        let header = format!("{}: ", seckill::routes::INSTANCE_HEADER);
        let instance = head.lines().find_map(|line| line.strip_prefix(header.as_str()));
        instances.insert(instance.unwrap().to_owned());
    }
    assert_eq!(instances.len(), 2, "{instances:?}");
    // The console is for the machine itself, and not for nginx's clients.
    for path in ["/locks", "/locks/events", "//locks", "/x/../locks"] {
        let head = look(address, path);
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
    }
}
