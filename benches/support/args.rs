//! The command line, and the order of a run.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use futures_util::FutureExt;

use super::machine::{self, Cores};
use super::report::{self, Outcome};
use super::server::Server;
use super::{stats, worker};
use crate::cells;

/// Options of ourselves when we are another process of the same run.
pub(crate) const HIDDEN_WORKER: &str = "--as-worker";
pub(crate) const HIDDEN_EXEC: &str = "--as-pinned";

const HELP: &str = "\
What locks cost, beside the raw limit and the other crates, in one run.

usage: cargo bench --package lock-benches --bench locks --features peers -- [OPTION]...

  --quick       every cell in a small dose: at most two minutes, nothing to quote
  --only CELL   only this cell; may be repeated
  --json        one object per cell on stdout
  --help        this

cells: uncontended, hot-key, drain, faults, renewal, overhead

A full run of all cells writes benches/RESULTS.md and benches/plots/. The exit code is 1 if critical sections overlapped,
or if a cell came to no end.";

/// What the cells of a run share.
pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) cores: Cores,
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) started: Instant,
}

impl Run {
    /// A dose: the first in a quick run, the second in a full one.
    pub(crate) fn dose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Says on stderr how far we are.
    pub(crate) fn progress(&self, cell: &str, round: usize, rounds: usize) {
        let elapsed = self.started.elapsed().as_secs_f64();
        eprintln!("[{elapsed:6.1} s] {cell}: round {} of {rounds}", round + 1);
    }
}

struct Args {
    quick: bool,
    json: bool,
    only: Vec<String>,
}

pub(crate) fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(HIDDEN_WORKER) => {
            worker::work(&args[1], &args[2], &args[3]);
            return ExitCode::SUCCESS;
        }
        Some(HIDDEN_EXEC) => machine::become_command(&args[1], &args[2..]),
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

/// `None` if help is asked for.
fn parse(args: Vec<String>) -> Result<Option<Args>, String> {
    let mut parsed = Args { quick: false, json: false, only: Vec::new() };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => parsed.quick = true,
            "--json" => parsed.json = true,
            "--only" => {
                let cell = args.next().unwrap_or_default();
                if !cells::NAMES.contains(&cell.as_str()) {
                    return Err(format!("no such cell: `{cell}`"));
                }
                parsed.only.push(cell);
            }
            "--help" | "-h" => return Ok(None),
            // Cargo adds it.
            "--bench" => {}
            _ => return Err(format!("no such option: `{arg}`")),
        }
    }
    Ok(Some(parsed))
}

async fn run(args: Args) -> ExitCode {
    let cores = Cores::find();
    let server = Server::start(cores).await;
    cores.pin_clients();
    let Args { quick, json, only } = args;
    let run = Run { server, cores, quick, json, started: Instant::now() };
    eprintln!("{}; redis-server {}", machine::describe(), run.server.version);
    eprintln!("pinning: {}", cores.describe());
    if !cfg!(feature = "peers") {
        eprintln!("without the other crates: they come with `--features peers`");
    }
    let mut outcome = Outcome::default();
    let mut broken = Vec::new();
    for name in cells::NAMES {
        if only.is_empty() || only.iter().any(|cell| cell == name) {
            // What was measured before is not lost with a cell that cannot go on.
            match AssertUnwindSafe(cells::measure(name, &run)).catch_unwind().await {
                Ok(Outcome { tables, bars }) => {
                    outcome.tables.extend(tables);
                    outcome.bars.extend(bars);
                }
                Err(_) => broken.push(name),
            }
        }
    }
    report::print(&run, &outcome);
    if only.is_empty() {
        // A quick run must not replace figures that are worth quoting.
        let folder = if quick { env!("CARGO_TARGET_TMPDIR") } else { env!("CARGO_MANIFEST_DIR") };
        report::write(&run, &outcome, Path::new(folder));
        eprintln!("written: {folder}/RESULTS.md");
    }
    if !broken.is_empty() {
        eprintln!("cells that came to no end, for the reasons above: {broken:?}");
    }
    let (_, overlaps) = stats::checked();
    ExitCode::from(u8::from(overlaps > 0 || !broken.is_empty()))
}
