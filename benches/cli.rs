//! The command line and the order of a run.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use futures_util::FutureExt;

use crate::scenarios;
use crate::support::machine::{self, Cores};
use crate::support::report::{self, Outcome};
use crate::support::run::Run;
use crate::support::server::Server;
use crate::support::{stats, worker};

const HELP: &str = "\
Measures what locks cost, next to a bare connection and other lock crates.

Usage: cargo bench --package lock-benches --bench locks --features peers -- [OPTION]...

  --quick           run every scenario briefly: two minutes at most, figures not worth quoting
  --only SCENARIO   run only this scenario; may be repeated
  --json            print one JSON object per table to stdout
  --help            print this help

Scenarios: uncontended, hot-key, drain, faults, renewal, topologies, overhead

A full run of all scenarios writes benches/RESULTS.md and benches/plots/. The exit code is 1 if
critical sections overlapped or if a scenario did not finish.";

struct Args {
    quick: bool,
    json: bool,
    only: Vec<String>,
}

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(worker::HIDDEN_OPTION) => {
            worker::work(&args[1], &args[2], &args[3]);
            return ExitCode::SUCCESS;
        }
        Some(machine::HIDDEN_OPTION) => machine::become_command(&args[1], &args[2..]),
        _ => {}
    }
    let args = match parse(args) {
        Ok(Some(args)) => args,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("{problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(args))
}

/// Returns `None` for `--help`.
fn parse(args: Vec<String>) -> Result<Option<Args>, String> {
    let mut parsed = Args { quick: false, json: false, only: Vec::new() };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => parsed.quick = true,
            "--json" => parsed.json = true,
            "--only" => {
                let scenario = args.next().unwrap_or_default();
                if !scenarios::NAMES.contains(&scenario.as_str()) {
                    return Err(format!("unknown scenario: `{scenario}`"));
                }
                parsed.only.push(scenario);
            }
            "--help" | "-h" => return Ok(None),
            // Cargo adds it.
            "--bench" => {}
            _ => return Err(format!("unknown option: `{arg}`")),
        }
    }
    Ok(Some(parsed))
}

async fn run(args: Args) -> ExitCode {
    let cores = Cores::find();
    let server = Server::start(cores).await;
    cores.pin_clients();
    let Args { quick, json, only } = args;
    let run = Run { server, cores, quick, started: Instant::now() };
    eprintln!("{}; redis-server {}", machine::describe(), run.server.version);
    eprintln!("pinning: {}", cores.describe());
    if !cfg!(feature = "peers") {
        eprintln!("other lock crates are not measured without `--features peers`");
    }
    let mut outcome = Outcome::default();
    let mut unfinished = Vec::new();
    for name in scenarios::NAMES {
        if only.is_empty() || only.iter().any(|scenario| scenario == name) {
            // A scenario that panics does not discard the figures of the earlier ones.
            match AssertUnwindSafe(scenarios::measure(name, &run)).catch_unwind().await {
                Ok(Outcome { tables, thresholds }) => {
                    outcome.tables.extend(tables);
                    outcome.thresholds.extend(thresholds);
                }
                Err(_) => unfinished.push(name),
            }
        }
    }
    if json {
        report::print_json(&outcome);
    } else {
        report::print_text(&outcome);
    }
    if only.is_empty() {
        // A quick run must not replace figures that are worth quoting.
        let folder = if quick { env!("CARGO_TARGET_TMPDIR") } else { env!("CARGO_MANIFEST_DIR") };
        report::write(&run, &outcome, Path::new(folder));
        eprintln!("wrote {folder}/RESULTS.md");
    }
    if !unfinished.is_empty() {
        eprintln!("scenarios that did not finish, for the reasons above: {unfinished:?}");
    }
    let (_, overlaps) = stats::checked();
    ExitCode::from(u8::from(overlaps > 0 || !unfinished.is_empty()))
}
