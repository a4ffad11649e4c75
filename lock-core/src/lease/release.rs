//! What the store's reply to a release means for the lease.

use crate::time::Instant;

/// How a release found the lock.
///
/// Not `#[must_use]`: in all three cases the caller no longer holds the lock.
///
/// # Examples
///
/// ```
/// # use lock_core::{LockClient, Released, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = LockClient::builder(MemoryStore::new()).build()?;
/// use std::time::Duration;
///
/// let short = client.mutex("import").with_ttl(Duration::from_millis(100)).without_renewal();
/// let guard = short.lock().await?;
/// assert_eq!(guard.release().await?, Released::InTime);
///
/// let paused = short.lock().await?;
/// tokio::time::sleep(Duration::from_millis(150)).await;
/// assert_eq!(paused.release().await?, Released::Expired);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Released {
    /// The lease had ended before the release, and no other owner has taken the lock since.
    Expired,
    /// The lock was held until the release, or until it was handed to the next task of this
    /// process.
    InTime,
    /// The lease had ended before the release, and another owner holds the lock. Its lock was left
    /// alone.
    TakenByOther,
}

/// The end of a lease that is about to be released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseEnd {
    /// When it ended.
    pub(crate) at: Instant,
    /// Its deadline, if that had not passed.
    pub(crate) good_until: Option<Instant>,
    /// Until when the store had confirmed it.
    pub(crate) confirmed_until: Instant,
}

/// What the reply `found` means if an earlier attempt to release got no reply and may have freed
/// the lock; `None` if that cannot be known.
///
/// Before `good_until`, the lease's deadline, only our own earlier attempt can have freed the lock.
/// After it the lock may as well have expired. A token that was never granted has no deadline.
pub(crate) fn repeated_release(
    found: Released,
    good_until: Option<Instant>,
    now: Instant,
) -> Option<Released> {
    match (found, good_until) {
        (Released::InTime, _) | (_, None) => Some(found),
        (_, Some(until)) if now < until => Some(Released::InTime),
        (_, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn repeated_release_is_in_time_before_the_deadline_and_unknown_after_it() {
        let at = |secs| Instant::from_origin(Duration::from_secs(secs));
        let of = |found, now| repeated_release(found, Some(at(10)), at(now));
        for found in [Released::Expired, Released::TakenByOther] {
            assert_eq!(of(found, 9), Some(Released::InTime));
            assert_eq!(of(found, 10), None);
            assert_eq!(repeated_release(found, None, at(10)), Some(found));
        }
        assert_eq!(of(Released::InTime, 11), Some(Released::InTime));
    }
}
