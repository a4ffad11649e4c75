//! The demo, run as a program.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::LIMIT;

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.args(arguments).env_remove("DATABASE_URL").env_remove("REDIS_URL");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_is_one_object_and_the_locked_modes_keep_the_promise() {
    // Duplicates in the mode without a lock are a matter of chance.
    assert!((0..10).any(|_| duplicates_without_a_lock() > 0), "no duplicates in ten runs");
}

/// Runs the demo and checks its report. Returns how many users have more than one order in the mode
/// without a lock.
fn duplicates_without_a_lock() -> i64 {
    let Output { status, stdout, stderr } =
        demo(&["--json", "--users", "40", "--duplicates", "4", "--instances", "2"])
            .output()
            .unwrap();
    assert!(status.success(), "{}", text(&stderr));

    let report: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(report["instances"], 2);
    assert!(report["redis"].as_str().unwrap().starts_with("redis://127.0.0.1:"));
    let modes = report["modes"].as_array().unwrap();
    let names: Vec<_> = modes.iter().map(|mode| mode["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "macro", "layer"]);
    for mode in modes {
        assert_eq!(mode["requests"], 160);
        assert_eq!(mode["errors"], 0);
        for number in ["rps", "p50_ms", "p99_ms"] {
            assert!(mode[number].as_f64().unwrap() > 0.0, "{number}: {mode}");
        }
    }
    for mode in &modes[1..] {
        assert_eq!(mode["orders"], 40);
        assert_eq!(mode["users_with_duplicates"], 0);
        assert_eq!(mode["oversold"], 0);
        assert_eq!(mode["stock_left"], 0);
    }
    modes[0]["users_with_duplicates"].as_i64().unwrap()
}

#[test]
fn the_table_has_a_row_for_each_mode() {
    let Output { status, stdout, .. } = demo(&["--users", "20"]).output().unwrap();
    assert!(status.success());
    let table = text(&stdout);
    for word in ["none", "macro", "layer", "oversold", "errors", "p99"] {
        assert!(table.contains(word), "{word}:\n{table}");
    }
}

#[test]
fn a_missing_redis_server_is_named_with_what_to_do() {
    let Output { status, stdout, stderr } = demo(&[]).env("PATH", "").output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(stdout.is_empty());
    let stderr = text(&stderr);
    assert!(stderr.contains("redis-server is not installed"), "{stderr}");
    assert!(stderr.contains("--redis URL"), "{stderr}");
}

#[test]
fn a_redis_that_is_not_there_ends_the_run() {
    let Output { status, stderr, .. } =
        demo(&["--redis", "redis://127.0.0.1:1/"]).output().unwrap();
    assert_eq!(status.code(), Some(1));
    let stderr = text(&stderr);
    assert!(stderr.contains("redis cannot be used"), "{stderr}");
}

#[test]
fn sizes_that_make_no_sense_are_usage_errors() {
    for arguments in [["--users", "0"], ["--duplicates", "0"], ["--instances", "0"]] {
        assert_eq!(demo(&arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}

/// A demo that stays, and the addresses of its processes.
struct Staying {
    demo: Child,
    addresses: Vec<String>,
    /// Ends when the last process that holds the other end of its standard error does.
    all_gone: Receiver<()>,
    /// What is killed cannot delete its files.
    _temporary: TempDir,
}

impl Staying {
    fn start() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut demo = demo(&["--stay", "--json", "--users", "1", "--instances", "2"])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();

        let mut report = String::new();
        BufReader::new(demo.stdout.as_mut().unwrap()).read_line(&mut report).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let mut addresses = vec![report["redis"].as_str().unwrap().to_owned()];

        let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines();
        while addresses.len() < 3 {
            let line = lines.next().expect("the demo has ended").unwrap();
            addresses.extend(line.trim().starts_with("http://").then(|| line.trim().to_owned()));
        }
        let (gone, all_gone) = mpsc::channel();
        std::thread::spawn(move || {
            lines.for_each(drop);
            drop(gone);
        });
        Self { demo, addresses, all_gone, _temporary: temporary }
    }

    fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.demo), signal).unwrap();
        self.demo.wait().unwrap();
        assert_eq!(self.all_gone.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
        for address in &self.addresses {
            let address = address.split('/').nth(2).unwrap();
            TcpStream::connect(address).expect_err("the port still accepts connections");
        }
    }
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    Staying::start().end(Signal::INT);
}

#[test]
fn a_demo_that_is_killed_leaves_no_process_behind() {
    Staying::start().end(Signal::KILL);
}
