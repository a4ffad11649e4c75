//! Runs the whole programme of faults, and writes the report: `make faults`, `make faults-quick`.
//!
//! Each suite is a command of its own; what its experiments went through comes as lines of the file that [`lock_tests::REPORT`]
//! names. The last line on standard output is the sum of it all.

// A tool that is not published, and fails by panicking.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod report;
mod suites;

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use lock_tests::REPORT;

use self::report::{Ran, Report};
use self::suites::{SUITES, Suite};

const HELP: &str = "\
Runs the programme of faults and writes its report.

usage: make faults ARGS=\"[OPTION]...\"

  --quick        a small dose, about six minutes on two cores; writes to target/tmp/FAULTS.md instead of tests/FAULTS.md
  --only SUITE   only this suite; may be repeated; writes to target/tmp/FAULTS.md
  --help         this

The last line on standard output is the sum; the exit code is 0 only if no promise was violated, every suite ended well, and all
mutants were caught.";

struct Run {
    quick: bool,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let run = match arguments() {
        Ok(Some(run)) => run,
        Ok(None) => {
            println!("{HELP}\n\nsuites: {}", names().join(", "));
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n\n{HELP}\n\nsuites: {}", names().join(", "));
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let scratch = root.join("target/tmp");
    std::fs::create_dir_all(&scratch).unwrap();
    let lines = scratch.join("faults.jsonl");
    let begin = Instant::now();
    let mut report = Report::default();
    let chosen =
        |suite: &&Suite| run.only.is_empty() || run.only.iter().any(|name| name == suite.name);
    let suites: Vec<_> = SUITES.iter().filter(chosen).collect();
    for (number, suite) in (1..).zip(&suites) {
        eprintln!(
            "\n[{:4} s] suite {number} of {}: {} ({})",
            begin.elapsed().as_secs(),
            suites.len(),
            suite.name,
            suite.about
        );
        std::fs::File::create(&lines).unwrap();
        let start = Instant::now();
        let ended =
            command(suite, run.quick).current_dir(root).env(REPORT, &lines).status().unwrap();
        report.add_lines(&std::fs::read_to_string(&lines).unwrap());
        report.suites.push(Ran {
            name: suite.name,
            took: start.elapsed(),
            passed: ended.success(),
        });
    }
    std::fs::remove_file(&lines).unwrap();
    let to = if run.quick || !run.only.is_empty() {
        scratch.join("FAULTS.md")
    } else {
        root.join("tests/FAULTS.md")
    };
    std::fs::write(&to, report.to_markdown(run.quick)).unwrap();
    eprintln!("\nwritten: {}, after {} s", to.display(), begin.elapsed().as_secs());
    for failed in report.suites.iter().filter(|suite| !suite.passed) {
        eprintln!("the suite {} failed: see its output", failed.name);
    }
    println!("{}", report.sum());
    std::io::stdout().flush().unwrap();
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn command(suite: &Suite, quick: bool) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(suite.cargo);
    if quick {
        command.args(suite.quick);
    } else {
        command.envs(suite.full.iter().copied());
    }
    command
}

fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

fn arguments() -> Result<Option<Run>, String> {
    let mut run = Run { quick: false, only: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--help" => return Ok(None),
            "--quick" => run.quick = true,
            "--only" => {
                let name = arguments.next().unwrap_or_default();
                if !names().contains(&&*name) {
                    return Err(format!("no suite is named `{name}`"));
                }
                run.only.push(name);
            }
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    Ok(Some(run))
}
