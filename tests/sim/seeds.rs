//! Many seeds.

use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lock_testkit::{Experiment, number, scale};

use crate::log::Reader;
use crate::plan::{Counts, Plan};
use crate::simulation::{self, Outcome};
use crate::stress;

/// How many seeds run by default. This many see every event; fewer only report what they saw.
const SEEDS: usize = 1_000;
/// One in this many seeds also runs with clocks as far apart as the promises allow, and with clocks
/// that are further apart.
const WITH_ODD_CLOCKS: u64 = 10;
/// The share of seeds, in percent, in which a client must not have known what became of a command.
const AMBIGUOUS: usize = 95;
/// In the first, the last claims have no deadline of their own, and are under way for half a minute
/// each. In the second, the answer to a release is lost when all other faults are over.
const ONCE_FAILED: [u64; 2] = [86_617, 153_077];
/// After this many seeds with violations, more of them teach nothing new.
const ENOUGH: usize = 5;

/// The outcome of many seeds.
#[derive(Default)]
struct Total {
    seeds: usize,
    counts: Counts,
    overlaps: usize,
    /// Seeds with an ambiguous outcome.
    ambiguous: usize,
    violations: Vec<(u64, Vec<String>)>,
}

/// Which seeds to run: those that the environment names, or the default.
fn seeds() -> Range<u64> {
    let number = |name| number::<u32>(name).map(u64::from);
    if let Some(seed) = number("LOCK_SIM_SEED") {
        return seed..seed + 1;
    }
    let seeds = number("LOCK_SIM_SEEDS").unwrap_or_else(|| scale(SEEDS) as u64);
    assert!(seeds > 0, "LOCK_SIM_SEEDS=0: no seed is to be run");
    0..seeds
}

/// Runs the seeds, each with its plan changed by `change`, and fails if one has violations.
fn run(what: &str, seeds: Range<u64>, change: impl Fn(&mut Plan) + Sync) -> Total {
    let (start, verbose) = (Instant::now(), seeds.end - seeds.start == 1);
    let total = Mutex::new(Total::default());
    stress::each(seeds, |seed| {
        if total.lock().unwrap().violations.len() >= ENOUGH {
            return;
        }
        let reader = if verbose { Reader::Human } else { Reader::None };
        let Outcome { counts, overlaps, violations, .. } =
            simulation::run_with(seed, reader, &change);
        let mut total = total.lock().unwrap();
        total.seeds += 1;
        total.counts += counts;
        total.overlaps += overlaps;
        total.ambiguous += usize::from(counts.ambiguous > 0);
        if !violations.is_empty() {
            total.violations.push((seed, violations));
        }
    });
    let total = total.into_inner().unwrap();
    let Total { seeds, counts, overlaps, ambiguous, violations } = &total;
    println!(
        "{what}: {seeds} seeds in {:?}, {ambiguous} with an ambiguous outcome, {overlaps} overlaps: {counts:?}",
        start.elapsed()
    );
    for (seed, violations) in violations {
        println!("seed {seed} (again with LOCK_SIM_SEED={seed}): {violations:#?}");
    }
    assert!(violations.is_empty(), "{what}: {} of {seeds} seeds", violations.len());
    total
}

/// Faults of network, clients and server strike at random, by seed.
#[test]
fn promises_hold_under_random_faults() {
    const AMBIGUOUS_SEEDS: &str = "seeds with an ambiguous outcome";
    let mut events = Counts::NAMES.to_vec();
    events.push(AMBIGUOUS_SEEDS);
    let mut experiment = Experiment::new(
        7,
        "exclusion, growing fences, bounded waits, nothing left behind",
        "latency, partitions, broken and silent streams, stalls, crashes, drains, lost messages, by seed",
        &events,
    );
    let total = run("all faults", seeds(), |_| {});
    experiment.ran(total.seeds);
    for (event, count) in total.counts.all() {
        experiment.saw(event, count);
    }
    experiment.saw(AMBIGUOUS_SEEDS, total.ambiguous);
    if total.seeds < SEEDS {
        return;
    }
    assert!(
        total.ambiguous * 100 >= total.seeds * AMBIGUOUS,
        "{} of {} seeds had an ambiguous outcome",
        total.ambiguous,
        total.seeds
    );
    experiment.finish();
}

/// Seeds far beyond the usual range.
#[test]
fn seeds_that_failed_before_pass() {
    for seed in ONCE_FAILED {
        let total = run("once failed", seed..seed + 1, |_| {});
        assert!(total.counts.turns > 0);
    }
}

/// Inside the margin drift has no effect. Outside it leases overlap, and the fencing tokens protect
/// the resource.
#[test]
fn stale_write_is_refused_even_if_clocks_are_too_far_apart() {
    let mut experiment = Experiment::new(
        12,
        "within 1 % leases never overlap; beyond, no stale write is accepted",
        "the server's clock is 1 % slower or faster than the clients', or runs at 1.2 times their rate",
        &["turns inside", "turns outside", "overlaps outside", "stale writes refused outside"],
    );
    let Range { start, end } = seeds();
    let seeds = start..start + (end - start).div_ceil(WITH_ODD_CLOCKS);
    let inside = run("clocks 1 % apart", seeds.clone(), |plan| {
        plan.may_forget = false;
        let fast = plan.traits.clock_rate > 1_000_000;
        plan.traits.clock_rate = if fast { 1_010_000 } else { 990_000 };
    });
    let outside = run("clocks 20 % apart", seeds, |plan| {
        plan.may_forget = false;
        plan.traits.clock_rate = 1_200_000;
        // No fault is long enough for a longer lease to end.
        plan.ttl = plan.ttl.min(Duration::from_secs(3));
    });
    assert_eq!(inside.overlaps, 0);
    experiment.ran(inside.seeds + outside.seeds);
    experiment.saw("turns inside", inside.counts.turns);
    experiment.saw("turns outside", outside.counts.turns);
    experiment.saw("overlaps outside", outside.overlaps);
    experiment.saw("stale writes refused outside", outside.counts.stale);
    if end - start >= SEEDS as u64 {
        experiment.finish();
    }
}

/// A seed does the same each time, to the last byte on the wire.
#[test]
fn seed_repeats_exactly() {
    for seed in 0..20 {
        let (one, two) = (simulation::run(seed, Reader::Test), simulation::run(seed, Reader::Test));
        for (number, (one, two)) in one.log.lines().zip(two.log.lines()).enumerate() {
            assert_eq!(one, two, "seed {seed}, line {number}");
        }
        assert_eq!(one.log.len(), two.log.len());
        assert!(one.log.lines().count() > 20, "{}", one.log);
    }
}
