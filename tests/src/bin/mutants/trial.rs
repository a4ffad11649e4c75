//! Runs one test of a suite, and leaves nothing of it behind.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::patch::Problem;

/// A test that takes longer hangs. No test that a patch names takes a third of it.
const LIMIT: Duration = Duration::from_secs(90);
/// The exit code of a shell's command that Ctrl-C ended.
const INTERRUPTED: i32 = 130;
/// How many seeds the simulation runs, of the thousands that it runs elsewhere.
const SEEDS: &str = "120";

/// The test program of a suite.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// Where cargo would run it.
    pub(crate) dir: PathBuf,
}

/// How a run of one test ended.
#[derive(Debug)]
pub(crate) enum Run {
    Passed,
    /// Where it panicked, and with which words.
    Failed(Vec<(String, String)>),
    Hung,
    /// None of these; with what was printed.
    Odd(String),
}

impl Program {
    /// Copies the program into the directory `to`, since the next build overwrites it.
    pub(crate) fn copy_to(&self, to: &Path) -> Result<Self, Problem> {
        fs::create_dir_all(to)?;
        let path = to.join(self.path.file_name().ok_or("a program without a name")?);
        fs::copy(&self.path, &path)?;
        Ok(Self { path, dir: self.dir.clone() })
    }

    /// Runs `test` alone, with the directory `scratch` for its files. The name of the test comes
    /// with no more modules than tell it from others.
    pub(crate) fn run(&self, test: &str, scratch: &Path) -> Result<Run, Problem> {
        let path = self.find(test)?;
        fs::create_dir_all(scratch)?;
        let run = self.run_in(scratch, &path);
        // A server that was killed may still be writing there.
        let _gone = fs::remove_dir_all(scratch);
        Ok(run?)
    }

    /// The name of `test` with its modules.
    fn find(&self, test: &str) -> Result<String, Problem> {
        let output = Command::new(&self.path).args(["--list", "--format", "terse"]).output()?;
        let lines = String::from_utf8(output.stdout)?;
        let paths = lines.lines().filter_map(|line| line.strip_suffix(": test"));
        let mut found = paths.filter(|path| {
            path.strip_suffix(test).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
        });
        match (found.next(), found.next()) {
            (Some(path), None) => Ok(path.to_owned()),
            (None, _) => Err(format!("there is no test {test}").into()),
            (Some(_), Some(_)) => Err(format!("there are several tests {test}").into()),
        }
    }

    fn run_in(&self, scratch: &Path, path: &str) -> io::Result<Run> {
        let mut output = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .append(false)
            .write(true)
            .open(scratch.join("output"))?;
        let mut command = Command::new(&self.path);
        command.args([path, "--exact", "--test-threads=1"]).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        command.env("TMPDIR", scratch).env("RUST_BACKTRACE", "0");
        // What a planted bug does is no violation, and its failing inputs are not to be kept.
        command
            .env_remove(lock_testkit::REPORT)
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env_remove("LOCK_TESTS_SCALE");
        command.env_remove("LOCK_SIM_SEED").env("LOCK_SIM_SEEDS", SEEDS);
        let Some(code) = start(&mut command)?.wait()? else { return Ok(Run::Hung) };
        let mut text = String::new();
        output.rewind()?;
        output.read_to_string(&mut text)?;
        Ok(match code {
            0 if text.contains("test result: ok. 1 passed") => Run::Passed,
            101 if text.contains("test result: FAILED. 0 passed; 1 failed") => {
                Run::Failed(panics(&text))
            }
            _ => Run::Odd(text),
        })
    }
}

/// A command with all that it starts, to be ended together.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    id: Pid,
}

/// Starts `command` as a process group of its own.
pub(crate) fn start(command: &mut Command) -> io::Result<Group> {
    let mut groups = running();
    let child = command.process_group(0).spawn()?;
    let id = Pid::from_child(&child);
    groups.insert(id);
    Ok(Group { child, id })
}

impl Group {
    /// Waits for the end, and gives what was written to standard output if that is piped.
    pub(crate) fn output(mut self) -> io::Result<Output> {
        let (mut stdout, stderr) = (Vec::new(), Vec::new());
        if let Some(mut from) = self.child.stdout.take() {
            from.read_to_end(&mut stdout)?;
        }
        Ok(Output { status: self.child.wait()?, stdout, stderr })
    }

    /// Waits for the exit code, which is -1 after a signal; `None` after [`LIMIT`], when all is
    /// killed.
    fn wait(mut self) -> io::Result<Option<i32>> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status.code().unwrap_or(-1)));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process_group(self.id, Signal::KILL)?;
        let _killed = self.child.wait()?;
        Ok(None)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        running().remove(&self.id);
    }
}

/// The process groups that run.
fn running() -> MutexGuard<'static, HashSet<Pid>> {
    static RUNNING: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a signal ends this program, ends what it runs and removes `scratch`. The terminal does not
/// know those process groups.
pub(crate) fn end_with_all_that_runs(scratch: PathBuf) -> Result<(), Problem> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let [mut interrupt, mut terminate, mut hang_up] = {
        let _inside = runtime.enter();
        [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
                _ = hang_up.recv() => (),
            }
        });
        // No group starts while this is locked.
        let groups = running();
        for group in groups.iter() {
            // It may have ended in this moment.
            let _killed = kill_process_group(*group, Signal::KILL);
        }
        let _gone = fs::remove_dir_all(scratch);
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}

/// Where a test panicked, and the first line of its message.
fn panics(text: &str) -> Vec<(String, String)> {
    let mut lines = text.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some((_, place)) = line.split_once(" panicked at ") {
            let words = lines.next().unwrap_or_default();
            found.push((place.trim_end_matches(':').to_owned(), words.to_owned()));
        }
    }
    found
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("the test passes"),
            Self::Failed(panics) => write!(f, "the test fails: {panics:?}"),
            Self::Hung => write!(f, "the test hangs for more than {LIMIT:?}"),
            Self::Odd(text) => write!(f, "the test ends without a verdict:\n{text}"),
        }
    }
}

/// A directory that is removed in the end.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(dir: PathBuf) -> Result<Self, Problem> {
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
