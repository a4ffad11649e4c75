//! Figures of intervals.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A critical section: from the first to the last moment of its body.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    pub(crate) entry: u64,
    pub(crate) exit: u64,
    pub(crate) process: u32,
    pub(crate) waiter: u32,
}

static SECTIONS: AtomicU64 = AtomicU64::new(0);
static OVERLAPS: AtomicU64 = AtomicU64::new(0);

/// Sections on shared keys that were checked in this run, and how many of them began before the one before had ended.
pub(crate) fn checked() -> (u64, u64) {
    (SECTIONS.load(Ordering::Relaxed), OVERLAPS.load(Ordering::Relaxed))
}

static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes that a contender gave an error where it should have waited, or panicked: the round does not count.
pub(crate) fn failed(whose: &str, cell: &str) {
    eprintln!("FAILED: {whose} in {cell}; the round does not count for it");
    FAILURES.lock().unwrap().push(format!("{whose} in \"{cell}\""));
}

/// Who failed, and where; once for each round.
pub(crate) fn failures() -> Vec<String> {
    FAILURES.lock().unwrap().clone()
}

/// Sorts sections of one key by entry, and counts those that began before another had ended.
pub(crate) fn check(sections: &mut [Section], whose: &str) {
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
        eprintln!("OVERLAP: {overlaps} critical sections of {whose}");
    }
}

/// Nanoseconds from one holder's exit to the next one's entry.
pub(crate) struct Gaps {
    /// Where the waiter changes.
    pub(crate) switched: Vec<u64>,
    /// Of those, where the process does not.
    pub(crate) within: Vec<u64>,
    /// And where it does.
    pub(crate) across: Vec<u64>,
}

impl Gaps {
    /// Of sections that were checked, and so are in order.
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

/// The value below which `fraction` of them lie, in microseconds.
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
