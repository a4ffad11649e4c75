//! Statistics of critical sections.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A critical section, from the start to the end of its body.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    pub(crate) entry: u64,
    pub(crate) exit: u64,
    pub(crate) process: u32,
    pub(crate) waiter: u32,
}

static SECTIONS: AtomicU64 = AtomicU64::new(0);
static OVERLAPS: AtomicU64 = AtomicU64::new(0);

/// The sections on shared keys that this run has checked, and how many of them began before an
/// earlier one ended.
pub(crate) fn checked() -> (u64, u64) {
    (SECTIONS.load(Ordering::Relaxed), OVERLAPS.load(Ordering::Relaxed))
}

static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records that a peer panicked, or returned an error instead of waiting. The round does not count.
pub(crate) fn failed(peer: &str, title: &str) {
    eprintln!("FAILED: {peer} in {title}; round not counted for it");
    FAILURES.lock().unwrap().push(format!("{peer} in \"{title}\""));
}

/// The failed peers and their scenarios, one entry per round.
pub(crate) fn failures() -> Vec<String> {
    FAILURES.lock().unwrap().clone()
}

/// Sorts the sections of one key by entry, and counts those that began before an earlier one ended.
pub(crate) fn check(sections: &mut [Section], peer: &str) {
    sections.sort_unstable_by_key(|section| section.entry);
    let mut free = 0;
    let mut overlaps = 0;
    for section in sections.iter() {
        overlaps += u64::from(section.entry < free);
        free = free.max(section.exit);
    }
    SECTIONS.fetch_add(sections.len() as u64, Ordering::Relaxed);
    if overlaps > 0 {
        OVERLAPS.fetch_add(overlaps, Ordering::Relaxed);
        eprintln!("OVERLAP: {overlaps} critical sections of {peer}");
    }
}

/// Nanoseconds from one section's exit to the next section's entry.
pub(crate) struct Gaps {
    /// Gaps between different waiters.
    pub(crate) switched: Vec<u64>,
    /// The part of `switched` within one process.
    pub(crate) within: Vec<u64>,
    /// The part of `switched` across processes.
    pub(crate) across: Vec<u64>,
}

impl Gaps {
    /// `sections` must be sorted by entry, as [`check`] leaves them.
    pub(crate) fn of(sections: &[Section]) -> Self {
        let mut gaps = Self { switched: Vec::new(), within: Vec::new(), across: Vec::new() };
        for pair in sections.windows(2) {
            let gap = pair[1].entry.saturating_sub(pair[0].exit);
            if pair[0].process != pair[1].process {
                gaps.across.push(gap);
            } else if pair[0].waiter != pair[1].waiter {
                gaps.within.push(gap);
            } else {
                continue;
            }
            gaps.switched.push(gap);
        }
        gaps
    }
}

/// The quantile at `fraction` of values in nanoseconds, in microseconds.
pub(crate) fn quantile_us(values: &mut [u64], fraction: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable();
    let index = ((values.len() - 1) as f64 * fraction).round() as usize;
    Some(values[index] as f64 / 1e3)
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    Some(if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle], values[middle + 1])
    } else {
        values[middle]
    })
}
