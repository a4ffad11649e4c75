//! The minimum Rust version is what the dependencies of the published crates need.
//!
//! That our own code needs no more is clippy's `incompatible_msrv`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::sources::workspace;

/// Crates of which the benchmarks' peers lock a version that is too new; older ones do for us.
const NEWER_THAN_NEEDED: [&str; 1] = ["uuid"];
const PACKAGES: [&str; 3] = ["lock-core", "lock-macros", "lock-tower"];

type Version = Vec<u64>;

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn version(text: &Value) -> Option<Version> {
    let mut parts: Version = text.as_str()?.split('.').map(|part| part.parse().unwrap()).collect();
    parts.resize(3, 0);
    Some(parts)
}

/// The dependencies of `packages` that are compiled into them, by name, with what they need.
fn needs(metadata: &Value, packages: &[&str]) -> BTreeMap<String, Version> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let by_id = |value: &Value| -> BTreeMap<String, Value> {
        list(value).into_iter().map(|it| (it["id"].as_str().unwrap().to_owned(), it)).collect()
    };
    let described = by_id(&metadata["packages"]);
    let resolved = by_id(&metadata["resolve"]["nodes"]);
    let is_ours = |package: &Value| {
        package["source"].is_null() && packages.contains(&package["name"].as_str().unwrap())
    };
    let ours = described.iter().filter(|(_, package)| is_ours(package)).map(|(id, _)| id.clone());
    let mut left: Vec<String> = ours.collect();
    assert_eq!(left.len(), packages.len());
    let mut seen = BTreeSet::new();
    let mut found = BTreeMap::new();
    while let Some(id) = left.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let package = &described[&id];
        if !package["source"].is_null()
            && let Some(version) = version(&package["rust_version"])
        {
            found.insert(package["name"].as_str().unwrap().to_owned(), version);
        }
        for dependency in list(&resolved[&id]["deps"]) {
            let is_dev = |kind: &Value| kind["kind"].as_str() == Some("dev");
            if !list(&dependency["dep_kinds"]).iter().all(is_dev) {
                left.push(dependency["pkg"].as_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn the_minimum_rust_version_is_what_dependencies_need() {
    let rustc = output("rustc", &["-vV"]);
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let platform = format!("--filter-platform={host}");
    let args = ["metadata", "--format-version=1", "--offline", "--all-features", &platform];
    let metadata = serde_json::from_str(&output(env!("CARGO"), &args)).unwrap();
    let mut needs = needs(&metadata, &PACKAGES);
    for name in NEWER_THAN_NEEDED {
        assert!(needs.remove(name).is_some(), "{name} is no dependency any more");
    }
    let most = needs.values().max().unwrap().clone();
    let declared = metadata["packages"].as_array().unwrap().iter().filter(|package| {
        package["source"].is_null() && PACKAGES.contains(&package["name"].as_str().unwrap())
    });
    for package in declared {
        let version = version(&package["rust_version"]).unwrap();
        needs.retain(|_, needed| *needed == most);
        assert_eq!(version, most, "{}: {needs:?}", package["name"]);
    }
}

#[test]
fn what_dependencies_of_dependencies_need_counts_and_what_tests_need_does_not() {
    let metadata = serde_json::json!({
        "packages": [
            { "id": "a", "name": "a", "source": null, "rust_version": "1.80" },
            { "id": "b", "name": "b", "source": "registry", "rust_version": "1.81" },
            { "id": "c", "name": "c", "source": "registry", "rust_version": "1.82.1" },
            { "id": "d", "name": "d", "source": "registry", "rust_version": "1.99" },
        ],
        "resolve": { "nodes": [
            { "id": "a", "deps": [
                { "pkg": "b", "dep_kinds": [{ "kind": null }, { "kind": "dev" }] },
                { "pkg": "d", "dep_kinds": [{ "kind": "dev" }] },
            ] },
            { "id": "b", "deps": [{ "pkg": "c", "dep_kinds": [{ "kind": "build" }] }] },
            { "id": "c", "deps": [] },
            { "id": "d", "deps": [] },
        ] },
    });
    let expected = [("b".to_owned(), vec![1, 81, 0]), ("c".to_owned(), vec![1, 82, 1])];
    assert_eq!(needs(&metadata, &["a"]), BTreeMap::from(expected));
}
