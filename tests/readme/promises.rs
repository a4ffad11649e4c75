//! Each promise rests on experiments that were run, and each experiment that was run belongs to a
//! promise.
//!
//! `tests/FAULTS.md` says what was run; the table of promises in `tests/README.md`, what for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::root;

/// Where the table goes on with the promise of the line before.
const MORE: &str = "..";

/// A row of the report.
#[derive(Debug)]
struct Row {
    number: u64,
    promised: String,
    fault: String,
    runs: u64,
    events: u64,
    violations: u64,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// What stands below the heading, up to the next of its rank.
fn section<'a>(text: &'a str, heading: &str, next: &str) -> &'a str {
    let (_, after) = text.split_once(heading).unwrap_or_else(|| panic!("there is no {heading}"));
    after.split(next).next().unwrap()
}

/// What is printed bold at the beginning of lines that begin with `mark`.
fn bold(text: &str, mark: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
    lines.map(|line| line.split("**").next().unwrap().trim_end_matches('.').to_owned()).collect()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_start_matches('|').trim_end_matches('|').split('|').map(str::trim).collect()
}

fn number(text: &str) -> u64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// By promise, the numbers of its experiments.
fn table() -> BTreeMap<String, BTreeSet<u64>> {
    let readme = read("tests/README.md");
    let (mut table, mut promise) = (BTreeMap::<_, BTreeSet<_>>::new(), String::new());
    let lines = section(&readme, "## What is promised", "\n## ").lines();
    for line in lines.filter(|line| line.starts_with('|')).skip(2) {
        let cells = cells(line);
        if !cells[0].starts_with(MORE) {
            cells[0].split(':').next().unwrap().clone_into(&mut promise);
        }
        let numbers = cells[1].split(',').map(str::trim).filter(|cell| !cell.is_empty());
        table.entry(promise.clone()).or_default().extend(numbers.map(number));
    }
    table
}

fn report() -> Vec<Row> {
    let report = read("tests/FAULTS.md");
    let table = section(&report, "| | promised | fault | runs |", "\n## ");
    let rows: Vec<_> =
        table.lines().skip(2).filter(|line| line.starts_with('|')).map(row).collect();
    assert!(rows.len() > 50, "{}: the report was not read", rows.len());
    rows
}

fn row(line: &str) -> Row {
    let cells = cells(line);
    let [experiment, promised, fault, runs, events, violations] = cells[..] else {
        panic!("not a row: {line}")
    };
    // What they are called may have commas, too.
    let counts = events.split(' ').filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Row {
        number: number(experiment),
        promised: promised.to_owned(),
        fault: fault.to_owned(),
        runs: number(runs),
        events: counts.map(number).sum(),
        violations: number(violations),
    }
}

#[test]
fn every_promise_has_experiments_that_were_run() {
    let (readme, docs) = (read("README.md"), read("lock-core/src/lib.rs"));
    let promises = bold(section(&readme, "## What it promises", "\n## "), "| **");
    assert!(promises.len() >= 7, "{promises:?}");
    let in_docs = bold(section(&docs, "//! # Guarantees", "\n//! # "), "//! - **");
    assert_eq!(in_docs, promises, "the crate's docs promise what README.md does");

    let (table, report) = (table(), report());
    for promise in &promises {
        let numbers = table.get(promise);
        let numbers = numbers.unwrap_or_else(|| panic!("tests/README.md does not name {promise}"));
        assert!(!numbers.is_empty(), "{promise}: tests/README.md names no experiment");
        let good = |row: &&Row| row.runs > 0 && row.events > 0 && row.violations == 0;
        let rows = report.iter().filter(|row| numbers.contains(&row.number));
        assert!(rows.filter(good).count() > 0, "{promise}: no experiment held");
    }
    for (promise, numbers) in &table {
        for number in numbers {
            let mut rows = report.iter().filter(|row| row.number == *number).peekable();
            assert!(rows.peek().is_some(), "{promise}: tests/FAULTS.md has no experiment {number}");
            for row in rows {
                assert!(row.runs > 0 && row.events > 0, "{promise}: nothing happened: {row:?}");
                assert_eq!(row.violations, 0, "{promise}: {row:?}");
            }
        }
    }
}

#[test]
fn every_experiment_of_the_report_is_one_of_a_promise() {
    let sources = sources();
    let numbers: BTreeSet<_> = table().into_values().flatten().collect();
    for row in report() {
        assert!(numbers.contains(&row.number), "tests/README.md names no promise for {row:?}");
        for words in [&row.promised, &row.fault] {
            let is_there = sources.contains(&format!("\"{words}\""));
            assert!(is_there, "tests/FAULTS.md is old: no experiment says `{words}`: {row:?}");
        }
    }
}

#[test]
fn every_mutant_is_in_the_report_and_was_caught() {
    let report = read("tests/FAULTS.md");
    assert!(report.contains("Written by `make faults`;"), "tests/FAULTS.md is no whole run");
    let rows = section(&report, "## Known bugs, planted", "\n## ").lines();
    let rows: Vec<_> = rows.filter(|line| line.starts_with('|')).skip(2).map(cells).collect();
    let mut patches = 0;
    for entry in std::fs::read_dir(root().join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let row = rows.iter().find(|cells| cells[0] == name);
            let row = row.unwrap_or_else(|| panic!("tests/FAULTS.md is old: it has no {name}"));
            assert_eq!(row.last(), Some(&"caught"), "{name}");
            patches += 1;
        }
    }
    assert_eq!(rows.len(), patches, "tests/FAULTS.md is old: it has mutants without a patch");
}

/// All tests, with strings that are broken into lines put together.
fn sources() -> String {
    fn add(dir: &Path, to: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, to);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let mut pieces = text.split("\\\n");
                to.push_str(pieces.next().unwrap());
                pieces.for_each(|piece| to.push_str(piece.trim_start()));
            }
        }
    }
    let mut all = String::new();
    add(&root().join("tests"), &mut all);
    add(&root().join("lock-core/src"), &mut all);
    all
}
