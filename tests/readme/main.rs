//! The README's programs are the examples, letter by letter, and every example does what it says.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod promises;
mod tables;
mod valgrind;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lock_testkit::{ChildProcess, RedisServer, Signal};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "run `cargo build --workspace --examples` first");
    path
}

fn run(name: &str) -> String {
    let server = RedisServer::start();
    let output = Command::new(example(name)).env("REDIS_URL", server.url()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed: {text}{errors}");
    let left: Vec<String> = server.cli("KEYS lock:*");
    let locks: Vec<_> = left.iter().filter(|key| !key.contains("{0}")).collect();
    assert!(name == "scheduled_job" || locks.is_empty(), "{name} leaves {locks:?}");
    text
}

/// The program of an example, without the question it answers.
fn program(name: &str) -> String {
    let file = std::fs::read_to_string(root().join("examples").join(format!("{name}.rs"))).unwrap();
    let lines: Vec<_> = file.lines().skip_while(|line| line.starts_with("//!")).skip(1).collect();
    lines.join("\n")
}

#[test]
fn the_readme_shows_the_examples_as_they_are() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    for name in ["annotate", "layer", "guard"] {
        let program = program(name);
        assert!(readme.contains(&program), "README.md does not show examples/{name}.rs");
        let lines = program.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= 20, "examples/{name}.rs has {lines} lines");
    }
}

#[test]
fn every_example_is_run_here() {
    let here = include_str!("main.rs");
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".rs") {
            assert!(here.contains(&format!("(\"{name}\")")), "examples/{name}.rs is never run");
        }
    }
}

#[test]
fn annotate_orders_twice_one_after_the_other() {
    assert_eq!(run("annotate"), "ordered for user 7, ordered for user 7\n");
}

#[test]
fn guard_takes_and_releases() {
    let text = run("guard");
    assert!(text.contains("released: InTime"), "{text}");
    assert!(text.contains("computed under the lock: 4"), "{text}");
}

#[test]
fn scheduled_job_runs_on_one_instance() {
    assert_eq!(run("scheduled_job"), "instance 1: report written\nanother instance runs it\n");
}

#[test]
fn a_scheduled_job_does_not_mistake_an_outage_for_another_instance() {
    let gone = "redis://127.0.0.1:1/";
    let output = Command::new(example("scheduled_job")).env("REDIS_URL", gone).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot connect"));
}

#[test]
fn fencing_refuses_the_late_writer() {
    let text = run("fencing");
    assert!(text.contains("the second writes: Ok(())"), "{text}");
    assert!(text.contains("the first wakes up and writes: Err("), "{text}");
}

#[test]
fn shutdown_answers_waiters_at_once_and_is_clean() {
    let server = RedisServer::start();
    let start = || {
        let mut program = Command::new(example("shutdown"));
        let program = ChildProcess::spawn(program.env("REDIS_URL", server.url())).unwrap();
        let address = program.line().rsplit_once('/').unwrap().1.to_owned();
        (program, address)
    };
    let import = |address: &str| {
        let address = address.to_owned();
        std::thread::spawn(move || post(&address, "/import"))
    };
    let terminate = |program: ChildProcess| {
        program.signal(Signal::TERM);
        assert_eq!(&*program.line(), "clean: true");
        assert!(program.wait().success());
    };
    let ((one, holding), (other, waiting)) = (start(), start());
    let holder = import(&holding);
    until(|| server.has("lock:import"));
    let waiter = import(&waiting);
    until(|| server.queued("import") == 1);
    terminate(other);
    let answer = waiter.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(server.has("lock:import") && !holder.is_finished());
    terminate(one);
    let answer = holder.join().unwrap();
    assert!(answer.contains("stopped before file"), "{answer}");
    assert!(!server.has("lock:import"));
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.map(|word| word.strip_suffix("_bucket").unwrap_or(word));
    let ends = ["_total", "_seconds", "_commands", "_pending"];
    let is_metric = |word: &&str| {
        word.starts_with("lock_")
            && (ends.iter().any(|end| word.ends_with(end))
                || matches!(*word, "lock_held" | "lock_waiting"))
    };
    words.filter(is_metric).collect()
}

#[test]
fn observability_exports_each_metric_that_the_documentation_names() {
    /// Nothing is lost, and no release is sent again.
    const ABSENT: [&str; 2] = ["lock_losses_total", "lock_release_retries_total"];
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let docs = read("lock-core/src/lib.rs");
    let documented = metrics_in(&docs);
    for file in ["alerts.yml", "dashboard.json"] {
        let text = read(&format!("examples/observability/{file}"));
        let unknown: Vec<_> = metrics_in(&text).difference(&documented).copied().collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
    let dashboard = read("examples/observability/dashboard.json");
    assert_eq!(metrics_in(&dashboard), documented, "the dashboard shows all of them");

    let server = RedisServer::start();
    let mut program = Command::new(example("observability"));
    let program = ChildProcess::spawn(program.env("REDIS_URL", server.url())).unwrap();
    let address = program.line().rsplit_once('/').unwrap().1.to_owned();
    assert!(post(&address, "/orders/7").ends_with("paid"));
    let text = request(&address, "GET", "/metrics");
    let exported = metrics_in(&text);
    let missing: Vec<_> =
        documented.difference(&exported).filter(|name| !ABSENT.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {text}");
    let unknown: Vec<_> = exported.difference(&documented).collect();
    assert!(unknown.is_empty(), "{unknown:?} of {text}");
    assert!(text.contains("lock_acquisitions_total{key=\"order:<id>\",outcome=\"acquired\"} 1"));
}

#[test]
fn testing_your_code_needs_no_redis() {
    let text = run("testing_your_code");
    assert!(text.contains("held by another owner") && text.contains("afterwards: Ok(7)"), "{text}");
}

#[test]
fn configuration_reads_a_file_and_the_environment() {
    let server = RedisServer::start();
    let program = || {
        let mut program = Command::new(example("configuration"));
        program.env("REDIS_URL", server.url());
        program
    };
    let text = run("configuration");
    assert!(text.contains("ttl: Some(15s), wait: Some(UpTo(2s))"), "{text}");
    let output = program().env("SHOP_LOCK__OPTIONS__WAIT", "none").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("wait: Some(None)"), "{output:?}");
    let output = program().env("SHOP_LOCK__OPTIONS__TTL", "1ms").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("`ttl` is 1ms"), "{said}");
}

#[test]
fn layer_answers() {
    let server = RedisServer::start();
    let mut child = Command::new(example("layer"))
        .env("REDIS_URL", server.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    let answer = post(address.strip_prefix("http://").unwrap_or(&address), "/orders/7");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("ordered for user 7"), "{answer}");
}

fn until(reached: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never came to this");
}

fn post(address: &str, path: &str) -> String {
    request(address, "POST", path)
}

fn request(address: &str, method: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}
