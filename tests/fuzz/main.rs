//! Runs the fuzz targets on their corpus and on some random inputs derived from it.
//!
//! `cargo fuzz run key tests/fuzz/corpus/key` fuzzes without a limit. Add the inputs that it finds
//! to the corpus.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use lock_testkit::{Experiment, scale};
use lock_tests::fuzz;

use self::mutate::Mutator;

/// Runs `body` on the corpus of `target` and on `count` random mutations of it.
fn run(target: &str, mut experiment: Experiment, body: fn(&[u8]) -> bool, count: usize) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let mut mutator = Mutator::new(&corpus);
    let mutated = (0..scale(count)).map(|_| mutator.mutate()).collect::<Vec<_>>();
    for input in corpus.iter().chain(&mutated) {
        let Ok(accepted) = catch_unwind(AssertUnwindSafe(|| body(input))) else {
            panic!("{target} fails on {:?}", String::from_utf8_lossy(input));
        };
        experiment.saw(EVENTS[usize::from(!accepted)], 1);
    }
    experiment.ran(corpus.len() + mutated.len());
    experiment.finish();
}

const EVENTS: &[&str] = &["inputs accepted", "inputs rejected"];

/// Two lists of values could share a key, or a value could change the structure of its key.
#[test]
fn different_values_give_different_keys_and_stay_in_their_holes() {
    let experiment = Experiment::new(37, "fuzz: keys", "values of any bytes", EVENTS);
    run("key", experiment, fuzz::key::encode, 20_000);
}

/// The parser could panic, not end, or drop characters.
#[test]
fn every_template_is_parsed_or_rejected() {
    let experiment = Experiment::new(37, "fuzz: templates", "templates of any bytes", EVENTS);
    run("template", experiment, fuzz::template::parse, 5_000);
}

/// The reader could panic, or take an impossible number for a fencing token.
#[test]
fn every_reply_is_parsed_or_rejected() {
    let experiment = Experiment::new(29, "fuzz: replies", "replies of any bytes", EVENTS);
    run("reply", experiment, fuzz::reply::read, 20_000);
}
