//! Runs one test of a suite, with a mutant or without, and leaves nothing of it behind.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::Problem;
use crate::mutants::VARIABLE;

/// A test that takes longer hangs: none that is named takes a third of it.
const LIMIT: Duration = Duration::from_secs(90);
/// As a shell says that Ctrl-C ended it.
const INTERRUPTED: i32 = 130;
/// How many seeds the simulation runs, of the thousands that it runs elsewhere.
const SEEDS: &str = "120";

#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) program: PathBuf,
    /// Where cargo would run it.
    pub(crate) dir: PathBuf,
    pub(crate) tests: Vec<String>,
    /// How the tests end without a mutant: in which try they pass, looked at once for each.
    pub(crate) healthy: BTreeMap<&'static str, OnceLock<Result<usize, String>>>,
}

/// How a run of one test ended.
#[derive(Debug)]
pub(crate) enum Run {
    Passed,
    /// Where it panicked, and what it said.
    Failed(Vec<(String, String)>),
    Hung,
    /// Neither: with what was printed.
    Odd(String),
}

impl Suite {
    pub(crate) fn list(&mut self) -> Result<(), Problem> {
        let output = Command::new(&self.program).args(["--list", "--format", "terse"]).output()?;
        let lines = String::from_utf8(output.stdout)?;
        let tests = lines.lines().filter_map(|line| line.strip_suffix(": test"));
        self.tests = tests.map(str::to_owned).collect();
        Ok(())
    }

    /// The test with its modules.
    fn path(&self, test: &str) -> Result<&str, String> {
        let called = |path: &&String| path.rsplit("::").next() == Some(test);
        let mut found = self.tests.iter().filter(called);
        match (found.next(), found.next()) {
            (Some(path), None) => Ok(path),
            (None, _) => Err(format!("there is no test {test}")),
            (Some(_), Some(_)) => Err(format!("there are several tests {test}")),
        }
    }

    pub(crate) fn run(
        &self,
        test: &str,
        mutant: Option<&str>,
        litter: &Litter,
    ) -> Result<Run, String> {
        let path = self.path(test)?;
        let place = litter.0.join(format!("{test}-{}", mutant.unwrap_or("healthy")));
        let run = self.run_in(&place, path, mutant);
        // A server that was killed may be about to write there.
        let _gone = fs::remove_dir_all(&place);
        run.map_err(|error| error.to_string())
    }

    fn run_in(
        &self,
        place: &Path,
        path: &str,
        mutant: Option<&str>,
    ) -> Result<Run, std::io::Error> {
        fs::create_dir_all(place)?;
        let mut output = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .append(false)
            .write(true)
            .open(place.join("output"))?;
        let mut command = Command::new(&self.program);
        command.args([path, "--exact", "--test-threads=1"]).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        command.env("TMPDIR", place).env("RUST_BACKTRACE", "0");
        // A mutant is no violation, and its failing inputs are not to be kept.
        command
            .env_remove(lock_testkit::REPORT)
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env_remove("LOCK_TESTS_SCALE").env_remove(VARIABLE);
        command.env_remove("LOCK_SIM_SEED").env("LOCK_SIM_SEEDS", SEEDS);
        if let Some(mutant) = mutant {
            command.env(VARIABLE, mutant);
        }
        // With all that it starts, to be ended together if it hangs.
        let mut groups = running();
        let mut child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        groups.insert(group);
        drop(groups);
        let ended = wait(&mut child);
        running().remove(&group);
        let Some(code) = ended? else { return Ok(Run::Hung) };
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

/// The process groups of the tests that run.
fn running() -> MutexGuard<'static, HashSet<Pid>> {
    static RUNNING: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends what runs and removes what it left, when this program is told to end: the terminal does not know of those groups.
pub(crate) fn end_with_all_that_runs(litter: PathBuf) -> Result<(), Problem> {
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
        // None is begun while this is held.
        let groups = running();
        for group in groups.iter() {
            // It may have ended in this moment.
            let _killed = kill_process_group(*group, Signal::KILL);
        }
        let _gone = fs::remove_dir_all(litter);
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}

/// The exit code, -1 after a signal; `None` if it had to be killed.
fn wait(child: &mut Child) -> Result<Option<i32>, std::io::Error> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(-1)));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process_group(Pid::from_child(child), Signal::KILL)?;
    let _killed = child.wait()?;
    Ok(None)
}

/// Where a test panicked, and the first line of what it said.
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
pub(crate) struct Litter(pub(crate) PathBuf);

impl Litter {
    pub(crate) fn new(dir: PathBuf) -> Result<Self, Problem> {
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Litter {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
