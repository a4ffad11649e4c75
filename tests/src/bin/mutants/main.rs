//! Plants known bugs, one at a time, and shows that the tests which claim to notice them do.
//!
//! The bugs are the patch files in `tests/mutants`. Each is applied to a copy of the sources and
//! built there. A bug is caught if its test passes without it and fails by an assertion with it. A
//! test that hangs or crashes has not noticed anything.
// A command-line tool, which ends with a message when it cannot go on.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

#[path = "../../../mutants/patch.rs"]
mod patch;
mod trial;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use self::patch::{Claim, Patch, Problem};
use self::trial::{Program, Run, Scratch, end_with_all_that_runs};
use self::workspace::{UNIT_TESTS, Workspace};

const HELP: &str = "\
Plants known bugs, one at a time, and shows which test notices each.

usage: make mutants ARGS=\"[OPTION]... [MUTANT]...\"

  MUTANT    only these; their names are those of the patch files in tests/mutants
  --quick   only a handful that is soon built
  --list    what the bugs are, and which tests claim to notice them
  --jobs N  run N tests at a time, instead of 4
  --no-run  only build the suites, without a bug
  --help    this

The exit code of a run is 0 only if all were caught.";

/// Tests look at clocks, and a machine may be too busy for that for a moment.
const HEALTHY_TRIES: usize = 3;
/// Most tests wait rather than work.
const JOBS: usize = 4;
/// Where panics are verdicts. Elsewhere they are crashes, but for unit tests, which are beside the
/// code that they test.
const TESTS: [&str; 3] = ["tests/", "lock-core/tests/", "lock-core/src/testing/"];
/// The suite whose tests start another program of the package, which the next build overwrites.
const STARTS_PROGRAMS: &str = "process";

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Arguments::read(std::env::args().skip(1)).and_then(|arguments| arguments.obey()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("mutants: {problem}");
            ExitCode::from(2)
        }
    }
}

/// What the command line says.
#[derive(Debug)]
struct Arguments {
    patches: Vec<Patch>,
    list: bool,
    /// Only builds.
    no_run: bool,
    jobs: usize,
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Problem> {
        let (mut quick, mut names) = (false, BTreeSet::new());
        let mut arguments =
            Self { patches: Patch::read_all(root())?, list: false, no_run: false, jobs: JOBS };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => quick = true,
                "--list" => arguments.list = true,
                "--no-run" => arguments.no_run = true,
                "--jobs" => {
                    let number = words.next().and_then(|word| word.parse().ok());
                    arguments.jobs =
                        number.filter(|jobs| *jobs > 0).ok_or("--jobs needs a number")?;
                }
                name if arguments.patches.iter().any(|patch| patch.name == name) => {
                    names.insert(word);
                }
                _ => {
                    let problem = format!("no option and no mutant: {word}; see --help and --list");
                    return Err(problem.into());
                }
            }
        }
        arguments.patches.retain(|patch| {
            names.contains(&patch.name) || names.is_empty() && (!quick || patch.quick)
        });
        Ok(arguments)
    }

    /// Whether all were caught.
    fn obey(&self) -> Result<bool, Problem> {
        if self.list {
            for Patch { name, bug, claims, .. } in &self.patches {
                println!("{name}\n    {bug}");
                claims.iter().for_each(|claim| println!("    {claim}"));
            }
            return Ok(true);
        }
        let programs = std::env::current_exe()?;
        let target = programs.ancestors().nth(2).ok_or("the runner is in no target directory")?;
        let dir = target.join("mutants");
        println!("building without a bug in {}", dir.display());
        let workspace = Workspace::copy(root(), &dir)?;
        let scratch = Scratch::new(dir.join("scratch"))?;
        end_with_all_that_runs(scratch.0.clone())?;
        let patches: Vec<_> = self.patches.iter().collect();
        workspace.check(&patches)?;
        let Some(trial) = Trial::begin(self, &workspace, &scratch.0)? else { return Ok(true) };
        let outcomes = trial.run(&patches)?;
        show(&outcomes);
        report(&patches, &outcomes)?;
        let caught = patches.iter().filter(|patch| is_caught(patch, &outcomes)).count();
        println!("mutants: {caught} of {} caught", patches.len());
        Ok(caught == patches.len())
    }
}

