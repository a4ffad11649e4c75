//! The binary on a real server: what scripts rely on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lock_testkit::{
    Quorum, RedisCluster, RedisServer, Sentinels, Signal, eventually, free_port, ms, send_signal,
};
use rustix::process::{Pid, kill_process};
use rustix::pty::OpenptFlags;
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
        (&["who", "k", "--namespace", "shop", "--no-namespace"], "cannot be used with"),
        (&["--namespace", "shop", "who", "k", "--no-namespace"], "cannot be used with"),
        (&["who", "lock:{0}:fence", "--no-namespace"], "record"),
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

/// A terminal, and the end of it that programs read from.
fn terminal() -> (File, File) {
    // A copy in a child process would keep the line open.
    let how = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = rustix::pty::openpt(how).unwrap();
    rustix::pty::grantpt(&terminal).unwrap();
    rustix::pty::unlockpt(&terminal).unwrap();
    let path = rustix::pty::ptsname(&terminal, Vec::new()).unwrap();
    let input = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    (File::from(terminal), input)
}

/// The leader of a session with this terminal, with no signal ignored, though the tests may run
/// with some ignored.
fn leader(input: File) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", "setsid", "--ctty"]);
    command.stdin(input).stdout(Stdio::piped());
    command
}

/// The lines that a child process writes to its standard output, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let told = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.map(Result::unwrap).try_for_each(|line| sender.send(line)));
    lines
}

/// The terminal sends an interrupt to lockctl and the command, a process sends it to lockctl alone.
#[test]
fn interrupt_reaches_a_command_on_a_terminal_once_by_key_or_by_kill() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let (mut terminal, input) = terminal();
    // A shell may lose a signal while it starts a command, so it waits by itself. Without a
    // terminal nothing keeps it waiting, and the limit ends it.
    let script = "ulimit -t 30; trap 'echo told' INT; trap 'exit 7' TERM; : >started; \
                  while :; do read line || :; done";
    let words = ["run", "-k", "k", "--", "sh", "-c", script];
    let mut with_terminal = leader(input);
    with_terminal.arg(env!("CARGO_BIN_EXE_lockctl")).args(words);
    with_terminal.env("LOCK_URL", server.url()).current_dir(dir.path());
    with_terminal.stderr(Stdio::piped());
    let mut holder = with_terminal.spawn().unwrap();
    let lines = lines_of(&mut holder);
    let line = || lines.recv_timeout(Duration::from_secs(10));
    until("the section begins", || dir.path().join("started").exists());
    send_signal(&holder, Signal::INT);
    assert_eq!(line().unwrap(), "told");
    // Closed at the end only: that hangs the line up.
    terminal.write_all(b"\x03").unwrap();
    assert_eq!(line().unwrap(), "told");
    // Behind a second copy of it, if there was one.
    send_signal(&holder, Signal::TERM);
    assert_eq!(line(), Err(RecvTimeoutError::Disconnected), "each came once");
    assert_eq!(finished(holder).0, 7);
}

/// The kernel tells the group in the foreground if the leader of the session ends, and the leader
/// alone if the connection is lost, as that of `ssh -t host lockctl run ..` is.
#[test]
fn hang_up_of_the_terminal_reaches_the_command_once() {
    for is_leader in [false, true] {
        let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
        let (terminal, input) = terminal();
        // It waits for lines that never come, since the terminal does not keep it waiting.
        let script = "ulimit -t 30; mkfifo lines; exec 3<>lines; trap 'echo told' HUP; \
                      trap 'exit 7' TERM; : >started; while :; do read line <&3 || :; done";
        let leads = format!("echo $$ >lockctl; exec {} \"$@\"", env!("CARGO_BIN_EXE_lockctl"));
        // A shell gives what runs beside it another standard input, unless told otherwise.
        let follows = format!(
            "exec 4<&0; {} \"$@\" <&4 & echo $! >lockctl; wait; wait",
            env!("CARGO_BIN_EXE_lockctl")
        );
        let shell = if is_leader { leads } else { follows };
        let mut leader = leader(input)
            .args(["sh", "-c", &shell, "sh", "run", "-k", "k", "--", "sh", "-c", script])
            .env("LOCK_URL", server.url())
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        let lines = lines_of(&mut leader);
        let line = || lines.recv_timeout(Duration::from_secs(10));
        until("the section begins", || dir.path().join("started").exists());
        let terminal = (!is_leader).then_some(terminal);
        if !is_leader {
            leader.kill().unwrap();
        }
        assert_eq!(line().unwrap(), "told", "leader: {is_leader}");
        // Behind a second copy of it, if there was one.
        let lockctl = std::fs::read_to_string(dir.path().join("lockctl")).unwrap();
        let lockctl = Pid::from_raw(lockctl.trim().parse().unwrap()).unwrap();
        kill_process(lockctl, Signal::TERM).unwrap();
        assert_eq!(line(), Err(RecvTimeoutError::Disconnected), "it came once");
        until("the lock is free", || !server.has("lock:k"));
        leader.wait().unwrap();
        drop(terminal);
    }
}

