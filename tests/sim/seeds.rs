//! Many seeds.

use std::sync::Mutex;
use std::time::Instant;

use lock_tests::Experiment;

use crate::crowd;
use crate::log::Reader;
use crate::world::{self, Counts};

/// How many seeds are run by default: about half a minute of two cores.
const SEEDS: usize = 1_000;

/// Which seeds to run.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("LOCK_SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("LOCK_SIM_SEEDS").unwrap_or_else(|| lock_tests::dose(SEEDS) as u64)
}

#[test]
fn a_lock_is_one_holders_whatever_happens_to_network_clients_and_server() {
    let mut experiment = Experiment::new(
        7,
        "exclusion, growing fences, bounded waits, nothing left behind",
        "latency, partitions, broken and silent streams, stalls, crashes, lost messages, by seed",
        Counts::NAMES,
    );
    let seeds = seeds();
    let start = Instant::now();
    let total = Mutex::new((Counts::default(), Vec::new()));
    let verbose = seeds.end - seeds.start == 1;
    crowd::each(seeds.clone(), |seed| {
        let outcome = world::run(seed, if verbose { Reader::Human } else { Reader::Nobody });
        let (counts, violations) = &mut *total.lock().unwrap();
        *counts += outcome.counts;
        if !outcome.violations.is_empty() {
            violations.push((seed, outcome.violations));
        }
    });
    let (counts, violations) = total.into_inner().unwrap();
    println!("{} seeds in {:?}: {counts:?}", seeds.end - seeds.start, start.elapsed());
    for (seed, violations) in &violations {
        println!("seed {seed} (again with LOCK_SIM_SEED={seed}): {violations:#?}");
    }
    assert!(violations.is_empty(), "{} seeds", violations.len());
    experiment.ran((seeds.end - seeds.start) as usize);
    for (event, count) in counts.all() {
        experiment.saw(event, count);
    }
    if verbose {
        // One seed need not see everything.
        return;
    }
    experiment.finish();
}

/// What a seed does is the same each time, to the last byte on the wire.
#[test]
fn a_seed_repeats_itself() {
    for seed in 0..20 {
        let (one, two) = (world::run(seed, Reader::Test), world::run(seed, Reader::Test));
        for (number, (one, two)) in one.log.lines().zip(two.log.lines()).enumerate() {
            assert_eq!(one, two, "seed {seed}, line {number}");
        }
        assert_eq!(one.log.len(), two.log.len());
        assert!(one.log.lines().count() > 20, "{}", one.log);
    }
}
