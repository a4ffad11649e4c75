//! A copy of the workspace's sources, in which one bug at a time is planted and built.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::patch::{Patch, Problem};
use crate::trial::{Program, start};

/// The suite of the unit tests, which is a library and no test target.
pub(crate) const UNIT_TESTS: &str = "lock_core";

/// The copy, and where it is built. Both are kept between runs, so that a bug costs an incremental
/// build.
#[derive(Debug)]
pub(crate) struct Workspace {
    sources: PathBuf,
    target: PathBuf,
    /// Held for as long as the copy is in use.
    _in_use: File,
}

impl Workspace {
    /// Copies the sources at `root` below `dir`, but for those that are there already.
    pub(crate) fn copy(root: &Path, dir: &Path) -> Result<Self, Problem> {
        fs::create_dir_all(dir)?;
        let in_use = File::create(dir.join("lock"))?;
        flock(&in_use, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("another run is using {}", dir.display()))?;
        let (sources, target) = (dir.join("sources"), dir.join("target"));
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let output = git.current_dir(root).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("git cannot list the sources".into());
        }
        let names = output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let names = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
        // A file that was deleted and is still in the index is no source any more.
        let names: BTreeSet<_> = names.filter(|name| root.join(name).is_file()).collect();
        for name in &names {
            let (from, to) = (root.join(name), sources.join(name));
            // Cargo builds anew what was written anew.
            if fs::read(&to).ok().as_ref() != Some(&fs::read(&from)?) {
                fs::create_dir_all(to.parent().ok_or("a source without a directory")?)?;
                fs::copy(&from, &to)?;
            }
        }
        remove_others(&sources, &sources, &names)?;
        Ok(Self { sources, target, _in_use: in_use })
    }

    /// Fails unless all patches apply.
    pub(crate) fn check(&self, patches: &[&Patch]) -> Result<(), Problem> {
        let problems = patches.iter().filter_map(|patch| patch.check(&self.sources).err());
        let problems: Vec<_> = problems.map(|problem| problem.to_string()).collect();
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) }
    }

    pub(crate) fn sources(&self) -> &Path {
        &self.sources
    }

    /// Builds the test program of `suite` and shows how cargo gets on.
    pub(crate) fn build(&self, suite: &str) -> Result<Program, Problem> {
        self.cargo(suite, Stdio::inherit())?.ok_or_else(|| does_not_build(suite))
    }

    /// Builds the test program of `suite` and shows nothing unless that fails.
    pub(crate) fn build_quietly(&self, suite: &str) -> Result<Program, Problem> {
        let log = self.target.with_extension("log");
        match self.cargo(suite, File::create(&log)?.into())? {
            Some(program) => Ok(program),
            None => {
                Err(format!("{}:\n{}", does_not_build(suite), fs::read_to_string(&log)?).into())
            }
        }
    }

    /// `None` if it does not build.
    fn cargo(&self, suite: &str, progress: Stdio) -> Result<Option<Program>, Problem> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
        let of_core = |path: &str| self.sources.join("lock-core/tests").join(path).exists();
        cargo.args(if suite == UNIT_TESTS {
            vec!["--all-features", "--package", "lock-core", "--lib"]
        } else if of_core(&format!("{suite}.rs")) || of_core(suite) {
            // Its tests need far fewer dependencies.
            vec!["--all-features", "--package", "lock-core", "--test", suite]
        } else {
            vec!["--all-features", "--package", "lock-tests", "--test", suite]
        });
        cargo.env("CARGO_TARGET_DIR", &self.target).current_dir(&self.sources);
        cargo.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
        let cargo = start(cargo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(progress))?;
        let output = cargo.output()?;
        if !output.status.success() {
            return Ok(None);
        }
        for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line)?;
            // A program of the same name may be no test.
            let is_suite = message["target"]["name"] == suite && message["profile"]["test"] == true;
            let (true, Some(program)) = (is_suite, message["executable"].as_str()) else {
                continue;
            };
            let manifest = message["manifest_path"].as_str().map(Path::new);
            let dir = manifest.and_then(Path::parent).ok_or("an artifact without a manifest")?;
            return Ok(Some(Program { path: program.into(), dir: dir.into() }));
        }
        Err(format!("there is no suite {suite}").into())
    }
}

fn does_not_build(suite: &str) -> Problem {
    format!("the suite {suite} does not build").into()
}

/// Removes the files below `dir` that are not among `names`, which begin at `sources`.
fn remove_others(sources: &Path, dir: &Path, names: &BTreeSet<PathBuf>) -> Result<(), Problem> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(sources, &path, names)?;
        } else if !names.contains(path.strip_prefix(sources)?) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
