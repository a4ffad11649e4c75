//! Finds the packages, their targets and the text files of the workspace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A crate root: `lib.rs`, `main.rs`, a test or an example.
pub(crate) struct Target {
    pub(crate) package: String,
    pub(crate) root: PathBuf,
    pub(crate) is_library: bool,
    /// Names of the crates that the package depends on, as they are written in paths.
    pub(crate) dependencies: BTreeSet<String>,
}

/// The root of the workspace, as cargo gives it at run time: checkouts may share their builds.
pub(crate) fn workspace() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().unwrap().to_path_buf()
}

/// A list beside these tests.
pub(crate) fn list(name: &str) -> String {
    std::fs::read_to_string(workspace().join("tests/architecture").join(name)).unwrap()
}

/// `path` as it is written in messages and lists.
pub(crate) fn shown(path: &Path) -> String {
    let root = workspace();
    path.strip_prefix(&root).unwrap_or(path).to_str().unwrap().to_owned()
}

pub(crate) fn targets() -> Vec<Target> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut targets = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let dependencies: BTreeSet<String> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| {
                let name = dependency["rename"].as_str().or_else(|| dependency["name"].as_str());
                name.unwrap().replace('-', "_")
            })
            .collect();
        for target in package["targets"].as_array().unwrap() {
            targets.push(Target {
                package: package["name"].as_str().unwrap().to_owned(),
                root: target["src_path"].as_str().unwrap().into(),
                is_library: matches!(target["kind"][0].as_str(), Some("lib" | "proc-macro")),
                dependencies: dependencies.clone(),
            });
        }
    }
    targets
}

/// Whether files of this path are text that we write.
fn is_text(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(extension) = path.extension() else {
        return name == "Makefile" || matches!(name, "need" | "run");
    };
    ["rs", "lua", "md", "toml", "mjs", "py", "sql", "html", "conf", "sh"]
        .iter()
        .any(|known| extension == *known)
}

/// Every text file of the workspace, in order, but for what is built or downloaded.
pub(crate) fn texts() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let mut entries: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let hidden = name.starts_with('.') && name != ".ci";
                if !hidden && !matches!(name, "target" | "node_modules" | "corpus" | "artifacts") {
                    walk(&path, found);
                }
            } else if is_text(&path) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace(), &mut found);
    found
}

#[test]
fn the_sources_are_found() {
    let targets = targets();
    for package in ["lock-core", "lock-macros", "lock-tower", "lock-tests", "seckill"] {
        assert!(targets.iter().any(|target| target.package == package), "{package} is missing");
    }
    let texts: Vec<_> = texts().iter().map(|path| shown(path)).collect();
    for path in ["Makefile", ".ci/run", "README.md", "lock-core/src/lib.rs", "tests/README.md"] {
        assert!(texts.iter().any(|text| text == path), "{path} is missing");
    }
    assert!(texts.len() > 200, "only {} files were found", texts.len());
}