/// All claims on trial.
#[derive(Debug)]
struct Trial<'a> {
    workspace: &'a Workspace,
    scratch: &'a Path,
    jobs: usize,
    /// In which try each test passes without a bug.
    healthy: BTreeMap<&'a Claim, Result<usize, String>>,
}

/// A test that is to be run with a bug.
#[derive(Debug)]
struct Case<'a> {
    patch: &'a Patch,
    claim: &'a Claim,
    program: Result<Program, String>,
}

#[derive(Debug)]
struct Outcome<'a> {
    patch: &'a Patch,
    claim: &'a Claim,
    verdict: Verdict,
    took: Duration,
}

#[derive(Debug)]
enum Verdict {
    /// With the words of the test.
    Caught(String),
    Missed(String),
}

impl<'a> Trial<'a> {
    /// Builds the suites and runs their tests without a bug. `None` if nothing is to be run.
    fn begin(
        arguments: &'a Arguments,
        workspace: &'a Workspace,
        scratch: &'a Path,
    ) -> Result<Option<Self>, Problem> {
        let claims: BTreeSet<_> =
            arguments.patches.iter().flat_map(|patch| &patch.claims).collect();
        let suites: BTreeSet<_> = claims.iter().map(|claim| claim.suite.as_str()).collect();
        let mut programs = BTreeMap::new();
        for suite in suites {
            programs.insert(suite, workspace.build(suite)?);
        }
        if arguments.no_run {
            return Ok(None);
        }
        println!("running {} tests without a bug", claims.len());
        let claims: Vec<_> = claims.into_iter().collect();
        let jobs = arguments.jobs;
        let healthy =
            at_a_time(jobs, &claims, |claim| pass(&programs[claim.suite.as_str()], claim, scratch));
        let healthy = claims.into_iter().zip(healthy).collect();
        Ok(Some(Self { workspace, scratch, jobs, healthy }))
    }

