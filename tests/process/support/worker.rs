//! A worker process that a test started.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use lock_testkit::{RedisServer, Signal, send_signal};

/// A running worker; killed on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    events: Receiver<String>,
}

/// How a holder ended.
#[derive(Debug)]
pub(crate) struct End {
    /// When it was told that its lease was lost, if it was.
    pub(crate) lost: Option<u128>,
    pub(crate) steps: usize,
    /// What its release came to, as the holder writes it.
    pub(crate) released: String,
}

/// Longer than anything a worker is expected to do.
const PATIENCE: Duration = Duration::from_secs(40);

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
        (at, number(&event, "fence"))
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
        assert_eq!(number(&event, "late"), 0, "{event}");
        assert!(self.ends_well());
        let (_, released) = event.split_once("released=").unwrap();
        let steps = usize::try_from(number(&event, "steps")).unwrap();
        End { lost, steps, released: released.to_owned() }
    }

    /// What [`run`](Self::run) takes.
    pub(crate) fn command(task: &str, url: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lock-worker"));
        command.arg(task).arg(format!("url={url}"));
        command
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, events) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, events }
    }

    /// The next event: when it was, and what.
    pub(crate) fn next(&self) -> (u128, String) {
        let line = self.events.recv_timeout(PATIENCE).expect("an event of the worker");
        let (at, event) = line.split_once(' ').unwrap();
        (at.parse().unwrap(), event.to_owned())
    }

    /// Whether no event comes for this long.
    pub(crate) fn is_silent(&self, span: Duration) -> bool {
        matches!(self.events.recv_timeout(span), Err(RecvTimeoutError::Timeout))
    }

    /// One that has ended by itself does not hear it.
    pub(crate) fn tell(&mut self, line: &str) {
        drop(writeln!(self.child.stdin.as_mut().unwrap(), "{line}"));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The time that it has spent on a processor.
    pub(crate) fn cpu(&self) -> Duration {
        // User and system time are the 12th and 13th, in hundredths of a second.
        let stat = stat(Path::new(&format!("/proc/{}", self.pid()))).unwrap();
        let times = stat.split_whitespace().skip(11).take(2);
        let ticks: u64 = times.map(|time| time.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether all its threads stand still by a signal, or it has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut stats = threads.map(|thread| stat(&thread.unwrap().path()));
        stats.all(|stat| stat.is_none_or(|stat| stat.starts_with(['T', 'Z'])))
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        let _status = self.child.wait().unwrap();
    }

    /// Waits for its end by itself.
    pub(crate) fn ends_well(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails only if it has been reaped.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What the kernel says about a process or a thread, behind its name, which may hold anything; `None` if there is none any more.
fn stat(of: &Path) -> Option<String> {
    let stat = std::fs::read_to_string(of.join("stat")).ok()?;
    Some(stat.rsplit_once(')').unwrap().1.trim_start().to_owned())
}

/// The number that follows `name=` in an event.
pub(crate) fn number(event: &str, name: &str) -> u64 {
    let prefix = format!("{name}=");
    let word = event.split(' ').find_map(|word| word.strip_prefix(&prefix));
    word.unwrap_or_else(|| panic!("no {name} in: {event}")).parse().unwrap()
}
