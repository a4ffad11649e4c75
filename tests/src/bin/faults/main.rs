//! Runs the whole programme of faults, and writes the report: `make faults`, `make faults-quick`.
//!
//! Each suite is a command of its own; what its experiments went through comes as lines of the file
//! that [`lock_testkit::REPORT`] names. The last line on standard output is the sum of it all.

// A tool that is not published, and fails by panicking.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod report;
mod run;
mod suites;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use lock_testkit::REPORT;

use self::report::{Ran, Report};
use self::run::{Ended, Progress, Scratch, Signals, run};
use self::suites::{SUITES, Suite};

const HELP: &str = "\
Runs the programme of faults and writes its report: to tests/FAULTS.md if all went well, else to target/tmp/FAULTS.md.

usage: make faults ARGS=\"[OPTION]...\"

  --quick        a small dose, about eight minutes on two cores, besides building; writes to target/tmp/FAULTS.md
  --only SUITE   only this suite; may be repeated; writes to target/tmp/FAULTS.md
  --help         this

The last line on standard output is the sum; the exit code is 0 only if no promise was violated, every suite ended well, and all
mutants were caught.";

/// As a shell says that Ctrl-C ended it.
const INTERRUPTED: u8 = 130;

/// Why there is no report.
enum Stopped {
    Interrupted,
    DoesNotBuild(&'static str),
}

struct Wish {
    quick: bool,
    only: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let wish = match arguments(std::env::args().skip(1)) {
        Ok(Some(wish)) => wish,
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
    let report = match all(&wish, root).await {
        Ok(report) => report,
        Err(Stopped::Interrupted) => {
            eprintln!("\ninterrupted: all that was started is ended");
            return ExitCode::from(INTERRUPTED);
        }
        Err(Stopped::DoesNotBuild(suite)) => {
            eprintln!("\nnothing was run: the suite {suite} does not build");
            return ExitCode::FAILURE;
        }
    };
    // The page that is kept is one of a run in which all went well.
    let is_kept = !wish.quick && wish.only.is_empty() && report.is_good();
    let to = root.join(if is_kept { "tests/FAULTS.md" } else { "target/tmp/FAULTS.md" });
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::write(&to, report.to_markdown(&wish.command())).unwrap();
    eprintln!("\nwritten: {}", to.display());
    for experiment in report.missing() {
        eprintln!("{experiment} was not run");
    }
    for failed in report.suites.iter().filter(|suite| !suite.is_good()) {
        let how = if failed.passed { "reported no experiment" } else { "failed: see its output" };
        eprintln!("the suite {} {how}", failed.name);
    }
    println!("{}", report.sum());
    std::io::stdout().flush().unwrap();
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Wish {
    /// How one says it.
    fn command(&self) -> String {
        let command = if self.quick { "make faults-quick" } else { "make faults" };
        let only: Vec<_> = self.only.iter().map(|suite| format!("--only {suite}")).collect();
        if only.is_empty() {
            command.to_owned()
        } else {
            format!("{command} ARGS=\"{}\"", only.join(" "))
        }
    }
}

/// Runs what is wished for.
async fn all(wish: &Wish, root: &Path) -> Result<Report, Stopped> {
    let chosen =
        |suite: &&Suite| wish.only.is_empty() || wish.only.iter().any(|name| name == suite.name);
    let suites: Vec<_> = SUITES.iter().filter(chosen).collect();
    let mut progress = Progress::new(suites.iter().map(|suite| suite.dose(wish.quick).seconds));
    let mut signals = Signals::new();
    for suite in &suites {
        progress.tell(&format!("building {}", suite.name));
        let mut command = suite.build(wish.quick);
        command.current_dir(root);
        match run(command, None, &mut signals).await {
            Ended::Well => {}
            Ended::Badly => return Err(Stopped::DoesNotBuild(suite.name)),
            Ended::Interrupted => return Err(Stopped::Interrupted),
        }
    }
    progress.all_is_built();
    let mut report = if wish.only.is_empty() {
        let read = |path| std::fs::read_to_string(root.join(path));
        let page = read("tests/FAULTS.md").unwrap_or_default();
        Report::of_all_promises(&read("tests/README.md").unwrap(), &page)
    } else {
        Report::default()
    };
    for suite in suites {
        let dose = suite.dose(wish.quick);
        progress.begin(suite.name, &format!("{}; dose: {}", suite.about, dose.words));
        let scratch = Scratch::new(root);
        let lines = scratch.0.join("report.jsonl");
        std::fs::File::create(&lines).unwrap();
        let start = Instant::now();
        let mut command = suite.command(wish.quick);
        command.current_dir(root).env(REPORT, &lines).env("TMPDIR", &scratch.0);
        let passed = match run(command, Some(&progress), &mut signals).await {
            Ended::Interrupted => return Err(Stopped::Interrupted),
            Ended::Well => true,
            Ended::Badly => false,
        };
        let told = report.add_lines(&std::fs::read_to_string(&lines).unwrap());
        let (name, dose, took) = (suite.name, dose.words, start.elapsed());
        progress.end(passed);
        report.suites.push(Ran { name, dose, took, passed, told });
    }
    Ok(report)
}

fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> Result<Option<Wish>, String> {
    let mut wish = Wish { quick: false, only: Vec::new() };
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--help" => return Ok(None),
            "--quick" => wish.quick = true,
            "--only" => {
                let name = arguments.next().unwrap_or_default();
                if !names().contains(&&*name) {
                    return Err(format!("no suite is named `{name}`"));
                }
                wish.only.push(name);
            }
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    Ok(Some(wish))
}
