//! The fuzz targets on their corpus and on a short random dose.
//!
//! `cargo fuzz run key tests/fuzz/corpus/key` goes on for as long as one likes; what it finds goes into the corpus.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use lock_testkit::{Experiment, scale};
use lock_tests::fuzz;

use self::mutate::Mutator;

/// Tries `body` on the corpus of `target`, and on what comes of it by chance.
fn try_out(target: &str, mut experiment: Experiment, body: fn(&[u8]) -> bool, many: usize) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let mut mutator = Mutator::new(&corpus);
    let made = (0..scale(many)).map(|_| mutator.make()).collect::<Vec<_>>();
    for input in corpus.iter().chain(&made) {
        let Ok(understood) = catch_unwind(AssertUnwindSafe(|| body(input))) else {
            panic!("{target} fails on {:?}", String::from_utf8_lossy(input));
        };
        experiment.saw(EVENTS[usize::from(!understood)], 1);
    }
    experiment.ran(corpus.len() + made.len());
    experiment.finish();
}

const EVENTS: &[&str] = &["inputs understood", "inputs refused"];

#[test]
fn keys_are_injective_and_stay_in_their_holes() {
    let experiment = Experiment::new(37, "fuzz: keys", "values of any bytes", EVENTS);
    try_out("key", experiment, fuzz::key::encode, 20_000);
}

#[test]
fn templates_are_parsed_or_refused() {
    let experiment = Experiment::new(37, "fuzz: templates", "templates of any bytes", EVENTS);
    try_out("template", experiment, fuzz::template::parse, 5_000);
}

#[test]
fn replies_are_understood_or_refused() {
    let experiment = Experiment::new(29, "fuzz: replies", "replies of any bytes", EVENTS);
    try_out("reply", experiment, fuzz::reply::read, 20_000);
}
