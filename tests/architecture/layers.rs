//! The floors of `lock-core`: a file imports its own floor and what lies below, never what lies
//! above.

use std::collections::BTreeMap;

use crate::cycles::graphs;
use crate::graph::Graph;

/// Where the paths below begin.
const SOURCES: &str = "lock-core/src/";

/// From top to bottom; a name that ends in `/` is a folder.
const FLOORS: &[&[&str]] = &[
    // The facade lists everything; test helpers may look anywhere.
    &["lib.rs", "private.rs", "testing/", "_design/", "guide/"],
    &["config/"],
    &["client/"],
    &["lock/"],
    &["held/"],
    &["state.rs"],
    &["registry/"],
    &["driver/"],
    &["store/"],
    &["lease/"],
    &[
        "activity.rs",
        "backoff.rs",
        "error.rs",
        "fencing/",
        "key/",
        "metrics/",
        "options.rs",
        "probe.rs",
        "random.rs",
        "runtime.rs",
        "sync.rs",
        "time.rs",
        "tracker.rs",
    ],
];

/// The same inside the Redis store.
const REDIS: &str = "store/redis/";
const REDIS_FLOORS: &[&[&str]] = &[
    &[
        "mod.rs",
        "builder.rs",
        "check.rs",
        "fuzzing.rs",
        "inspect.rs",
        "member.rs",
        "permissions.rs",
        "url.rs",
    ],
    &["wait/"],
    &["protocol.rs", "in_doubt.rs", "in_doubt/", "vote.rs"],
    &["servers.rs"],
    &["cluster/", "no_cluster.rs"],
    &["transport/"],
    &["credentials.rs", "error.rs", "info.rs", "keys.rs", "scripts.rs"],
];

/// Stores that are one file; the other files of `store/` are the contract.
const STORES_IN_ONE_FILE: &[&str] = &["memory.rs"];

/// Knows every store: it picks one by URL. Nothing in `store/` imports it.
const PICKS_A_STORE: &str = "store/connect.rs";

/// The files of one store that may import another: the members of a quorum are stores themselves.
const BUILDS_ON: &[(&str, &str)] = &[("store/quorum/builder.rs", "redis")];

/// The floor of `file`, counted from the top.
fn floor(floors: &[&[&str]], file: &str) -> Option<usize> {
    let is_here = |name: &&str| *name == file || name.ends_with('/') && file.starts_with(*name);
    floors.iter().position(|floor| floor.iter().any(is_here))
}

/// The store that `file` is a part of: its folder or its file.
fn store(file: &str) -> Option<&str> {
    let name = file.strip_prefix("store/")?;
    match name.split_once('/') {
        Some((folder, _)) => Some(folder),
        None => STORES_IN_ONE_FILE.contains(&name).then_some(name),
    }
}

/// Why `from` may not import `to`, if it may not.
fn objection(from: &str, to: &str) -> Option<String> {
    let upward = |floors, from, to| floor(floors, from) > floor(floors, to);
    if upward(FLOORS, from, to) {
        return Some("lies above it".to_owned());
    }
    if let Some(other) = store(to)
        && to.starts_with("store/")
        && from.starts_with("store/")
        && store(from) != Some(other)
        && from != PICKS_A_STORE
        && !BUILDS_ON.contains(&(from, other))
    {
        let who = if store(from).is_some() { "another store" } else { "the contract" };
        return Some(format!("belongs to the store `{other}`, and {who} imports it"));
    }
    if let (Some(from), Some(to)) = (from.strip_prefix(REDIS), to.strip_prefix(REDIS))
        && upward(REDIS_FLOORS, from, to)
    {
        return Some("lies above it in the Redis store".to_owned());
    }
    None
}

fn violations(graph: &Graph) -> Vec<String> {
    let mut found = Vec::new();
    let inside = |file: &str| file.strip_prefix(SOURCES).map(str::to_owned);
    for (file, arrows) in graph {
        let Some(from) = inside(file) else { continue };
        let redis = from.strip_prefix(REDIS);
        let homeless = redis.is_some_and(|file| floor(REDIS_FLOORS, file).is_none());
        if floor(FLOORS, &from).is_none() || homeless {
            found.push(format!("{file} has no floor: add it to `FLOORS`"));
        }
        for (other, path) in arrows {
            let Some(reason) = inside(other).and_then(|to| objection(&from, &to)) else { continue };
            found.push(format!("{file} imports {other} ({path}), which {reason}"));
        }
    }
    found
}

#[test]
fn no_file_of_lock_core_imports_what_lies_above_it() {
    let found = violations(&graphs()["lock-core"]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_import_from_above_is_found() {
    let refused = [
        ("driver/renewer.rs", "held/mod.rs"),
        ("held/mod.rs", "client/mod.rs"),
        ("registry/wait_list.rs", "state.rs"),
        ("state.rs", "held/inner.rs"),
        ("lease/state.rs", "store/request.rs"),
        ("store/memory.rs", "driver/mod.rs"),
        ("store/memory.rs", "store/redis/mod.rs"),
        ("store/redis/transport/batch.rs", "store/memory.rs"),
        ("store/mod.rs", "store/redis/mod.rs"),
        ("store/request.rs", "store/memory.rs"),
        ("store/quorum/rounds.rs", "store/redis/mod.rs"),
        ("store/redis/mod.rs", "store/quorum/mod.rs"),
        ("store/redis/transport/connection.rs", "store/redis/wait/ticket.rs"),
        ("store/redis/transport/command.rs", "store/redis/protocol.rs"),
    ];
    let allowed = [
        ("client/mod.rs", "lock/mutex.rs"),
        ("lib.rs", "client/mod.rs"),
        ("store/memory.rs", "store/request.rs"),
        ("store/redis/wait/mod.rs", "store/mod.rs"),
        ("store/redis/wait/mod.rs", "store/redis/transport/command.rs"),
        ("store/redis/wait/mod.rs", "error.rs"),
        ("store/quorum/builder.rs", "store/redis/mod.rs"),
        ("store/connect.rs", "store/quorum/mod.rs"),
    ];
    for (from, to) in refused {
        let arrow = BTreeMap::from([(format!("{SOURCES}{to}"), "a::B".to_owned())]);
        let found = violations(&Graph::from([(format!("{SOURCES}{from}"), arrow)]));
        assert_eq!(found.len(), 1, "{from} may import {to}");
        assert!(found[0].contains(from) && found[0].contains(to), "{}", found[0]);
    }
    for (from, to) in allowed {
        assert_eq!(objection(from, to), None, "{from} may not import {to}");
    }
}

#[test]
fn a_file_without_a_floor_is_found() {
    for file in ["stray.rs", "store/redis/lane.rs"] {
        let graph = Graph::from([(format!("{SOURCES}{file}"), BTreeMap::new())]);
        assert_eq!(violations(&graph).len(), 1, "{file}");
    }
}
