//! The demo behind a real nginx.
//!
//! `cargo test` leaves it out, as it needs a program that nothing else here does: `make test-nginx`.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const USERS: u32 = 100;
const PRESSES: u32 = 4;

/// Ends with the test, and with it all that it started.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).ok();
        self.0.wait().ok();
    }
}

/// The head of the answer to a look at the page, in lower case.
fn look(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
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
    let mut told = BufReader::new(demo.0.stderr.take().unwrap()).lines();

    let mut report = String::new();
    BufReader::new(demo.0.stdout.as_mut().unwrap()).read_line(&mut report).unwrap();
    if report.is_empty() {
        panic!("{:?}", told.collect::<Vec<_>>());
    }
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

    // The one address that is told is nginx's, and both instances are behind it.
    let address =
        told.find_map(|line| line.unwrap().trim().strip_prefix("http://").map(str::to_owned));
    let address = address.expect("the demo stays, and says where");
    let address = address.trim_end_matches('/');
    let mut instances = HashSet::new();
    for _ in 0..20 {
        let head = look(address);
        assert!(head.contains("server: nginx"), "{head}");
        let header = format!("{}: ", seckill::routes::INSTANCE_HEADER);
        let instance = head.lines().find_map(|line| line.strip_prefix(header.as_str()));
        instances.insert(instance.unwrap().to_owned());
    }
    assert_eq!(instances.len(), 2, "{instances:?}");
}