/// `nohup`, and a shell that starts a command in the background, ignore signals for it.
#[test]
fn signal_that_was_ignored_at_the_start_stays_ignored() {
    let (server, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let lockctl = env!("CARGO_BIN_EXE_lockctl");
    let script = format!(
        "trap '' HUP; exec {lockctl} run -k k -- sh -c ': >started; until [ -e end ]; do sleep 0.02; done'"
    );
    let mut nohup = Command::new("sh");
    nohup.args(["-c", &script]).env("LOCK_URL", server.url()).current_dir(dir.path());
    let nohup = nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let nohup = nohup.unwrap();
    until("the section begins", || dir.path().join("started").exists());
    send_signal(&nohup, Signal::HUP);
    std::fs::write(dir.path().join("end"), "").unwrap();
    let (status, _, errors) = finished(nohup);
    assert_eq!(status, 0, "{errors}");
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
fn watched_list_outlives_an_outage_and_ends_with_its_reader() {
    let mut server = RedisServer::start();
    let () = server.cli("SET lock:k jo");
    let mut watch = lockctl(&server.url(), &["ls", "--watch", "1", "--json"]).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("\"k\""));
    server.kill();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    assert!(errors.next().unwrap().unwrap().contains("error"));
    server.boot();
    let () = server.cli("SET lock:after jo");
    assert!(lines.any(|line| line.unwrap().contains("\"after\"")));
    drop((lines, errors));
    until("it ends", || watch.try_wait().unwrap().is_some());
}

/// Keys come from the users of services.
#[test]
fn control_characters_of_a_key_do_not_reach_the_terminal() {
    let server = RedisServer::start();
    let key = "evil\u{1b}[31m\nforged\u{202e}";
    let () = server.connect().command(&["SET", &format!("lock:{key}"), "jo"]).unwrap();
    for words in [&["ls"][..], &["who", key], &["release", key, "--force", "--yes"]] {
        let (status, told, errors) = output(&server.url(), words);
        assert_eq!(status, 0, "{errors}");
        assert!(told.contains("evil\\u{1b}[31m\\u{a}forged\\u{202e}"), "{told:?}");
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told:?}");
    }
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

/// A lock whose name in the store is its key. `ls` says that it cannot tell which keys are locks.
#[test]
fn lock_without_a_namespace_is_shown_taken_and_run_under() {
    let server = RedisServer::start();
    let url = server.url();
    let () = server.cli("SET mylock other PX 60000");
    let (status, told, _) = output(&url, &["who", "mylock", "--no-namespace"]);
    assert!(status == 0 && told.contains("a foreign value"), "{told}");
    let mut who = lockctl(&url, &["who", "mylock", "--no-namespace"]);
    let (status, told, errors) = finished(who.env("LOCK_NAMESPACE", "shop").spawn().unwrap());
    assert!(status == 0 && told.contains("a foreign value"), "{told}{errors}");
    let run = ["run", "--no-namespace", "-k", "mylock", "-w", "none", "--", "true"];
    assert_eq!(output(&url, &run).0, 75);
    let (status, told, errors) = output(&url, &["ls", "--no-namespace"]);
    assert!(status == 2 && told.is_empty() && errors.contains("cannot be listed"), "{errors}");
    let release = ["release", "mylock", "--force", "--yes", "--no-namespace"];
    assert_eq!(output(&url, &release).0, 0);
    assert!(!server.has("mylock"));
    assert_eq!(output(&url, &run).0, 0);
    let (status, told, errors) = output(&url, &["doctor", "--no-namespace"]);
    assert!(status == 0 && told.contains("by a message"), "{told}{errors}");
    assert_eq!(server.cli::<Vec<String>>("KEYS *"), ["lock:{0}:fence"]);
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
    for part in [
        "start-up check",
        "permissions",
        "namespace `lock`",
        "server",
        "latency",
        "by a message",
        "no append-only file",
        "its clock is",
    ] {
        assert!(told.contains(part) && !told.contains("risk"), "{told}");
    }
    // The documented permissions are without it, and locks do not depend on it.
    let () = server.cli("ACL SETUSER default -scan");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 0 && told.contains("note") && told.contains("lockctl ls"), "{told}");
    let () = server.cli("ACL SETUSER default +scan");
    let () = server.cli("CONFIG SET maxmemory 1gb");
    let () = server.cli("CONFIG SET maxmemory-policy allkeys-lru");
    let (status, told, _) = output("redis://127.0.0.1:1/", &["doctor", &url, "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let risk = lines.iter().find(|line| line["outcome"] == "risk").unwrap();
    assert!(status == 1 && risk["text"].as_str().unwrap().contains("allkeys-lru"), "{told}");
    let () = server.cli("CONFIG SET maxmemory 0");
    let () = server.cli("ACL SETUSER default -publish");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 1 && told.contains("waiters poll: then permit what the"), "{told}");
    let () = server.cli("ACL SETUSER default -evalsha -eval");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 69 && told.starts_with("failed") && told.contains("permission"), "{told}");
    assert!(told.contains("lacks, for `ACL SETUSER`: +eval +evalsha +publish\n"), "{told}");
}

