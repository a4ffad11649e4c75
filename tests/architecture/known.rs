//! Files that still violate a check: the list only ever shrinks.

use std::collections::BTreeSet;

use crate::sources;

/// `check path` per line; a line that is no longer needed fails the check.
fn list() -> String {
    sources::list("known.txt")
}

/// What remains of `found` (by file) after the known exceptions of `check`.
pub(crate) fn new_violations(check: &str, found: &[(String, String)]) -> Vec<String> {
    compare(check, &list(), found)
}

fn compare(check: &str, known: &str, found: &[(String, String)]) -> Vec<String> {
    let known: BTreeSet<&str> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, path)| (name == check).then_some(path))
        .collect();
    let mut messages: Vec<String> = found
        .iter()
        .filter(|(path, _)| !known.contains(path.as_str()))
        .map(|(_, message)| message.clone())
        .collect();
    let mended = known.iter().filter(|path| found.iter().all(|(file, _)| file != *path));
    messages.extend(mended.map(|path| format!("known.txt: `{check} {path}` is no longer needed")));
    messages
}

/// The files that `check` is known to find.
pub(crate) fn files(check: &str) -> BTreeSet<String> {
    let named = |line: &str| {
        line.split_once(' ').filter(|(name, _)| *name == check).map(|(_, path)| path.to_owned())
    };
    list().lines().filter_map(named).collect()
}

#[test]
fn known_exceptions_hide_only_what_they_name_and_must_be_needed() {
    let found = [("a.rs".to_owned(), "a is wrong".to_owned())];
    assert_eq!(compare("words", "", &found), ["a is wrong"]);
    assert_eq!(compare("words", "cycle a.rs\n", &found), ["a is wrong"]);
    assert!(compare("words", "words a.rs\n", &found).is_empty());
    let unneeded = compare("words", "words a.rs\nwords b.rs\n", &found);
    assert_eq!(unneeded, ["known.txt: `words b.rs` is no longer needed"]);
}
