//! The bug zoo: brings known bugs back, one at a time, and shows that the tests which claim to notice them do.
//!
//! `cargo run --package lock-tests --bin zoo -- [--quick] [--list] [--jobs N] [MUTANT ..]`
//!
//! A bug is caught if its test passes without it and fails by an assertion with it. A test that hangs has not noticed anything.
// A tool for the terminal, that ends with a message when it cannot go on.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use self::mutants::{MUTANTS, Mutant, VARIABLE};

#[path = "../../../lock-core/src/zoo/mutants.rs"]
mod mutants;

type Problem = Box<dyn Error + Send + Sync>;

/// A test that takes longer hangs: none that is named takes a third of it.
const LIMIT: Duration = Duration::from_secs(90);
/// Tests look at clocks, and a machine may be too busy for that for a moment.
const HEALTHY_TRIES: usize = 3;
/// As a shell says that Ctrl-C ended it.
const INTERRUPTED: i32 = 130;
/// Most tests wait rather than work.
const JOBS: usize = 4;
/// The dose of `--quick`: each of so many.
const QUICK: usize = 2;
/// Where panics are verdicts. Elsewhere they are crashes, but for unit tests, which stand beside the code.
const TESTS: [&str; 3] = ["tests/", "lock-core/tests/", "lock-core/src/testing/"];
const UNIT_TESTS: &str = "lock_core";

fn main() -> ExitCode {
    match Wish::read(std::env::args().skip(1)).and_then(|wish| wish.fulfil()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("zoo: {problem}");
            ExitCode::from(2)
        }
    }
}

/// What the command line says.
#[derive(Debug)]
struct Wish {
    quick: bool,
    list: bool,
    jobs: usize,
    names: Vec<String>,
}

impl Wish {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Problem> {
        let mut wish = Self { quick: false, list: false, jobs: JOBS, names: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => wish.quick = true,
                "--list" => wish.list = true,
                "--jobs" => wish.jobs = words.next().ok_or("--jobs needs a number")?.parse()?,
                name if MUTANTS.iter().any(|mutant| mutant.name == name) => wish.names.push(word),
                _ => return Err(format!("no option and no mutant: {word}; see --list").into()),
            }
        }
        Ok(wish)
    }

    fn mutants(&self) -> Vec<&'static Mutant> {
        let wanted = |(number, mutant): (usize, &'static Mutant)| {
            let named = self.names.iter().any(|name| name == mutant.name);
            let dosed = self.names.is_empty() && (!self.quick || number % QUICK == 0);
            (named || dosed).then_some(mutant)
        };
        MUTANTS.iter().enumerate().filter_map(wanted).collect()
    }

    /// Whether all were caught.
    fn fulfil(&self) -> Result<bool, Problem> {
        let mutants = self.mutants();
        if self.list {
            for Mutant { name, bug, suite, test, .. } in mutants {
                println!("{name}\n    {bug}\n    {suite} {test}");
            }
            return Ok(true);
        }
        mutants.iter().for_each(|mutant| mutant.check());
        let zoo = Zoo::build(&mutants)?;
        let results = zoo.visit(&mutants, self.jobs)?;
        show(&results);
        report(&results)?;
        let caught = results.iter().filter(|result| result.verdict.is_caught()).count();
        println!("zoo: {caught} of {} mutants caught", results.len());
        Ok(caught == results.len())
    }
}

/// The test programs that contain all mutants.
#[derive(Debug)]
struct Zoo {
    suites: BTreeMap<&'static str, Suite>,
    /// What the runs leave goes in here, and away.
    litter: Litter,
}

#[derive(Debug)]
struct Suite {
    program: PathBuf,
    /// Where cargo would run it.
    dir: PathBuf,
    tests: Vec<String>,
    /// How the tests end without a mutant, each tried once.
    healthy: BTreeMap<&'static str, OnceLock<Result<(), String>>>,
}

#[derive(Debug)]
struct Outcome {
    mutant: &'static Mutant,
    verdict: Verdict,
    took: Duration,
}

#[derive(Debug)]
enum Verdict {
    /// With what the test said.
    Caught(String),
    Missed(String),
}

/// How a run of one test ended.
#[derive(Debug)]
enum Run {
    Passed,
    /// Where it panicked, and what it said.
    Failed(Vec<(String, String)>),
    Hung,
    /// Neither: with what was printed.
    Odd(String),
}

