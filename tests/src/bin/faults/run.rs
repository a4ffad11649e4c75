//! Runs one suite: tells how far it is, and leaves nothing of it behind when it is interrupted.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal as Kill, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

/// How often a progress line is printed for a suite that takes long.
const TOLD: Duration = Duration::from_secs(30);
/// How long processes may take to end after SIGTERM. Servers end at once unless they are stopped.
const GRACE: Duration = Duration::from_secs(3);

/// How long building a suite may take.
const BUILDING: Duration = Duration::from_secs(1_200);

pub(crate) enum Ended {
    Well,
    Badly,
    Interrupted,
}

/// Where the suite that runs stands among the others.
pub(crate) struct Progress {
    begin: Instant,
    /// How long each is expected to take.
    expected: Vec<u64>,
    number: usize,
    name: &'static str,
    since: Instant,
}

impl Progress {
    pub(crate) fn new(expected: impl Iterator<Item = u64>) -> Self {
        let now = Instant::now();
        Self { begin: now, expected: expected.collect(), number: 0, name: "", since: now }
    }

    pub(crate) fn begin(&mut self, name: &'static str, about: &str) {
        (self.number, self.name, self.since) = (self.number + 1, name, Instant::now());
        let seconds = self.expected[self.number - 1];
        let of = self.expected.len();
        self.tell(&format!("suite {} of {of}: {name} ({about}), about {seconds} s", self.number));
    }

    pub(crate) fn end(&self, passed: bool) {
        let verdict = if passed { "passed" } else { "FAILED" };
        self.tell(&format!("{} {verdict} after {} s", self.name, self.since.elapsed().as_secs()));
    }

    /// How long it may take on a slow machine.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.expected[self.number - 1] * 4 + 120)
    }

    fn tell_where(&self) {
        let (spent, expected) = (self.since.elapsed().as_secs(), self.expected[self.number - 1]);
        let later: u64 = self.expected[self.number..].iter().sum();
        let left = expected.saturating_sub(spent) + later;
        self.tell(&format!(
            "{} runs for {spent} s of about {expected}; about {left} s to the end of all",
            self.name
        ));
    }

    /// From now on time is spent on the suites.
    pub(crate) fn all_is_built(&mut self) {
        let expected: u64 = self.expected.iter().sum();
        self.tell(&format!("all is built; about {expected} s to the end of all"));
        self.begin = Instant::now();
    }

    pub(crate) fn tell(&self, words: &str) {
        eprintln!("[{:4} s] {words}", self.begin.elapsed().as_secs());
    }
}

/// A directory for what a suite leaves, which goes with all that is in it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(root: &Path) -> Self {
        let dir = root.join(format!("target/tmp/faults-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Hears that the programme is to end, also between two suites.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn new() -> Self {
        let of = |kind| signal(kind).unwrap();
        Self {
            interrupt: of(SignalKind::interrupt()),
            terminate: of(SignalKind::terminate()),
            hang_up: of(SignalKind::hangup()),
        }
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// Runs it, no longer than it may take if that is known, in a process group of its own, so that all
/// that it starts can be ended with it.
pub(crate) async fn run(
    mut command: Command,
    progress: Option<&Progress>,
    signals: &mut Signals,
) -> Ended {
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().unwrap();
    let limit = progress.map_or(BUILDING, Progress::limit);
    let mut hangs = pin!(sleep(limit));
    loop {
        tokio::select! {
            status = child.wait() => {
                return if status.unwrap().success() { Ended::Well } else { Ended::Badly };
            }
            () = sleep(TOLD) => {
                if let Some(progress) = progress {
                    progress.tell_where();
                }
            }
            () = &mut hangs => {
                eprintln!("not done after {} s: ended", limit.as_secs());
                end(&mut child).await;
                return Ended::Badly;
            }
            () = signals.any() => break,
        }
    }
    end(&mut child).await;
    Ended::Interrupted
}

async fn end(child: &mut Child) {
    let Some(group) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).unwrap())) else {
        return;
    };
    // Some may be gone already, and all may.
    let _told = kill_process_group(group, Kill::TERM);
    // The suite `mutants` ends what it started in other groups.
    let _ended = timeout(GRACE, child.wait()).await;
    sleep(GRACE / 10).await;
    let _killed = kill_process_group(group, Kill::KILL);
}
