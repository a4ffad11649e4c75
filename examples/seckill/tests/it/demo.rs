//! The demo, run as a program.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

use lock_testkit::Quorum;
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

/// Runs the demo with damage to such servers, and checks its report. The damage is done twice, once
/// in each of the locked modes. Users press again until they have an answer. They come in four
/// rounds of half a second, and the damage is done in the first one. Returns the URLs and what the
/// demo told.
fn damaged(redis_mode: &str) -> (String, String) {
    let Output { status, stdout, stderr } =
        demo(&["--json", "--chaos", "--users", "200", "--payment-ms", "500"])
            .args(["--redis-mode", redis_mode])
            .output()
            .unwrap();
    let stderr = text(&stderr);
    assert!(status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&stdout).unwrap();
    for mode in &report["modes"].as_array().unwrap()[1..] {
        assert_eq!(mode["orders"], 200);
        assert_eq!(mode["users_with_duplicates"], 0);
        assert_eq!(mode["oversold"], 0);
    }
    (report["redis"].as_str().unwrap().to_owned(), stderr)
}

/// Some users come while there is no master.
#[test]
fn killed_masters_cost_time_but_no_user_has_two_orders() {
    let (url, told) = damaged("sentinel");
    assert!(url.starts_with("redis+sentinel://127.0.0.1:"));
    assert_eq!(told.matches("killed the master on port").count(), 2, "{told}");
    assert!(told.contains("repeated after a 503"), "no user noticed it: no test: {told}");
}

#[test]
fn slots_that_move_and_killed_nodes_give_no_user_two_orders() {
    let (url, told) = damaged("cluster");
    assert!(url.starts_with("redis+cluster://127.0.0.1:"));
    assert_eq!(told.matches("moved slot").count(), 2, "{told}");
    assert_eq!(told.matches("killed the master on port").count(), 2, "{told}");
}

/// Two of five are lost in the end.
#[test]
fn killed_members_of_a_quorum_give_no_user_two_orders() {
    let (urls, told) = damaged("quorum");
    assert_eq!(urls.matches("redis://127.0.0.1:").count(), 5, "{urls}");
    assert!(told.contains("4 of 5 are left") && told.contains("3 of 5 are left"), "{told}");
    for mode in ["macro", "layer"] {
        let mut lines = told.lines().filter(|line| line.trim_start().starts_with(mode));
        let first = lines.next().unwrap();
        assert!(first.contains("killed the member"), "it was over before the damage: {told}");
    }
}

#[test]
fn given_servers_may_be_a_quorum() {
    let quorum = Quorum::of_age(3, "seckill");
    let urls = quorum.urls().join(" ");
    let Output { status, stdout, stderr } =
        demo(&["--json", "--users", "20", "--redis", &urls]).output().unwrap();
    assert!(status.success(), "{}", text(&stderr));
    let report: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(report["redis"].as_str().unwrap(), urls);
    assert!(quorum.servers().all(|server| server.has("seckill:{0}:born")));
}

#[test]
fn damage_to_a_single_server_is_a_usage_error_that_says_what_to_add() {
    for arguments in [&["--chaos"][..], &["--chaos", "--redis", "redis://127.0.0.1:1/"]] {
        let Output { status, stderr, .. } = demo(arguments).output().unwrap();
        assert_eq!(status.code(), Some(2));
        let stderr = text(&stderr);
        assert!(stderr.contains("--redis-mode sentinel, cluster or quorum"), "{stderr}");
    }
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

/// It has to kill the master, and is stopped at once: the sentinels take seconds to replace it.
#[test]
fn servers_that_recover_from_damage_end_with_the_demo() {
    let mut servers = Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(["redis", "sentinel"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(servers.stdout.take().unwrap()).lines();
    let url = lines.next().unwrap().unwrap();
    assert!(url.starts_with("redis+sentinel://"), "{url}");
    let mut input = servers.stdin.take().unwrap();
    input.write_all(b"damage\n").unwrap();
    drop(input);
    let began = Instant::now();
    assert!(servers.wait().unwrap().success());
    assert_eq!(lines.next().map(Result::unwrap), None, "it waited for the new master");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}
