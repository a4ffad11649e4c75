//! When a lease ends for the client, and when to renew it.

use std::time::Duration;

use crate::time::Instant;

/// One percent for clocks that run at different rates (assumption A1), and two milliseconds for the
/// server's expiry, which is kept in whole milliseconds and may fire up to one early.
fn margin(ttl: Duration) -> Duration {
    const EXPIRY_ROUNDING: Duration = Duration::from_millis(2);
    (ttl / 100).saturating_add(EXPIRY_ROUNDING)
}

/// The client's deadline for a lease of `ttl` whose command was sent at `sent`.
///
/// `sent` is read *before* the command is queued, so that waiting in a queue or on the network
/// shortens the lease instead of overrunning it.
pub(crate) fn deadline(sent: Instant, ttl: Duration) -> Instant {
    sent.saturating_add(ttl.saturating_sub(margin(ttl)))
}

/// The ttl that a command needs, sent at `sent`, for a lease until `until`: the inverse of
/// [`deadline`], rounded up.
pub(crate) fn ttl_until(sent: Instant, until: Instant) -> Duration {
    let left = until.saturating_since(sent);
    // 1 % of 1.02 times what is left covers 1 % of the ttl that results.
    left.saturating_add(margin(left.saturating_add(left / 50)))
}

/// What must be left of a lease for it to be worth entering.
///
/// A tenth of the ttl: if the reply took nine tenths of the lease, the first renewal would be too
/// late as well.
pub(crate) fn min_remaining(ttl: Duration) -> Duration {
    ttl / 10
}

/// A third of what remains, which leaves two more tries before the deadline.
pub(crate) fn renewal_due(now: Instant, deadline: Instant) -> Instant {
    now.saturating_add(deadline.saturating_since(now) / 3)
}

/// When to try again after a renewal that was not confirmed: it had no reply, or was refused.
///
/// A third of what remains, but at most half a second, so that a store that recovers is reached
/// while there is time, and no less than 10 ms. `jitter` spreads the clients of such a store over
/// the second half of this pause.
pub(crate) fn retry_due(now: Instant, deadline: Instant, jitter: u8) -> Instant {
    const SOONEST: Duration = Duration::from_millis(10);
    const LATEST: Duration = Duration::from_millis(500);
    let third = deadline.saturating_since(now) / 3;
    let pause = third.clamp(SOONEST, LATEST);
    now.saturating_add(pause / 2 + pause / 2 * u32::from(jitter) / 255)
}

/// How long to wait for the reply to a renewal: half of what remains, so that one lost reply leaves
/// time for another try.
pub(crate) fn renewal_patience(now: Instant, deadline: Instant) -> Instant {
    now.saturating_add(deadline.saturating_since(now) / 2)
}
