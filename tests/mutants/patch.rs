//! Reads the patch files of this directory. Each plants one known bug and names the tests that
//! must notice it.
//!
//! A patch begins with a header of `Key: value` lines, up to the first empty line. A line that
//! begins with a space continues the one before.
//!
//! - `Bug` says what goes wrong.
//! - `Met` says where the bug was met before, if it was.
//! - `Suite` and `Test` name a test that must fail; the pair may be repeated. The suite is a test
//!   target of the workspace, or `lock_core` for the unit tests.
//! - `Quick: yes` makes the bug part of the small dose.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) type Problem = Box<dyn Error + Send + Sync>;

/// Where the patches are, from the root of the workspace.
const FOLDER: &str = "tests/mutants";

/// A known bug that a patch plants.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) name: String,
    /// What goes wrong, and where it was met.
    #[allow(dead_code)] // The suite `mutants` does not need it.
    pub(crate) bug: String,
    /// The tests that must fail.
    pub(crate) claims: Vec<Claim>,
    #[allow(dead_code)] // as above
    pub(crate) quick: bool,
    path: PathBuf,
}

/// A test that claims to notice a bug.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Claim {
    pub(crate) suite: String,
    pub(crate) test: String,
}

impl Patch {
    /// Reads all patches of the workspace at `root`, by name.
    pub(crate) fn read_all(root: &Path) -> Result<Vec<Self>, Problem> {
        let mut patches = Vec::new();
        for entry in std::fs::read_dir(root.join(FOLDER))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "patch") {
                let patch = Self::read(&path);
                patches.push(patch.map_err(|problem| format!("{}: {problem}", path.display()))?);
            }
        }
        patches.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(patches)
    }

    fn read(path: &Path) -> Result<Self, Problem> {
        let name = path.file_stem().ok_or("it has no name")?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path)?;
        let (header, _diff) = text.split_once("\n\n").ok_or("an empty line must end the header")?;
        let (mut bug, mut met, mut suite) = (None, None, None);
        let (mut claims, mut quick) = (Vec::new(), false);
        for line in header.replace("\n ", " ").lines() {
            let (key, value) =
                line.split_once(": ").ok_or_else(|| format!("no `Key: value`: {line}"))?;
            let value = value.trim().to_owned();
            match key {
                "Bug" => bug = Some(value),
                "Met" => met = Some(value),
                "Suite" => suite = Some(value),
                "Test" => {
                    let suite = suite.take().ok_or("each `Test` needs a `Suite` before it")?;
                    claims.push(Claim { suite, test: value });
                }
                "Quick" => quick = value == "yes",
                _ => return Err(format!("the header has no key `{key}`").into()),
            }
        }
        if claims.is_empty() || suite.is_some() {
            return Err("the header must name a `Suite` and its `Test`".into());
        }
        let bug = bug.ok_or("the header must say what the `Bug` is")?;
        let bug = if let Some(met) = met { format!("{bug} ({met})") } else { bug };
        Ok(Self { name, bug, claims, quick, path: path.to_owned() })
    }

    /// Fails unless the patch applies to the sources at `root` as they are, without fuzz.
    pub(crate) fn check(&self, root: &Path) -> Result<(), Problem> {
        self.git_apply(root, &["--check"])
    }

    /// Plants the bug in the sources at `root`.
    #[allow(dead_code)] // as above
    pub(crate) fn plant(&self, root: &Path) -> Result<(), Problem> {
        self.git_apply(root, &[])
    }

    /// Takes the bug out again.
    #[allow(dead_code)] // as above
    pub(crate) fn remove(&self, root: &Path) -> Result<(), Problem> {
        self.git_apply(root, &["--reverse"])
    }

    fn git_apply(&self, root: &Path, options: &[&str]) -> Result<(), Problem> {
        let mut git = Command::new("git");
        git.args(["apply", "--whitespace=nowarn"]).args(options).arg(&self.path).current_dir(root);
        // In a directory below a repository, git would ignore all files of the patch.
        let above = root.canonicalize()?;
        git.env("GIT_CEILING_DIRECTORIES", above.parent().unwrap_or(&above));
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
        let output = git.output()?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(format!("{FOLDER}/{}.patch does not apply: {}", self.name, why.trim()).into())
    }
}
