//! A worker process that the test started.

use std::ops::{Deref, DerefMut};
use std::process::Command;

use lock_testkit::{ChildProcess, Line, RedisServer};

/// A running worker. Ends on drop.
#[derive(Debug)]
pub(crate) struct Worker(ChildProcess);

/// How a holder ended.
#[derive(Debug)]
pub(crate) struct End {
    /// When it learned that its lease was lost, if it was.
    pub(crate) lost: Option<u128>,
    pub(crate) steps: usize,
    /// The outcome of its release, as the holder prints it.
    pub(crate) released: String,
}

impl Worker {
    pub(crate) fn start(server: &RedisServer, task: &str, args: &[String]) -> Self {
        Self::run(Self::command(task, &server.url()).args(args))
    }

    /// Starts one that waits for the lock of `key`, and holds it.
    pub(crate) fn holder(url: &str, key: &str, ttl: u64) -> Self {
        let args = [format!("ttl={ttl}"), format!("key={key}")];
        Self::run(Self::command("hold", url).args(args))
    }

    /// The same, when it holds: the number of its grant, too.
    pub(crate) fn hold(server: &RedisServer, key: &str, ttl: u64) -> (Self, u64) {
        let worker = Self::holder(&server.url(), key, ttl);
        let fence = worker.holds().1;
        (worker, fence)
    }

    /// Waits until a holder holds: when that was, and the number of its grant.
    pub(crate) fn holds(&self) -> (u128, u64) {
        let (at, event) = self.next();
        assert!(event.starts_with("held"), "{event}");
        (at, event.number("fence"))
    }

    /// Lets a holder release, if it has not lost its lease, and end.
    pub(crate) fn release(mut self) -> End {
        self.tell("stop");
        self.end()
    }

    /// How a holder ends by itself: whatever happened, it made no step after its lease.
    pub(crate) fn end(self) -> End {
        let (at, mut event) = self.next();
        let lost = event.starts_with("lost").then_some(at);
        if lost.is_some() {
            event = self.next().1;
        }
        assert!(event.starts_with("end"), "{event}");
        assert_eq!(event.number("late"), 0, "{event}");
        assert!(self.ends_well());
        let (_, released) = event.split_once("released=").unwrap();
        let steps = usize::try_from(event.number("steps")).unwrap();
        End { lost, steps, released: released.to_owned() }
    }

    /// What [`run`](Self::run) takes.
    pub(crate) fn command(task: &str, url: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lock-worker"));
        command.arg(task).arg(format!("url={url}"));
        command
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        Self(ChildProcess::spawn(command).unwrap())
    }

    /// The next event: when it was, and what.
    pub(crate) fn next(&self) -> (u128, Line) {
        let line = self.line();
        let (at, event) = line.split_once(' ').unwrap();
        (at.parse().unwrap(), event.to_owned().into())
    }

    /// Waits for its end by itself.
    pub(crate) fn ends_well(self) -> bool {
        self.0.wait().success()
    }
}

impl Deref for Worker {
    type Target = ChildProcess;

    fn deref(&self) -> &ChildProcess {
        &self.0
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut ChildProcess {
        &mut self.0
    }
}