/// The error of a script does not say on Redis 7.0 which command or key was refused.
#[test]
fn doctor_names_the_permissions_that_are_missing() {
    let server = RedisServer::start();
    let () = server.cli("ACL SETUSER jo on >pw ~shop:* &shop:* +@all -zadd -zcount");
    let url = server.url().replace("redis://", "redis://jo:pw@");
    let (status, told, _) = output(&url, &["doctor", "--namespace", "shop"]);
    assert!(status == 69 && told.contains("lacks, for `ACL SETUSER`: +zadd +zcount\n"), "{told}");
    let () = server.cli("ACL SETUSER jo +zadd +zcount");
    let (status, told, _) = output(&url, &["doctor", "--namespace", "shop"]);
    assert!(status == 0 && told.contains("all that locks of the namespace `shop` need"), "{told}");
    // Of another namespace than the user's.
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 69 && told.contains("lacks, for `ACL SETUSER`: ~lock:* &lock:*\n"), "{told}");
    assert!(told.contains("no lock of the namespace `lock`: "), "{told}");
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// With sentinels it shows the master of the moment, and what keeps them from a failover.
#[tokio::test]
async fn doctor_shows_the_master_that_sentinels_name() {
    let group = Sentinels::start(1).await;
    let url = group.url();
    let (status, told, errors) = output(&url, &["doctor"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{told}");
    let now = format!("/shop (now redis://127.0.0.1:{}) can keep locks", group.server(0).port());
    assert!(told.contains(&now), "{told}");
    group.proxy(2).turn_away(true);
    let () = group.server(1).cli("REPLICAOF NO ONE");
    eventually("it has no replica", Duration::from_secs(10), || {
        group.server(0).cli::<String>("INFO replication").contains("connected_slaves:0")
    })
    .await;
    let (status, told, _) = output(&url, &["doctor"]);
    assert_eq!(status, 1, "{told}");
    for part in ["is named by 2 of 3 sentinels only", "has no replica"] {
        assert!(told.contains(part), "{told}");
    }
    let (status, told, _) = output(&url.replace("/shop", "/shpo"), &["doctor"]);
    assert!(status == 69 && told.contains("no master `shpo`"), "{told}");
}

#[tokio::test]
async fn each_command_takes_sentinels_a_cluster_and_a_quorum() {
    let group = Sentinels::start(1).await;
    every_command(&group.url(), "/shop (now redis://127.0.0.1:");
    let cluster = RedisCluster::start().await;
    every_command(&cluster.url(), "redis+cluster://127.0.0.1:");
    let quorum = Quorum::of_age(3, "lock");
    every_command(&quorum.urls().join(" "), "quorum of 3: redis://127.0.0.1:");
    // A lock that was taken from its owner on a quorum stays taken for the rest of its ttl.
    until("nothing is left", || {
        group.server(0).leftovers().is_empty()
            && cluster.leftovers().is_empty()
            && quorum.leftovers().is_empty()
    });
}

/// Runs each command that needs a store on the one at `url`, which `shown` names.
fn every_command(url: &str, shown: &str) {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo $LOCK_KEY $LOCK_FENCE";
    let (status, told, errors) = output(url, &["run", "--key", "k", "--", "sh", "-c", script]);
    assert_eq!(status, 0, "{url}: {errors}");
    assert!(told.trim().strip_prefix("k ").unwrap().parse::<u64>().unwrap() > 0, "{url}: {told}");

    let holder = section(url, dir.path(), &["--ttl", "2s", "--grace", "200ms"], "");
    let (status, _, errors) = output(url, &["run", "-k", "k", "--wait", "none", "--", "true"]);
    assert_eq!(status, 75, "{url}: {errors}");
    let waiting = || lockctl(url, &["wait", "k", "--timeout", "1m"]).spawn().unwrap();
    let (waiter, who) = (waiting(), || {
        let (_, told, errors) = output(url, &["who", "k", "--json"]);
        serde_json::from_str::<Value>(&told).unwrap_or_else(|_| panic!("{url}: {errors}"))
    });
    until("it waits", || who()["waiting"] == 1);
    let client = who()["owner"]["client"].clone();
    assert!(client.as_str().is_some_and(|client| client.len() == 8), "{url}: {client}");
    let (status, told, errors) = output(url, &["ls", "--json"]);
    assert_eq!(status, 0, "{url}: {errors}");
    let listed: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!((&listed["key"], &listed["owner"]["client"]), (&Value::from("k"), &client), "{url}");

    let (status, told, errors) = output(url, &["release", "k", "--force", "--yes", "--json"]);
    assert!(status == 0 && told.contains("\"released\":true"), "{url}: {told}{errors}");
    assert_eq!(finished(holder).0, 74, "{url}: the command is stopped");
    let (status, _, errors) = finished(waiter);
    assert_eq!(status, 0, "{url}: {errors}");
    until("it is free", || output(url, &["who", "k"]).0 == 1);

    let (_, told, errors) = output(url, &["doctor"]);
    assert!(errors.is_empty() && !told.contains("failed"), "{url}: {told}{errors}");
    for part in
        [shown, "can keep locks", "permissions", "latency", "hand-off", "no append-only file"]
    {
        assert!(told.contains(part), "{url}: no {part} in {told}");
    }
}

/// A package installs them, and `man` finds them by their names.
#[test]
fn each_command_has_a_manual_page_of_its_own() {
    let (url, dir) = ("redis://user:secret@127.0.0.1:1/", tempfile::tempdir().unwrap());
    let dir = dir.path().join("man1");
    let (status, told, errors) = output(url, &["man", "--dir", dir.to_str().unwrap()]);
    assert_eq!((status, told.as_str(), errors.as_str()), (0, "", ""));
    let (_, main, _) = output(url, &["man"]);
    let commands: Vec<_> = main
        .lines()
        .filter_map(|line| line.strip_prefix("lockctl\\-")?.strip_suffix("(1)"))
        .map(|name| name.replace('\\', ""))
        .collect();
    for known in ["run", "ls", "who", "wait", "release", "doctor", "completions", "man"] {
        assert!(commands.iter().any(|name| name == known), "{known} in {commands:?}");
    }
    assert!(main.contains("75    another owner has the lock"), "{main}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1 + commands.len());
    assert_eq!(std::fs::read_to_string(dir.join("lockctl.1")).unwrap(), main);
    for name in &commands {
        let page = std::fs::read_to_string(dir.join(format!("lockctl-{name}.1"))).unwrap();
        assert_eq!(output(url, &["man", name]).1, page);
        for part in [
            &*format!("lockctl\\-{name} \\- "),
            "\\-\\-store",
            "LOCK_NAMESPACE",
            "\\fBlockctl\\fR(1)",
        ] {
            assert!(page.contains(part), "lockctl-{name}.1 has no {part}: {page}");
        }
        assert!(!page.contains("secret"), "{page}");
    }
    let run = std::fs::read_to_string(dir.join("lockctl-run.1")).unwrap();
    assert!(run.contains("LOCK_FENCE") && run.contains("busy\\-status"), "{run}");
    let (status, told, errors) = output(url, &["man", "lost"]);
    assert!(status == 2 && told.is_empty() && errors.contains("lost"), "{status} {errors}");
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
