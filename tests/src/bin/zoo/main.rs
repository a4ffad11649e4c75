//! The bug zoo: brings known bugs back, one at a time, and shows that the tests which claim to notice them do.
//!
//! A bug is caught if its test passes without it and fails by an assertion with it. A test that hangs has not noticed anything.
// A tool for the terminal, that ends with a message when it cannot go on.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::mutants::{MUTANTS, Mutant, SIMULATED};
use self::trial::{Litter, Run, Suite, end_with_all_that_runs};

#[path = "../../../../lock-core/src/zoo/mutants.rs"]
mod mutants;

const HELP: &str = "\
Brings known bugs back, one at a time, and shows which test notices each.

usage: make zoo ARGS=\"[OPTION]... [MUTANT]...\"

  MUTANT    only these
  --quick   every third mutant
  --list    what the mutants are, and who claims to notice them
  --jobs N  so many tests at a time, instead of 4
  --no-run  only builds
  --help    this

The exit code of a run is 0 only if all were caught.";

type Problem = Box<dyn Error + Send + Sync>;

/// Tests look at clocks, and a machine may be too busy for that for a moment.
const HEALTHY_TRIES: usize = 3;
/// Most tests wait rather than work.
const JOBS: usize = 4;
/// The dose of `--quick`: each of so many.
const QUICK: usize = 3;
/// Where panics are verdicts. Elsewhere they are crashes, but for unit tests, which stand beside the code.
const TESTS: [&str; 3] = ["tests/", "lock-core/tests/", "lock-core/src/testing/"];
const UNIT_TESTS: &str = "lock_core";
/// Which test notices the [`SIMULATED`] ones.
const SIMULATION: (&str, &str) =
    ("sim", "a_lock_is_one_holders_whatever_happens_to_network_clients_and_server");

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Wish::read(std::env::args().skip(1)).and_then(|wish| wish.fulfil()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("zoo: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Who claims to notice a mutant.
#[derive(Clone, Copy, Debug)]
struct Claim {
    mutant: &'static Mutant,
    suite: &'static str,
    test: &'static str,
}

/// What the command line says.
#[derive(Debug)]
struct Wish {
    quick: bool,
    list: bool,
    /// Only builds.
    no_run: bool,
    jobs: usize,
    names: Vec<String>,
}

impl Wish {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, Problem> {
        let (jobs, names) = (JOBS, Vec::new());
        let mut wish = Self { quick: false, list: false, no_run: false, jobs, names };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => wish.quick = true,
                "--list" => wish.list = true,
                "--no-run" => wish.no_run = true,
                "--jobs" => {
                    let number = words.next().and_then(|word| word.parse().ok());
                    wish.jobs = number.filter(|jobs| *jobs > 0).ok_or("--jobs needs a number")?;
                }
                name if MUTANTS.iter().any(|mutant| mutant.name == name) => wish.names.push(word),
                _ => {
                    return Err(
                        format!("no option and no mutant: {word}; see --help and --list").into()
                    );
                }
            }
        }
        Ok(wish)
    }

    /// Those of the mutants that are wished for.
    fn claims(&self) -> Vec<Claim> {
        let of = |mutant: &'static Mutant| {
            let Mutant { name, suite, test, .. } = *mutant;
            let own = Claim { mutant, suite, test };
            let (suite, test) = SIMULATION;
            let simulated = Claim { mutant, suite, test };
            [Some(own), SIMULATED.contains(&name).then_some(simulated)].into_iter().flatten()
        };
        self.mutants().into_iter().flat_map(of).collect()
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
        let (mutants, claims) = (self.mutants(), self.claims());
        if self.list {
            for Mutant { name, bug, .. } in mutants {
                println!("{name}\n    {bug}");
                for Claim { suite, test, .. } in
                    claims.iter().filter(|claim| claim.mutant.name == *name)
                {
                    println!("    {suite} {test}");
                }
            }
            return Ok(true);
        }
        mutants.iter().for_each(|mutant| mutant.check());
        let zoo = Zoo::build(&claims)?;
        if self.no_run {
            return Ok(true);
        }
        let results = zoo.visit(&claims, self.jobs)?;
        show(&results);
        report(&mutants, &results)?;
        let caught = mutants.iter().filter(|mutant| is_caught(mutant, &results)).count();
        println!("zoo: {caught} of {} mutants caught", mutants.len());
        Ok(caught == mutants.len())
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
struct Outcome {
    claim: Claim,
    verdict: Verdict,
    took: Duration,
}

#[derive(Debug)]
enum Verdict {
    /// With what the test said.
    Caught(String),
    Missed(String),
}

impl Zoo {
    fn build(claims: &[Claim]) -> Result<Self, Problem> {
        let programs = std::env::current_exe()?;
        let target = programs.ancestors().nth(2).ok_or("the runner is in no target directory")?;
        let target = target.join("zoo");
        let wanted: BTreeSet<_> = claims.iter().map(|claim| claim.suite).collect();
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
        // Another one may be under way.
        let litter = Litter::new(target.join(format!("tmp-{}", std::process::id())))?;
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
            let of_suite = claims.iter().filter(|claim| claim.suite == suite);
            let healthy = of_suite.map(|claim| (claim.test, OnceLock::new())).collect();
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
    fn visit(&self, claims: &[Claim], jobs: usize) -> Result<Vec<Outcome>, Problem> {
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(&claim) = claims.get(number) else { break };
                        let start = Instant::now();
                        let verdict = self.try_out(claim);
                        let took = start.elapsed();
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        let (done, all) = (results.len() + 1, claims.len());
                        let Claim { mutant, suite, .. } = claim;
                        println!("[{done:2}/{all}] {} by {suite}: {verdict}", mutant.name);
                        results.push((number, Outcome { claim, verdict, took }));
                    }
                });
            }
        });
        let mut results = results.into_inner()?;
        results.sort_by_key(|(number, _)| *number);
        Ok(results.into_iter().map(|(_, outcome)| outcome).collect())
    }

    fn try_out(&self, claim: Claim) -> Verdict {
        let (suite, test) = (&self.suites[claim.suite], claim.test);
        let healthy = suite.healthy[test].get_or_init(|| {
            let mut last = String::new();
            for tries in 1..=HEALTHY_TRIES {
                last = match suite.run(test, None, &self.litter)? {
                    Run::Passed => return Ok(tries),
                    run => format!("without a mutant: {run}"),
                };
            }
            Err(last)
        });
        let tries = match healthy {
            Ok(tries) => *tries,
            Err(why) => return Verdict::Missed(why.clone()),
        };
        // What fails now and then without a mutant must fail more often with it.
        for _ in 1..tries {
            let verdict = self.try_mutant(claim);
            if !verdict.is_caught() {
                return verdict;
            }
        }
        self.try_mutant(claim)
    }

    fn try_mutant(&self, Claim { mutant, suite: of, test }: Claim) -> Verdict {
        match self.suites[of].run(test, Some(mutant.name), &self.litter) {
            Ok(Run::Failed(panics)) => {
                let says = |(place, _): &&(String, String)| {
                    of == UNIT_TESTS || TESTS.iter().any(|dir| place.starts_with(dir))
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

fn show(results: &[Outcome]) {
    println!("\n{:36} {:7} {:>7}  by", "mutant", "caught", "took");
    for Outcome { claim: Claim { mutant, suite, test }, verdict, took } in results {
        let caught = if verdict.is_caught() { "yes" } else { "NO" };
        let took = format!("{:.1} s", took.as_secs_f64());
        println!("{:36} {caught:7} {took:>7}  {suite} {test}", mutant.name);
    }
}

/// Adds a line for each to the report, if there is one.
fn report(mutants: &[&'static Mutant], results: &[Outcome]) -> Result<(), Problem> {
    let Some(path) = std::env::var_os(lock_testkit::REPORT) else { return Ok(()) };
    let mut lines = String::new();
    for mutant in mutants {
        let claims = results.iter().map(|result| &result.claim);
        let of_mutant = claims.filter(|claim| claim.mutant.name == mutant.name);
        let by: Vec<_> = of_mutant.map(|claim| format!("{} {}", claim.suite, claim.test)).collect();
        let (by, caught) = (by.join(", "), is_caught(mutant, results));
        let line = json!({ "mutant": mutant.name, "caught": caught, "by": by, "bug": mutant.bug });
        lines.push_str(&format!("{line}\n"));
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(lines.as_bytes())?;
    Ok(())
}

/// Whether all that claim to notice it do.
fn is_caught(mutant: &Mutant, results: &[Outcome]) -> bool {
    let of_mutant = results.iter().filter(|result| result.claim.mutant.name == mutant.name);
    of_mutant.clone().count() > 0 && of_mutant.into_iter().all(|result| result.verdict.is_caught())
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
