//! The README's programs are the examples, letter by letter, and every example does what it says.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod install;
mod promises;
mod tables;
mod valgrind;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lock_testkit::{ChildProcess, Quorum, RedisCluster, RedisServer, Sentinels, Signal};

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
    let ends = ["_total", "_seconds", "_commands", "_pending", "_votes", "_up"];
    let is_metric = |word: &&str| {
        word.starts_with("lock_")
            && (ends.iter().any(|end| word.ends_with(end))
                || matches!(*word, "lock_held" | "lock_waiting"))
    };
    words.filter(is_metric).collect()
}

/// Those of clusters and quorums on such servers.
#[tokio::test]
async fn observability_exports_each_metric_that_the_documentation_names() {
    /// No release is sent again, no server is away, and no replica is asked.
    const ABSENT: [&str; 3] = [
        "lock_release_retries_total",
        "lock_store_outage_seconds",
        "lock_store_replica_acks_missed_total",
    ];
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let docs = read("lock-core/src/lib.rs");
    let documented = metrics_in(&docs);
    let alerts = "examples/observability/alerts.yml";
    for file in [alerts, "examples/observability/dashboard.json", "tests/alerts/cases.yml"] {
        let text = read(file);
        let unknown: Vec<_> = metrics_in(&text).difference(&documented).copied().collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
    let dashboard = read("examples/observability/dashboard.json");
    assert_eq!(metrics_in(&dashboard), documented, "the dashboard shows all of them");

    let server = RedisServer::start();
    let cluster = RedisCluster::start().await;
    let quorum = Quorum::of_age(3, "lock");
    let mut text = String::new();
    for url in [server.url(), cluster.url(), quorum.urls().join(" ")] {
        let mut program = Command::new(example("observability"));
        let program = ChildProcess::spawn(program.env("REDIS_URL", url)).unwrap();
        let address = program.line().rsplit_once('/').unwrap().1.to_owned();
        assert!(post(&address, "/orders/7").ends_with("paid"));
        text.push_str(&request(&address, "GET", "/metrics"));
    }
    let exported = metrics_in(&text);
    let missing: Vec<_> =
        documented.difference(&exported).filter(|name| !ABSENT.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {text}");
    let unknown: Vec<_> = exported.difference(&documented).collect();
    assert!(unknown.is_empty(), "{unknown:?} of {text}");
    assert!(text.contains("lock_acquisitions_total{key=\"order:<id>\",outcome=\"acquired\"} 1"));
}

/// A panel that has no data says why that may be, and one of a histogram has data whether the
/// exporter keeps quantiles or buckets.
#[test]
fn each_panel_of_the_dashboard_says_what_is_missing_and_reads_both_kinds_of_histograms() {
    let path = root().join("examples/observability/dashboard.json");
    let text = std::fs::read_to_string(path).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (panels, mut histograms) = (dashboard["panels"].as_array().unwrap(), 0);
    for panel in panels {
        let said = panel["fieldConfig"]["defaults"]["noValue"].as_str();
        assert!(said.is_some_and(|said| said.len() > 10), "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            assert_eq!(query.contains("{quantile="), query.contains("_bucket["), "{query}");
            histograms += usize::from(query.contains("_bucket["));
        }
    }
    assert!(panels.len() >= 10 && histograms >= 6, "{} panels, {histograms}", panels.len());
}

/// `REDIS_URL` holds what `connect` takes.
#[tokio::test]
async fn examples_run_on_sentinels_a_cluster_and_a_quorum() {
    let group = Sentinels::start(1).await;
    let cluster = RedisCluster::start().await;
    let quorum = Quorum::of_age(3, "lock");
    (0..quorum.len()).for_each(|member| quorum.vouch(member, "shop"));
    for url in [group.url(), cluster.url(), quorum.urls().join(" ")] {
        for (name, part) in
            [("annotate", "ordered for user 7, "), ("configuration", "locked: true")]
        {
            let output = Command::new(example(name)).env("REDIS_URL", &url).output().unwrap();
            let (told, errors) = (&output.stdout, &output.stderr);
            let (told, errors) = (String::from_utf8_lossy(told), String::from_utf8_lossy(errors));
            assert!(told.contains(part), "{name} on {url}: {told}{errors}");
        }
    }
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
fn json_body_key_is_read_once_and_before_the_lock_is_taken() {
    let server = RedisServer::start();
    let mut program = Command::new(example("json_body_key"));
    let program = ChildProcess::spawn(program.env("REDIS_URL", server.url())).unwrap();
    let address = program.line().rsplit_once('/').unwrap().1.to_owned();
    let to = |path: &str, body: &str| send(&address, "POST", path, body);
    let payment = |account| format!("{{\"account\":{account},\"cents\":300}}");
    assert!(to("/payments", &payment(7)).ends_with("paid 300 to account 7"));
    assert!(to("/refunds", &payment(7)).ends_with("refunded 300 to account 7"));
    let () = server.cli("SET lock:account:7 other PX 60000");
    for path in ["/payments", "/refunds"] {
        let answer = to(path, &payment(7));
        assert!(answer.starts_with("HTTP/1.1 409"), "{path}: {answer}");
        let answer = to(path, &payment(8));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let answer = to("/payments", "{\"cents\":300}");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // By one byte, so that the server has read all of it when it refuses.
    let mut long = payment(7);
    long.push_str(&" ".repeat((2 << 20) + 1 - long.len()));
    assert!(to("/payments", &long).starts_with("HTTP/1.1 413"));
}

#[test]
fn idempotency_key_pays_once_and_refuses_a_late_holder() {
    let text = run("idempotency_key");
    for line in [
        "twice at once: receipt 7:a-1, receipt 7:a-1",
        "the same key for more: the key was used for another payment",
        "while it is paused, its retry: receipt 7:a-2",
        "it wakes up: a newer holder of the lock has written: this write was refused",
        "left: 500",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in {text}");
    }
}

#[test]
fn the_guide_quotes_log_lines_and_spans_as_they_are() {
    let sources = sources_below("lock-core/src");
    let mut quoted = 0;
    for page in ["on_call.md", "observability.md"] {
        let path = root().join("lock-core/src/guide").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let tables = text.split("\n\n").filter(|table| {
            table.starts_with("| log line") || table.starts_with("| span or event")
        });
        for row in tables.flat_map(|table| table.lines().skip(2)) {
            let first = row.split('|').nth(1).unwrap();
            for line in first.split('`').skip(1).step_by(2).filter(|line| *line != "run") {
                assert!(sources.contains(line), "{page} quotes `{line}`, which is logged nowhere");
                quoted += 1;
            }
        }
    }
    assert!(quoted >= 10, "{quoted}: the tables were not read");
}

/// All files below a directory, one after the other.
fn sources_below(dir: &str) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(root().join(dir)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&sources_below(path.to_str().unwrap()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    all
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
    send(address, method, path, "")
}

fn send(address: &str, method: &str, path: &str, body: &str) -> String {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}
