//! Signals that a terminal sends, and those that are ignored.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use lock_testkit::{RedisServer, Signal, send_signal};
use rustix::process::{Pid, kill_process};
use rustix::pty::OpenptFlags;

use super::{finished, until};

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
