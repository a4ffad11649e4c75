//! The planted bugs: each patch still applies and names tests that exist. `make mutants` shows that
//! those tests notice the bugs.
// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod patch;

use std::path::Path;

use self::patch::{Claim, Patch};

/// Where the sources of tests are that a patch may name, from the root of the workspace.
const TESTS: [&str; 3] = ["lock-core/src", "lock-core/tests", "tests"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A refactoring that breaks a patch fails here, long before the bugs are planted again.
#[test]
fn every_patch_applies_to_the_sources() {
    let patches = Patch::read_all(root()).unwrap();
    let broken: Vec<_> = patches.iter().filter_map(|patch| patch.check(root()).err()).collect();
    assert!(!patches.is_empty() && broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_patch_names_tests_that_exist() {
    fn read_below(dir: &Path, to: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_below(&path, to);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                to.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut sources = String::new();
    TESTS.iter().for_each(|dir| read_below(&root().join(dir), &mut sources));
    for Patch { name, claims, .. } in Patch::read_all(root()).unwrap() {
        for Claim { suite, test } in claims {
            let (store, function) = test.rsplit_once("::").unwrap_or(("", &test));
            let is_there = sources.contains(&format!("fn {function}("));
            assert!(is_there, "{name}: no test is named {test}");
            // Its tests exist once for each store.
            assert!(suite != "conformance" || !store.is_empty(), "{name}: {test} of which store?");
        }
    }
}
