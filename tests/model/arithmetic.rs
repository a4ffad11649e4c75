//! When a lease ends for the client, and when the lock expires on the server.

use std::time::Duration;

use lock_testkit::{Experiment, Rng, scale};

use super::lease::state::LeaseState;
use super::lease::validity::{min_remaining, renewal_due, retry_due};
use super::time::Instant;

fn at(micros: u64) -> Instant {
    Instant::from_origin(Duration::from_micros(micros))
}

/// A random span of at most `longest`; short spans are as likely as long ones.
fn span(rng: &mut Rng, longest: u64) -> u64 {
    let bits = rng.below(u64::from(u64::BITS - longest.leading_zeros()) + 1);
    rng.below(1 << bits).min(longest)
}

const DAY: u64 = 86_400_000;

/// A client could believe in its lease after the server has let the lock expire.
#[test]
fn a_lease_ends_before_the_lock_expires() {
    const RENEWED: &str = "renewals confirmed";
    const OUT_OF_ORDER: &str = "replies out of order";
    const UNANSWERED: &str = "renewals without a reply";
    const TOO_LATE: &str = "grants that came too late";
    const SUSPENDED: &str = "suspensions";
    const JUDGED: &str = "leases found valid";
    let mut experiment = Experiment::new(
        2,
        "a client believes in its lease no longer than the server keeps the lock",
        "any ttl, delays, suspensions, renewals and extensions out of order, clocks 1 % apart",
        &[RENEWED, OUT_OF_ORDER, UNANSWERED, TOO_LATE, SUSPENDED, JUDGED],
    );
    let mut rng = Rng::new(2);
    let cases = scale(100_000).min(1_000_000);
    for _ in 0..cases {
        // In microseconds of the client's clock. The server's clock runs at `rate` / 10,000 of it.
        let rate = 9_900 + rng.below(201);
        let server =
            |here: u64| u64::try_from(u128::from(here) * u128::from(rate) / 10_000).unwrap();
        let ttl = 100 + span(&mut rng, DAY - 100);
        let delay = |rng: &mut Rng| span(rng, ttl.saturating_mul(1_500));
        let sent = rng.below(1_000_000);
        let executed = sent + delay(&mut rng);
        let mut now = executed + delay(&mut rng);
        let mut expiry = server(executed) / 1_000 + ttl;
        let granted = LeaseState::granted(at(sent), Duration::from_millis(ttl), None, at(now));
        let Ok(mut lease) = granted else {
            experiment.saw(TOO_LATE, 1);
            continue;
        };
        // Replies in flight: when the renewal was sent, and its ttl, or `None` if the lock was
        // gone.
        let mut in_flight: Vec<(u64, Option<u64>)> = Vec::new();
        for _ in 0..rng.below(12) {
            match rng.below(6) {
                0 | 1 => {
                    let (sent, ttl) = (now, 100 + span(&mut rng, DAY - 100));
                    now += delay(&mut rng);
                    let alive = server(now) / 1_000 < expiry;
                    if alive {
                        expiry = expiry.max(server(now) / 1_000 + ttl);
                    }
                    in_flight.push((sent, alive.then_some(ttl)));
                }
                2 | 3 if !in_flight.is_empty() => {
                    let next = usize::try_from(rng.below(in_flight.len() as u64)).unwrap();
                    experiment.saw(OUT_OF_ORDER, usize::from(next > 0));
                    let (sent, ttl) = in_flight.remove(next);
                    match ttl {
                        Some(ttl) => {
                            lease.renewed(at(sent), Duration::from_millis(ttl), at(now));
                            experiment.saw(RENEWED, 1);
                        }
                        None => lease.lose(lock_core::LostReason::Gone, at(now)),
                    }
                }
                4 => {
                    lease.doubted(at(now));
                    in_flight.pop();
                    experiment.saw(UNANSWERED, 1);
                }
                _ => {
                    now += delay(&mut rng);
                    experiment.saw(SUSPENDED, 1);
                }
            }
            let was_lost = lease.end_reason();
            let valid = lease.check(at(now)).is_ok();
            assert!(!valid || was_lost.is_none(), "a lost lease stays lost");
            assert!(!valid || server(now) / 1_000 < expiry, "ttl {ttl} ms at {now} us");
            experiment.saw(JUDGED, usize::from(valid));
        }
    }
    experiment.ran(cases);
    experiment.finish();
}

/// Extreme times or ttls could overflow or panic.
#[test]
fn lease_arithmetic_never_overflows() {
    const EXTREME: &str = "numbers at the limits";
    let mut experiment = Experiment::new(
        2,
        "lease arithmetic neither overflows nor panics",
        "times and ttls from 0 to the largest possible",
        &[EXTREME],
    );
    let mut rng = Rng::new(3);
    let cases = scale(50_000).min(500_000);
    for _ in 0..cases {
        let mut number = |experiment: &mut Experiment| {
            if rng.below(4) == 0 {
                experiment.saw(EXTREME, 1);
                return [0, 1, u64::MAX, u64::MAX - 1][usize::try_from(rng.below(4)).unwrap()];
            }
            span(&mut rng, u64::MAX / 2)
        };
        let nanos = |number| Instant::from_origin(Duration::from_nanos(number));
        let (sent, now) = (nanos(number(&mut experiment)), nanos(number(&mut experiment)));
        let ttl = Duration::from_millis(number(&mut experiment));
        let hold = Some(Duration::from_millis(number(&mut experiment)));
        assert!(renewal_due(now, sent) >= now && retry_due(now, sent, 255) >= now);
        assert!(min_remaining(ttl) <= ttl);
        if let Ok(mut lease) = LeaseState::granted(sent, ttl, hold, now) {
            lease.renewed(now, ttl, now);
            let left = lease.check(now).unwrap_or_default();
            assert!(left <= ttl.max(lease.confirmed_until().saturating_since(now)));
            assert!(lease.begin_release() && !lease.begin_release());
            lease.check(now).unwrap_err();
        }
    }
    experiment.ran(cases);
    experiment.finish();
}
