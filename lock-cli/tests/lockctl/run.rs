//! `run` and `wait`: the command, its lock, and signals.

use std::time::Instant;

use lock_testkit::{RedisServer, Signal, ms, send_signal};
use serde_json::Value;

use super::{finished, lockctl, output, section, until};

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
fn signal_reaches_the_command_and_the_lock_is_free_when_it_has_ended() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let holder = section(&server.url(), dir.path(), &[], "trap 'echo told; exit 3' TERM; ");
    assert!(server.has("lock:k"));
    send_signal(&holder, Signal::TERM);
    let (status, told, _) = finished(holder);
    assert_eq!((status, told.as_str()), (3, "told\n"));
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// What the command started goes on for a moment after a signal, and the lock is kept meanwhile.
#[test]
fn lock_is_kept_until_all_that_the_command_started_has_ended() {
    let server = RedisServer::start();
    let slow =
        "(trap 'sleep 0.3; echo late >late; exit' TERM; : >started; while :; do sleep 0.02; done)";
    let stubborn = "(trap '' TERM; : >started; while :; do sleep 0.02; done)";
    for (child, is_killed) in [(slow, false), (stubborn, true)] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("{child} & wait");
        let words = ["run", "--key", "k", "--grace", "1s", "--", "sh", "-c", &script];
        let holder = lockctl(&server.url(), &words).current_dir(dir.path()).spawn().unwrap();
        until("the section begins", || dir.path().join("started").exists());
        let begun = Instant::now();
        send_signal(&holder, Signal::TERM);
        until("the lock is free", || !server.has("lock:k"));
        assert_eq!(dir.path().join("late").exists(), !is_killed);
        assert!(!is_killed || begun.elapsed() >= ms(1_000), "{:?}", begun.elapsed());
        assert_eq!(finished(holder).0, 128 + 15);
    }
}

/// The lock was taken while the command ran, and the command ended before that was noticed.
#[test]
fn lock_that_was_taken_from_a_command_that_ended_by_itself_has_its_own_status() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let script = ": >started; until [ -e end ]; do sleep 0.02; done";
    let words = ["run", "-k", "k", "--ttl", "1h", "--", "sh", "-c", script];
    let holder = lockctl(&server.url(), &words).current_dir(dir.path()).spawn().unwrap();
    until("the section begins", || dir.path().join("started").exists());
    let () = server.cli("SET lock:k another PX 60000");
    std::fs::write(dir.path().join("end"), "").unwrap();
    let (status, _, errors) = finished(holder);
    assert!(status == 74 && errors.contains("with status 0"), "{status}: {errors}");
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
