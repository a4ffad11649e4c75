//! The tables of `tests/README.md` name tests that exist.

use std::collections::HashSet;
use std::path::Path;

use super::root;

/// The names of all functions below `dir`, and of the files, which UI tests are named by.
fn names_below(dir: &Path, names: &mut HashSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
            let text = std::fs::read_to_string(&path).unwrap();
            let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            names.extend(functions.map(str::to_owned));
        }
    }
}

#[test]
fn every_test_in_the_tables_exists() {
    let mut names = HashSet::new();
    for dir in ["lock-core/src", "lock-core/tests", "tests", "examples/seckill/tests"] {
        names_below(&root().join(dir), &mut names);
    }
    let readme = std::fs::read_to_string(root().join("tests/README.md")).unwrap();
    let (mut column, mut found) = (None, 0);
    for line in readme.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if cells.len() < 3 {
            column = None;
            continue;
        }
        let Some(column) = column else {
            column = cells.iter().position(|cell| *cell == "tests").or(Some(0));
            continue;
        };
        let quoted = cells[column].split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| name.contains('_') && !name.contains('.')) {
            assert!(names.contains(name), "tests/README.md names `{name}`, which is no test");
            found += 1;
        }
    }
    assert!(found > 100, "{found}: the tables were not read");
}
