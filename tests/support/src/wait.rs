//! Waiting for a condition, with a bound.

use std::future::Future;
use std::time::{Duration, Instant};

/// How often a condition is checked.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until `check` holds.
///
/// # Panics
///
/// If it does not within `bound`.
pub async fn eventually(what: &str, bound: Duration, mut check: impl FnMut() -> bool) {
    eventually_some(what, bound, || check().then_some(())).await;
}

/// Waits until `look` finds something.
///
/// # Panics
///
/// If it does not within `bound`.
pub async fn eventually_some<T>(
    what: &str,
    bound: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Drives `future` to its end, and gives how long that took.
///
/// # Panics
///
/// If it is not done within `bound`.
pub async fn within<F: Future>(what: &str, bound: Duration, future: F) -> (F::Output, Duration) {
    let start = Instant::now();
    match tokio::time::timeout(bound, future).await {
        Ok(output) => (output, start.elapsed()),
        Err(_) => panic!("not within {bound:?}: {what}"),
    }
}