    /// Plants the bugs: builds a few, then runs their tests together, for while something is built
    /// tests that look at clocks fail without a bug.
    fn run(&self, patches: &[&'a Patch]) -> Result<Vec<Outcome<'a>>, Problem> {
        // The fewest builds of a suite's dependencies between those of the suite.
        let mut patches = patches.to_vec();
        patches.sort_by_key(|patch| (&patch.claims[0].suite, &patch.name));
        let (alone, together): (Vec<&Patch>, Vec<_>) = patches
            .into_iter()
            .partition(|patch| patch.claims.iter().any(|claim| claim.suite == STARTS_PROGRAMS));
        let (begin, all) = (Instant::now(), alone.len() + together.len());
        let (mut outcomes, mut done) = (Vec::new(), 0);
        for group in together.chunks(self.jobs).chain(alone.chunks(1)) {
            let mut cases = Vec::new();
            for patch in group {
                done += 1;
                let spent = begin.elapsed().as_secs();
                println!("[{spent:4} s] building {}, {done} of {all}", patch.name);
                cases.extend(self.build(patch)?);
            }
            outcomes.extend(at_a_time(self.jobs, &cases, |case| {
                let start = Instant::now();
                let &Case { patch, claim, .. } = case;
                let verdict = self.judge(case);
                println!("         {} by {}: {verdict}", patch.name, claim.suite);
                Outcome { patch, claim, verdict, took: start.elapsed() }
            }));
            for patch in group {
                std::fs::remove_dir_all(self.scratch.join(&patch.name))?;
            }
        }
        outcomes.sort_by_key(|outcome| &outcome.patch.name);
        Ok(outcomes)
    }

    fn build(&self, patch: &'a Patch) -> Result<Vec<Case<'a>>, Problem> {
        let to = self.scratch.join(&patch.name);
        std::fs::create_dir_all(&to)?;
        patch.plant(self.workspace.sources())?;
        let build = |claim: &'a Claim| {
            let built = self.workspace.build_quietly(&claim.suite);
            let program = built.and_then(|program| program.copy_to(&to));
            Case { patch, claim, program: program.map_err(|problem| problem.to_string()) }
        };
        let cases = patch.claims.iter().map(build).collect();
        patch.remove(self.workspace.sources())?;
        Ok(cases)
    }

    fn judge(&self, case: &Case<'_>) -> Verdict {
        let tries = match &self.healthy[case.claim] {
            Ok(tries) => *tries,
            Err(why) => return Verdict::Missed(format!("without the bug: {why}")),
        };
        // What fails now and then without a bug must fail more often with it.
        for _ in 1..tries {
            let verdict = self.run_once(case);
            if !verdict.is_caught() {
                return verdict;
            }
        }
        self.run_once(case)
    }

    fn run_once(&self, case: &Case<'_>) -> Verdict {
        let Claim { suite, test } = case.claim;
        let program = match &case.program {
            Ok(program) => program,
            Err(why) => return Verdict::Missed(why.clone()),
        };
        let scratch = self.scratch.join(&case.patch.name).join(test);
        match program.run(test, &scratch) {
            Ok(Run::Failed(panics)) => {
                let is_verdict = |(place, _): &&(String, String)| {
                    suite == UNIT_TESTS || TESTS.iter().any(|dir| place.starts_with(dir))
                };
                match panics.iter().find(is_verdict) {
                    Some((place, words)) => Verdict::Caught(format!("{place}: {words}")),
                    None => Verdict::Missed(format!("a crash: {}", Run::Failed(panics))),
                }
            }
            Ok(run) => Verdict::Missed(run.to_string()),
            Err(problem) => Verdict::Missed(problem.to_string()),
        }
    }
}

/// In which try the test passes.
fn pass(program: &Program, claim: &Claim, scratch: &Path) -> Result<usize, String> {
    let mut last = String::new();
    for tries in 1..=HEALTHY_TRIES {
        last = match program.run(&claim.test, &scratch.join(&claim.suite).join(&claim.test)) {
            Ok(Run::Passed) => return Ok(tries),
            Ok(run) => run.to_string(),
            Err(problem) => problem.to_string(),
        };
    }
    Err(last)
}

/// Does `act` on `jobs` of the items at a time.
fn at_a_time<T: Sync, R: Send>(jobs: usize, items: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else { break };
                    let result = act(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

impl Verdict {
    const fn is_caught(&self) -> bool {
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

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.suite, self.test)
    }
}

fn show(outcomes: &[Outcome<'_>]) {
    println!("\n{:36} {:7} {:>7}  by", "mutant", "caught", "took");
    for Outcome { patch, claim, verdict, took } in outcomes {
        let caught = if verdict.is_caught() { "yes" } else { "NO" };
        let took = format!("{:.1} s", took.as_secs_f64());
        println!("{:36} {caught:7} {took:>7}  {claim}", patch.name);
    }
}

/// Adds a line for each to the report, if there is one.
fn report(patches: &[&Patch], outcomes: &[Outcome<'_>]) -> Result<(), Problem> {
    let Some(path) = std::env::var_os(lock_testkit::REPORT) else { return Ok(()) };
    let mut lines = String::new();
    for patch in patches {
        let by: Vec<_> = patch.claims.iter().map(ToString::to_string).collect();
        let (by, caught) = (by.join(", "), is_caught(patch, outcomes));
        let line = json!({ "mutant": patch.name, "caught": caught, "by": by, "bug": patch.bug });
        lines.push_str(&format!("{line}\n"));
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(lines.as_bytes())?;
    Ok(())
}

/// Whether all tests that claim to notice the bug do.
fn is_caught(patch: &Patch, outcomes: &[Outcome<'_>]) -> bool {
    let mut of_patch = outcomes.iter().filter(|outcome| outcome.patch.name == patch.name);
    of_patch.all(|outcome| outcome.verdict.is_caught())
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn shortened(words: &str) -> String {
    const MOST: usize = 150;
    words.chars().take(MOST).collect()
}
