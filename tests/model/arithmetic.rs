//! When a lease ends by the client's account, and when the server lets it expire.

use std::time::Duration;

use lock_testkit::{Experiment, Rng, scale};

use super::lease::state::LeaseState;
use super::lease::validity::{min_remaining, renewal_due, retry_due};
use super::time::Instant;

fn at(micros: u64) -> Instant {
    Instant::from_origin(Duration::from_micros(micros))
}

/// Short ones are as likely as long ones.
fn span(rng: &mut Rng, longest: u64) -> u64 {
    let bits = rng.below(u64::from(u64::BITS - longest.leading_zeros()) + 1);
    rng.below(1 << bits).min(longest)
}

const DAY: u64 = 86_400_000;

#[test]
fn a_lease_ends_before_the_lock_expires() {
    const RENEWED: &str = "renewals confirmed";
    const OUT_OF_ORDER: &str = "answers out of order";
    const UNANSWERED: &str = "renewals that nobody answers";
    const TOO_LATE: &str = "grants too late";
    const SUSPENDED: &str = "suspensions";
    const JUDGED: &str = "leases found good";
    let mut experiment = Experiment::new(
        2,
        "a lease is believed in for no longer than the server keeps the lock",
        "any ttl, delays, suspensions, renewals and extensions out of order, clocks 1 % apart",
        &[RENEWED, OUT_OF_ORDER, UNANSWERED, TOO_LATE, SUSPENDED, JUDGED],
    );
    let mut rng = Rng::new(2);
    let cases = scale(100_000).min(1_000_000);
    for _ in 0..cases {
        // In microseconds of the client's clock; the server's runs at `rate` / 10,000.
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
        // Answers that are under way: when what was asked left, and for which ttl; `None`: the lock was gone.
        let mut under_way: Vec<(u64, Option<u64>)> = Vec::new();
        for _ in 0..rng.below(12) {
            match rng.below(6) {
                0 | 1 => {
                    let (asked, ttl) = (now, 100 + span(&mut rng, DAY - 100));
                    now += delay(&mut rng);
                    let alive = server(now) / 1_000 < expiry;
                    if alive {
                        expiry = expiry.max(server(now) / 1_000 + ttl);
                    }
                    under_way.push((asked, alive.then_some(ttl)));
                }
                2 | 3 if !under_way.is_empty() => {
                    let next = usize::try_from(rng.below(under_way.len() as u64)).unwrap();
                    experiment.saw(OUT_OF_ORDER, usize::from(next > 0));
                    let (asked, ttl) = under_way.remove(next);
                    match ttl {
                        Some(ttl) => {
                            lease.renewed(at(asked), Duration::from_millis(ttl), at(now));
                            experiment.saw(RENEWED, 1);
                        }
                        None => lease.lose(lock_core::LostReason::Gone, at(now)),
                    }
                }
                4 => {
                    lease.doubted(at(now));
                    under_way.pop();
                    experiment.saw(UNANSWERED, 1);
                }
                _ => {
                    now += delay(&mut rng);
                    experiment.saw(SUSPENDED, 1);
                }
            }
            let was_lost = lease.told();
            let good = lease.check(at(now)).is_ok();
            assert!(!good || was_lost.is_none(), "a lease that was lost is lost for ever");
            assert!(!good || server(now) / 1_000 < expiry, "ttl {ttl} ms at {now} us");
            experiment.saw(JUDGED, usize::from(good));
        }
    }
    experiment.ran(cases);
    experiment.finish();
}

#[test]
fn no_number_is_too_large_for_the_arithmetic() {
    const EXTREME: &str = "numbers at the limits";
    let mut experiment = Experiment::new(
        2,
        "the accounting of a lease neither overflows nor panics",
        "times and ttls from 0 to the largest there are",
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
