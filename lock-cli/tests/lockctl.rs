//! The binary on a real server: what scripts rely on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lock_testkit::{RedisServer, Signal, free_port, ms, send_signal};
use serde_json::Value;

fn lockctl(url: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
    command.args(words).env("LOCK_URL", url).env("NO_COLOR", "1").env_remove("LOCK_NAMESPACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(url: &str, words: &[&str]) -> (i32, String, String) {
    finished(lockctl(url, words).spawn().unwrap())
}

/// Exit status, standard output and standard error.
fn finished(child: Child) -> (i32, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(ms(5));
    }
}

/// `sh -c script` under the lock `k`, once it has written the file `started`.
fn section(url: &str, dir: &Path, options: &[&str], script: &str) -> Child {
    let script = format!("{script}: >started; while :; do sleep 0.02; done");
    let words: Vec<_> = ["run", "--key", "k"].iter().chain(options).copied().collect();
    let mut command = lockctl(url, &words);
    let child = command.args(["--", "sh", "-c", &script]).current_dir(dir).spawn().unwrap();
    until("the section begins", || dir.join("started").exists());
    child
}

#[test]
fn command_gets_key_and_fence_and_its_status_is_passed_on() {
    let server = RedisServer::start();
    let url = server.url();
    let script = "echo $LOCK_KEY $LOCK_FENCE; exit 7";
    let mut last = 0;
    for _ in 0..2 {
        let (status, told, errors) =
            output(&url, &["run", "--key", "report:1", "--", "sh", "-c", script]);
        assert_eq!((status, errors.as_str()), (7, ""));
        let (key, fence) = told.trim().split_once(' ').unwrap();
        assert_eq!(key, "report:1");
        let fence: u64 = fence.parse().unwrap();
        assert!(fence > last, "fencing tokens grow: {last}, {fence}");
        last = fence;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    let (status, _, _) = output(&url, &["run", "--key", "k", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(status, 128 + 15);
}

#[test]
fn busy_lock_has_a_status_of_its_own_and_the_command_does_not_run() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = server.url();
    let holder = section(&url, dir.path(), &[], "");
    let touch = dir.path().join("ran");
    let touch = ["--", "touch", touch.to_str().unwrap()];
    for (options, status) in [(&["--wait", "none"][..], 75), (&["-w", "100ms", "-E", "9"], 9)] {
        let words: Vec<_> =
            ["run", "--key", "k"].iter().chain(options).chain(&touch).copied().collect();
        let (found, told, errors) = output(&url, &words);
        assert_eq!((found, told.as_str()), (status, ""), "{errors}");
        assert!(errors.starts_with("lockctl: ") && errors.contains("another owner"), "{errors}");
    }
    assert!(!dir.path().join("ran").exists());
    send_signal(&holder, Signal::TERM);
    assert_eq!(finished(holder).0, 128 + 15);
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

#[test]
fn failures_have_statuses_that_differ_and_say_what_to_do() {
    let (server, url) = (RedisServer::start(), format!("redis://127.0.0.1:{}/", free_port()));
    let run = ["run", "--key", "k", "--", "true"];
    let (status, _, errors) = output(&url, &run);
    assert!(status == 69 && errors.contains("cannot connect"), "{status} {errors}");
    let own = ["run", "--key", "k", "--store-status", "3", "--", "true"];
    assert_eq!(output(&url, &own).0, 3);
    let url = server.url();
    let (status, _, errors) = output(&url, &["run", "--key", "k", "--", "/no/such/program"]);
    assert!(status == 127 && errors.contains("/no/such/program"), "{status} {errors}");
    let (status, _, _) = output(&url, &["run", "--key", "k", "--", "/"]);
    assert_eq!(status, 126);
    for (words, problem) in [
        (&["run", "--key", "k"][..], "COMMAND"),
        (&["run", "--", "true"], "--key"),
        (&["run", "--key", "", "--", "true"], "key"),
        (&["run", "--key", "k", "--ttl", "1ms", "--", "true"], "100ms"),
        (&["run", "--key", "k", "--ttl", "soon", "--", "true"], "--ttl"),
        (&["who", "k", "--store", "localhost"], "--store"),
        (&["who", "k", "--namespace", "a:b"], "--namespace"),
        (&["release", "k"], "--force"),
        (&["lost"], "lost"),
        (&["ls", "--watch", "0"], "--watch"),
    ] {
        let (status, told, errors) = output(&url, words);
        assert!(status == 2 && told.is_empty(), "{words:?}: {status} {told}");
        assert!(errors.contains(problem), "{words:?}: {errors}");
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

#[test]
fn signal_reaches_the_command_and_the_lock_is_free_when_it_has_ended() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let holder = section(&server.url(), dir.path(), &[], "trap 'echo told; exit 3' TERM; ");
    assert!(server.has("lock:k"));
    send_signal(&holder, Signal::TERM);
    let (status, told, _) = finished(holder);
    assert_eq!((status, told.as_str()), (3, "told\n"));
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

#[test]
fn signal_ends_a_wait_and_leaves_no_place_in_the_queue() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = server.url();
    let holder = section(&url, dir.path(), &[], "");
    let waiters = [&["run", "-k", "k", "-w", "forever", "--", "true"][..], &["wait", "k"]];
    for words in waiters {
        let waiter = lockctl(&url, words).spawn().unwrap();
        until("it is queued", || server.queued("k") == 1);
        send_signal(&waiter, Signal::TERM);
        assert_eq!(finished(waiter).0, 128 + 15);
        assert_eq!(server.queued("k"), 0);
    }
    let waiter = lockctl(&url, &["wait", "k"]).spawn().unwrap();
    until("it is queued", || server.queued("k") == 1);
    assert_eq!(output(&url, &["wait", "k", "--timeout", "50ms"]).0, 75);
    send_signal(&holder, Signal::TERM);
    assert_eq!(finished(waiter).0, 0);
    finished(holder);
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The command must not go on while another owner has the lock.
#[test]
fn command_is_stopped_when_its_lock_is_lost() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = server.url();
    for (script, word) in [("", "stopped"), ("trap '' TERM; ", "killed")] {
        let options = ["--ttl", "1s", "--grace", "200ms"];
        let holder = section(&url, dir.path(), &options, script);
        std::fs::remove_file(dir.path().join("started")).unwrap();
        let (status, told, errors) = output(&url, &["release", "k", "--force", "--yes", "--json"]);
        assert_eq!(status, 0, "{errors}");
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["released"], true);
        let (status, _, errors) = finished(holder);
        assert_eq!(status, 74, "{errors}");
        assert!(errors.contains("lock was lost") && errors.contains(word), "{errors}");
    }
    let options = ["--max-hold", "300ms", "--lost-status", "5"];
    assert_eq!(finished(section(&url, dir.path(), &options, "")).0, 5);
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

#[test]
fn holders_are_listed_shown_and_taken_from_only_when_confirmed() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = server.url();
    assert_eq!(
        output(&url, &["ls"]),
        (0, "KEY  HOLDER  LEFT  WAITING\n".to_owned(), String::new())
    );
    assert_eq!(output(&url, &["who", "k"]), (1, "k is free\n".to_owned(), String::new()));
    let holder = section(&url, dir.path(), &[], "");
    let () = server.cli("SET lock:maintenance jo");
    let client = server.get("lock:k").unwrap()[..8].to_owned();

    let (status, told, _) = output(&url, &["ls"]);
    let lines: Vec<Vec<_>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((status, lines.len()), (0, 3), "{told}");
    assert_eq!(lines[1][..2], ["k", &client], "{told}");
    assert!(lines[1][2].ends_with('s') && lines[1][3] == "0", "{told}");
    assert!(told.lines().nth(2).unwrap().contains("a foreign value"), "{told}");
    let (_, told, _) = output(&url, &["ls", "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["owner"]["client"], client.as_str());
    assert!(lines[0]["owner"]["remaining_ms"].as_u64().unwrap() <= 10_000);
    assert!(lines[1]["owner"]["client"].is_null() && lines[1]["owner"]["remaining_ms"].is_null());

    let (status, told, _) = output(&url, &["who", "k"]);
    assert!(status == 0 && told.contains(&client) && told.contains("waiting  0"), "{told}");
    let (_, told, _) = output(&url, &["who", "k", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["held"], &told["key"]), (&Value::Bool(true), &Value::from("k")));

    // There is no terminal to ask on.
    let (status, _, errors) = output(&url, &["release", "k", "--force"]);
    assert!(status == 2 && errors.contains("--yes"), "{errors}");
    assert!(server.has("lock:k"), "nothing was done");
    let (status, told, _) = output(&url, &["release", "maintenance", "--force", "--yes"]);
    assert_eq!((status, told.as_str()), (0, "maintenance was taken from a foreign value\n"));
    assert!(!server.has("lock:maintenance"));
    send_signal(&holder, Signal::TERM);
    finished(holder);
}

#[test]
fn processes_exclude_each_other() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let count = dir.path().join("count");
    std::fs::write(&count, "0").unwrap();
    // Read, pause, write: without the lock, updates are lost.
    let script = "read n <count; sleep 0.05; echo $((n + 1)) >count";
    let words = ["run", "--key", "count", "--wait", "1m", "--", "sh", "-c", script];
    let start = |_| lockctl(&server.url(), &words).current_dir(dir.path()).spawn().unwrap();
    let running: Vec<_> = (0..8).map(start).collect();
    for child in running {
        let (status, _, errors) = finished(child);
        assert_eq!(status, 0, "{errors}");
    }
    assert_eq!(std::fs::read_to_string(&count).unwrap().trim(), "8");
}

#[test]
fn doctor_names_what_puts_locks_at_risk() {
    let server = RedisServer::start();
    let url = server.url();
    let (status, told, errors) = output(&url, &["doctor"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{told}");
    for part in ["start-up check", "server", "latency", "by a message"] {
        assert!(told.contains(part) && !told.contains("risk"), "{told}");
    }
    let () = server.cli("CONFIG SET maxmemory 1gb");
    let () = server.cli("CONFIG SET maxmemory-policy allkeys-lru");
    let (status, told, _) = output("redis://127.0.0.1:1/", &["doctor", &url, "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let risk = lines.iter().find(|line| line["outcome"] == "risk").unwrap();
    assert!(status == 1 && risk["text"].as_str().unwrap().contains("allkeys-lru"), "{told}");
    let () = server.cli("CONFIG SET maxmemory 0");
    let () = server.cli("ACL SETUSER default -publish");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 1 && told.contains("waiters poll"), "{told}");
    let () = server.cli("ACL SETUSER default -evalsha -eval");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 69 && told.starts_with("failed") && told.contains("permission"), "{told}");
}

#[test]
fn completions_and_manual_page_name_the_commands() {
    for words in [&["completions", "bash"][..], &["completions", "zsh"], &["man"], &["--help"]] {
        let (status, told, _) = output("redis://127.0.0.1:1/", words);
        assert!(status == 0 && told.contains("doctor") && told.contains("completions"), "{told}");
    }
    let (_, help, _) = output("redis://127.0.0.1:1/", &["run", "--help"]);
    assert!(help.contains("--busy-status") && !help.contains('\u{1b}'), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    let (_, help, _) = output("redis://user:secret@127.0.0.1:1/", &["run", "--help"]);
    assert!(!help.contains("secret"), "{help}");
}