impl Zoo {
    fn build(mutants: &[&'static Mutant]) -> Result<Self, Problem> {
        let programs = std::env::current_exe()?;
        let target = programs.ancestors().nth(2).ok_or("the runner is in no target directory")?;
        let target = target.join("zoo");
        let wanted: BTreeSet<_> = mutants.iter().map(|mutant| mutant.suite).collect();
        println!("building {} with all mutants in {}", words(&wanted), target.display());
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
        cargo.args(["--package", "lock-core", "--package", "lock-tests", "--all-features"]);
        for suite in &wanted {
            match *suite {
                UNIT_TESTS => cargo.args(["--lib"]),
                test => cargo.args(["--test", test]),
            };
        }
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        cargo.env("RUSTFLAGS", format!("{flags} --cfg lock_zoo").trim_start());
        cargo.env("CARGO_TARGET_DIR", &target).current_dir(root());
        let output = cargo.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("it does not build".into());
        }
        let litter = Litter::new(target.join("tmp"))?;
        end_with_all_that_runs(litter.0.clone())?;
        let mut suites = BTreeMap::new();
        for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line)?;
            let name = message["target"]["name"].as_str();
            let Some(suite) = wanted.iter().copied().find(|&suite| Some(suite) == name) else {
                continue;
            };
            // A program of the same name may be no test.
            let (true, Some(program)) =
                (message["profile"]["test"] == true, message["executable"].as_str())
            else {
                continue;
            };
            let manifest = message["manifest_path"].as_str().map(Path::new);
            let dir = manifest.and_then(Path::parent).ok_or("an artifact without a manifest")?;
            let of_suite = mutants.iter().filter(|mutant| mutant.suite == suite);
            let healthy = of_suite.map(|mutant| (mutant.test, OnceLock::new())).collect();
            let mut suite_of =
                Suite { program: program.into(), dir: dir.into(), tests: Vec::new(), healthy };
            suite_of.list()?;
            suites.insert(suite, suite_of);
        }
        for suite in &wanted {
            if !suites.contains_key(suite) {
                return Err(format!("there is no suite {suite}").into());
            }
        }
        Ok(Self { suites, litter })
    }

    /// Runs them all, several at a time.
    fn visit(&self, mutants: &[&'static Mutant], jobs: usize) -> Result<Vec<Outcome>, Problem> {
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(|| {
                    while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        let verdict = self.try_out(mutant);
                        let took = start.elapsed();
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        let number = results.len() + 1;
                        println!("[{number:2}/{}] {}: {verdict}", mutants.len(), mutant.name);
                        results.push(Outcome { mutant, verdict, took });
                    }
                });
            }
        });
        let mut results = results.into_inner()?;
        results.sort_by_key(|result| {
            mutants.iter().position(|mutant| mutant.name == result.mutant.name)
        });
        Ok(results)
    }

    fn try_out(&self, mutant: &'static Mutant) -> Verdict {
        let suite = &self.suites[mutant.suite];
        let healthy = suite.healthy[mutant.test].get_or_init(|| {
            let mut last = Ok(());
            for _ in 0..HEALTHY_TRIES {
                last = match suite.run(mutant.test, None, &self.litter)? {
                    Run::Passed => return Ok(()),
                    run => Err(format!("without a mutant: {run}")),
                };
            }
            last
        });
        if let Err(why) = healthy {
            return Verdict::Missed(why.clone());
        }
        match suite.run(mutant.test, Some(mutant.name), &self.litter) {
            Ok(Run::Failed(panics)) => {
                let says = |(place, _): &&(String, String)| {
                    mutant.suite == UNIT_TESTS || TESTS.iter().any(|dir| place.starts_with(dir))
                };
                match panics.iter().find(says) {
                    Some((place, words)) => Verdict::Caught(format!("{place}: {words}")),
                    None => Verdict::Missed(format!("a crash: {}", Run::Failed(panics))),
                }
            }
            Ok(run) => Verdict::Missed(run.to_string()),
            Err(why) => Verdict::Missed(why),
        }
    }
}

impl Suite {
    fn list(&mut self) -> Result<(), Problem> {
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

    fn run(&self, test: &str, mutant: Option<&str>, litter: &Litter) -> Result<Run, String> {
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
        command.env_remove(lock_tests::REPORT).env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.env_remove("LOCK_TESTS_DOSE").env_remove(VARIABLE);
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
fn end_with_all_that_runs(litter: PathBuf) -> Result<(), Problem> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
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

impl Verdict {
    fn is_caught(&self) -> bool {
        matches!(self, Self::Caught(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(words) => write!(f, "caught: {}", shortened(words)),
            Self::Missed(why) => write!(f, "NOT CAUGHT: {why}"),
        }
    }
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

fn show(results: &[Outcome]) {
    println!("\n{:36} {:7} {:>7}  by", "mutant", "caught", "took");
    for Outcome { mutant, verdict, took } in results {
        let caught = if verdict.is_caught() { "yes" } else { "NO" };
        let took = format!("{:.1} s", took.as_secs_f64());
        println!("{:36} {caught:7} {took:>7}  {} {}", mutant.name, mutant.suite, mutant.test);
    }
}

/// Adds a line for each to the report, if there is one.
fn report(results: &[Outcome]) -> Result<(), Problem> {
    let Some(path) = std::env::var_os(lock_tests::REPORT) else { return Ok(()) };
    let mut lines = String::new();
    for Outcome { mutant, verdict, .. } in results {
        let by = format!("{} {}", mutant.suite, mutant.test);
        let caught = verdict.is_caught();
        let line = json!({ "mutant": mutant.name, "caught": caught, "by": by, "bug": mutant.bug });
        lines.push_str(&format!("{line}\n"));
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(lines.as_bytes())?;
    Ok(())
}

/// A directory that is removed in the end.
#[derive(Debug)]
struct Litter(PathBuf);

impl Litter {
    fn new(dir: PathBuf) -> Result<Self, Problem> {
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Litter {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn words(all: &BTreeSet<&str>) -> String {
    all.iter().copied().collect::<Vec<_>>().join(", ")
}

fn shortened(words: &str) -> String {
    const MOST: usize = 150;
    words.chars().take(MOST).collect()
}
