//! A process that a test started, and the lines between the two.
//!
//! The test writes lines to the process's standard input, and reads lines from its standard output.
//! A [`Line`] consists of words; values come as `name=value`.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError};

use crate::{Signal, send_signal};

/// A running process. Ends on drop: its standard input closes, and soon after it is killed.
#[derive(Debug)]
pub struct ChildProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// A line from a process or to it, such as `held fence=7`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line(String);

/// A process ended, or took too long, before it printed a line.
#[derive(Debug)]
pub struct NotReady {
    /// What it printed instead.
    pub printed: String,
}

/// Longer than anything that a process is expected to do.
const PATIENCE: Duration = Duration::from_secs(40);
/// Long enough for a process that ends when its standard input closes, and has others to stop.
const GRACE: Duration = Duration::from_millis(500);
/// How often a process is asked whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

impl ChildProcess {
    /// Starts a process, with pipes to its standard input and output.
    ///
    /// # Errors
    ///
    /// If the program cannot be run.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = flume::unbounded();
        // Reads on when the receiver is gone, so that the process can always write.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                sender.send(line).ok();
            }
        });
        Ok(Self { process, stdin, lines })
    }

    /// Writes a line; a process that has ended does not read it.
    pub fn tell(&mut self, line: impl fmt::Display) {
        if let Some(stdin) = &mut self.stdin {
            stdin.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// If none comes.
    #[must_use]
    pub fn line(&self) -> Line {
        Line(self.lines.recv_timeout(PATIENCE).expect("a line of the process"))
    }

    /// The next line, however long it takes; for programs that wait for several processes at once.
    ///
    /// # Panics
    ///
    /// If the process ends before.
    pub async fn next_line(&self) -> Line {
        Line(self.lines.recv_async().await.expect("a line of the process"))
    }

    /// The next line that contains `text`; lines before it are dropped.
    ///
    /// # Errors
    ///
    /// If the process ends without it, or takes longer than `bound`.
    pub async fn line_with(&self, text: &str, bound: Duration) -> Result<Line, NotReady> {
        let mut printed = String::new();
        let found = async {
            while let Ok(line) = self.lines.recv_async().await {
                if line.contains(text) {
                    return Some(Line(line));
                }
                printed.push_str(&line);
                printed.push('\n');
            }
            None
        };
        let found = tokio::time::timeout(bound, found).await;
        found.ok().flatten().ok_or(NotReady { printed })
    }

    /// Whether no line comes for this long.
    #[must_use]
    pub fn is_silent(&self, span: Duration) -> bool {
        matches!(self.lines.recv_timeout(span), Err(RecvTimeoutError::Timeout))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.process, signal);
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The time that it has spent on a processor.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        // The 12th and 13th are user and system time, in hundredths of a second.
        let stat = stat(Path::new(&format!("/proc/{}", self.pid()))).unwrap();
        let times = stat.split_whitespace().skip(11).take(2);
        let ticks: u64 = times.map(|time| time.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether a signal has stopped all its threads, or it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut stats = threads.map(|thread| stat(&thread.unwrap().path()));
        stats.all(|stat| stat.is_none_or(|stat| stat.starts_with(['T', 'Z'])))
    }

    /// Kills it as `kill -9` does, and waits until it is gone with its sockets.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Closes its standard input, and waits until it ends by itself.
    #[must_use]
    pub fn wait(mut self) -> ExitStatus {
        self.stdin = None;
        self.process.wait().unwrap()
    }

    /// Closes its standard input, and waits until it ends; kills it after `bound`.
    pub fn stop(mut self, bound: Duration) {
        self.end(bound);
    }

    fn end(&mut self, bound: Duration) {
        self.stdin = None;
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < bound {
            std::thread::sleep(LOOK);
        }
        // Both fail only if it has ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end(GRACE);
    }
}

impl Line {
    /// The value of `name=value`, if the line has one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        self.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The number of `name=number`.
    ///
    /// # Panics
    ///
    /// If the line has none.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_else(|| panic!("no {name} in: {self}")).parse().unwrap()
    }
}

impl From<String> for Line {
    fn from(line: String) -> Self {
        Self(line)
    }
}

impl Deref for Line {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<&str> for Line {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the kernel says about a process or a thread after its name, which may contain anything.
/// `None` if there is no such process any more.
fn stat(of: &Path) -> Option<String> {
    let stat = std::fs::read_to_string(of.join("stat")).ok()?;
    Some(stat.rsplit_once(')').unwrap().1.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> ChildProcess {
        ChildProcess::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn lines_go_to_the_process_and_back() {
        let mut process = shell("while read -r line; do echo \"got $line\"; done");
        process.tell("held fence=7");
        let line = process.line();
        assert_eq!(line, "got held fence=7");
        assert_eq!((line.number("fence"), line.find("fen")), (7, None));
        assert!(process.is_silent(Duration::from_millis(10)));
        process.stop(BOUND);
    }

    #[test]
    fn process_that_ignores_the_end_of_its_input_is_killed() {
        let process = shell("exec sleep 1000");
        let pid = process.pid();
        process.stop(Duration::from_millis(10));
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn stopped_process_differs_from_a_running_one() {
        let process = shell("exec sleep 1000");
        assert!(!process.is_stopped());
        process.signal(Signal::STOP);
        let start = Instant::now();
        while !process.is_stopped() {
            assert!(start.elapsed() < BOUND);
            std::thread::sleep(LOOK);
        }
    }

    #[tokio::test]
    async fn process_that_ends_early_shows_what_it_printed() {
        let process = shell("echo one; echo two ready; echo three");
        assert_eq!(process.line_with("ready", BOUND).await.unwrap(), "two ready");
        let NotReady { printed } = process.line_with("ready", BOUND).await.unwrap_err();
        assert_eq!(printed, "three\n");
        assert!(process.wait().success());
    }
}
