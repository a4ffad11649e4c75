//! Runs simulations on all cores.

use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A simulation that takes longer than this is stuck in a loop.
const ENDLESS: Duration = Duration::from_secs(60);

/// Runs `simulation` for each seed, as many at a time as there are cores.
///
/// Exits the process if a simulation does not end, because nothing else stops a thread.
pub(crate) fn each(seeds: Range<u64>, simulation: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let threads = thread::available_parallelism().unwrap().get();
    let at_work = Mutex::new(vec![None; threads]);
    let panicked = Mutex::new(None);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (next, seeds, at_work, simulation) = (&next, &seeds, &at_work, &simulation);
            let panicked = &panicked;
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        at_work.lock().unwrap()[thread] = None;
                        return;
                    }
                    at_work.lock().unwrap()[thread] = Some((seed, Instant::now()));
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| simulation(seed))) {
                        println!("seed {seed} panics: LOCK_SIM_SEED={seed} repeats it");
                        *panicked.lock().unwrap() = Some(panic);
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
        while next.load(Ordering::Relaxed) < seeds.end
            || at_work.lock().unwrap().iter().any(Option::is_some)
        {
            thread::sleep(Duration::from_millis(5));
            for (seed, since) in at_work.lock().unwrap().iter().flatten() {
                if since.elapsed() > ENDLESS {
                    // Captured output would be lost with the process.
                    let mut out = std::io::stderr().lock();
                    let _told =
                        writeln!(out, "seed {seed} does not end: LOCK_SIM_SEED={seed} repeats it");
                    std::process::exit(101);
                }
            }
        }
    });
    if let Some(panic) = panicked.into_inner().unwrap() {
        resume_unwind(panic);
    }
}
