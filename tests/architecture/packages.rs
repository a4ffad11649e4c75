//! What is published contains what it needs, and no tests, planted bugs or plots.

use std::process::Command;

use crate::sources::workspace;

const PACKAGES: [&str; 3] = ["lock-core", "lock-macros", "lock-tower"];

/// The files that `cargo package` puts into the archive.
fn files(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline", "--package", package])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Whether a file has no business in an archive.
fn is_alien(file: &str) -> bool {
    let beside = ["Cargo.toml", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json"];
    let texts = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
    let is_source = ["src/", "docs/"].iter().any(|folder| file.starts_with(folder))
        && [".rs", ".lua", ".md"].iter().any(|end| file.ends_with(end));
    let is_page = file.starts_with("src/console/page.");
    let is_source = is_source || is_page && !file.ends_with(".png");
    !(beside.contains(&file) || texts.contains(&file) || is_source) || file.contains("mutant")
}

#[test]
fn packages_hold_the_sources_and_nothing_else() {
    for package in PACKAGES {
        let files = files(package);
        let aliens: Vec<_> = files.iter().filter(|file| is_alien(file)).collect();
        assert!(aliens.is_empty(), "{package} would publish {aliens:#?}");
        for needed in ["src/lib.rs", "README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(files.iter().any(|file| file == needed), "{package} lacks {needed}");
        }
    }
    assert!(files("lock-core").iter().any(|file| file.ends_with("acquire.lua")));
}

#[test]
fn tests_plots_and_planted_bugs_are_recognised() {
    for file in ["tests/holding.rs", "plots/a.svg", "snapshots/a.rs", "src/mutants.rs", "run"] {
        assert!(is_alien(file), "{file}");
    }
    for file in ["src/lib.rs", "src/store/redis/scripts/acquire.lua", "docs/key.md"] {
        assert!(!is_alien(file), "{file}");
    }
}
