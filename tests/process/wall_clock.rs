//! The wall clock of the server jumps, by which it judges what has expired.

use std::thread::sleep;

use lock_core::fencing::StaleFence;
use lock_core::{FencingToken, Released};
use lock_testkit::history::now;
use lock_testkit::{Experiment, client, eventually, ms, scale, set_if_newer, within};

use crate::support::history::{Ground, History};
use crate::support::wall::WallClock;
use crate::support::worker::Worker;
use crate::support::workload::{LoggedEvent, Workload};

const MINUTE: i64 = 60_000;

/// Forward: a lock expires long before its holder expects it. Another client gets it, which no lock
/// can prevent. The resource refuses the writes of the first holder, which learns of the loss from
/// its next renewal.
#[tokio::test]
async fn stale_write_is_refused_after_the_clock_jumps_forward() {
    let ground = Ground::new("forward");
    let Some(clock) = WallClock::build(&ground) else { return };
    let events = ["early expiries", "stale writes refused", "leases lost"];
    let name = "the next holder has a greater number, a late write is refused, the loss is noticed";
    let fault = "the server's clock jumps by +60 s";
    let mut experiment = Experiment::new(26, name, fault, &events);
    for _ in 0..scale(1) {
        clock.shift(0);
        let server = clock.server(&[]);
        let (holder, first) = Worker::hold(&server, "k", 9_000);
        let first = FencingToken::from_raw(first);
        let client = client(&server.url()).await;
        clock.shift(MINUTE);
        let (next, took) = within("the lock", ms(5_000), client.mutex("k").lock()).await;
        let next = next.unwrap();
        assert!(took < ms(5_000) && next.fencing_token() > first);
        assert!(next.remaining() > ms(5_000), "{:?}", next.remaining());
        experiment.saw("early expiries", 1);
        let redis = redis::Client::open(server.url()).unwrap();
        let mut redis = redis.get_multiplexed_async_connection().await.unwrap();
        let mut write = async |value: &str, token| {
            set_if_newer(&mut redis, "balance", "balance:fence", value, token).await.unwrap()
        };
        assert_eq!(write("new", next.fencing_token()).await, Ok(()));
        assert_eq!(write("late", first).await, Err(StaleFence));
        assert_eq!(server.get("balance").as_deref(), Some("new"));
        experiment.saw("stale writes refused", 1);
        // A third of its ttl has to pass until the holder asks again.
        let end = holder.end();
        assert!(end.lost.is_some() && end.released == "Ok(TakenByOther)", "{end:?}");
        experiment.saw("leases lost", 1);
        assert_eq!(next.release().await.unwrap(), Released::InTime);
        experiment.ran(1);
    }
    experiment.finish();
}

/// Backward: the server keeps a lock for longer than it should, yet a release frees it at once, and
/// numbers grow.
#[tokio::test]
async fn release_frees_at_once_after_the_clock_jumps_backward() {
    let ground = Ground::new("backward");
    let Some(clock) = WallClock::build(&ground) else { return };
    let events = ["expiries put off", "releases that freed at once"];
    let name = "a release frees at once and leaves no key, numbers grow";
    let fault = "the server's clock jumps by -600 s";
    let mut experiment = Experiment::new(26, name, fault, &events);
    for _ in 0..scale(1) {
        clock.shift(0);
        let server = clock.server(&[]);
        let (holder, first) = Worker::hold(&server, "k", 6_000);
        clock.shift(-10 * MINUTE);
        assert!(server.pttl("lock:k") > 9 * MINUTE);
        experiment.saw("expiries put off", 1);
        let next = Worker::holder(&server.url(), "k", 6_000);
        eventually("it is queued", ms(10_000), || server.queued("k") == 1).await;
        assert!(next.is_silent(ms(300)), "it did not wait");
        let at = now();
        let end = holder.release();
        assert_eq!(end.released, "Ok(InTime)", "{end:?}");
        let (when, second) = next.holds();
        assert!(second > first);
        assert!(when - at < 1_000_000_000, "handed on after {} ms", (when - at) / 1_000_000);
        experiment.saw("releases that freed at once", 1);
        assert_eq!(next.release().released, "Ok(InTime)");
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
        experiment.ran(1);
    }
    experiment.finish();
}

/// What a clock that moves does to processes that contend.
const MOVED: [LoggedEvent; 3] = [
    ("turns", 1, History::turns),
    ("overlapping turns", 1, History::overlaps),
    ("stale writes refused", 1, History::refused),
];

/// Lets processes contend while `moves` moves the clock, time and again: turns may overlap, which
/// is expected and counted, and what is written late is refused.
fn moved(
    (name, fault, event): (&'static str, &'static str, &'static str),
    workload: Workload,
    moves: impl Fn(&WallClock, usize),
) {
    let ground = Ground::new(workload.name);
    let Some(clock) = WallClock::build(&ground) else { return };
    let events = [event, "turns", "overlapping turns", "stale writes refused"];
    let workload = Workload { events: &MOVED, ..workload };
    let mut experiment = Experiment::new(26, name, fault, &events);
    let outcome = workload.run_on(clock.server(&[]), |field| {
        for round in 0.. {
            if field.is_over(ms(500), &experiment) {
                return;
            }
            let before = WallClock::ahead(&field.server);
            moves(&clock, round);
            // Each of them is one of a second, at least.
            let moved = WallClock::ahead(&field.server).abs_diff(before) > 500;
            experiment.saw(event, usize::from(moved));
        }
    });
    outcome.keeps_its_order(&mut experiment);
    experiment.saw("overlapping turns", outcome.history.overlaps());
    experiment.saw("stale writes refused", outcome.history.refused());
    experiment.finish();
}

const NAME: &str = "numbers grow, a resource that checks them loses no update, no turn begins late";

/// Back and forth, under processes that contend.
#[test]
fn fencing_tokens_grow_while_the_clock_jumps() {
    let fault = "the server's clock jumps by up to 600 s every 300 ms, both ways";
    let span = ms(scale(4) as u64 * 1_000);
    let workload = Workload { ttl: 3_000, work: 200_000, ..Workload::fenced("jumps", 2, span) };
    moved((NAME, fault, "jumps"), workload, |clock, round| {
        sleep(ms(300));
        clock.shift([MINUTE, -10 * MINUTE, 1_000, -1_000, 10 * MINUTE, 0][round % 6]);
    });
}

/// A second gained, little by little but faster than renewals follow, and a second lost the same
/// way.
#[test]
fn fencing_tokens_grow_while_the_clock_drifts() {
    let fault = "the server's clock gains a second within 200 ms, and loses it again";
    let span = ms(scale(4) as u64 * 1_000);
    let workload = Workload { ttl: 900, work: 250_000, ..Workload::fenced("ramp", 2, span) };
    moved((NAME, fault, "ramps"), workload, |clock, round| {
        for step in 1..=20 {
            let gained = step * 50;
            clock.shift(if round % 2 == 0 { gained } else { 1_000 - gained });
            sleep(ms(10));
        }
        sleep(ms(200));
    });
}
