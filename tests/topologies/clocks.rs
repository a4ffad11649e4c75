//! Members of a quorum are wrong about the time.

use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_core::LockClient;
use lock_core::store::QuorumStore;
use lock_testkit::history::now;
use lock_testkit::{Experiment, Quorum, ms};

use crate::support::history::{Ground, History};
use crate::support::wall::WallClock;
use crate::support::workload::{Outcome, Workload};
use crate::{alone_of_quorums, rounds, runtime};

const MEMBERS: usize = 3;
const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600 * SECOND;
const TTL: Duration = ms(900);
/// How long a clock stays as it is.
const STAY: Duration = ms(300);
/// Replies of before a jump arrive within this.
const ON_THE_WAY: Duration = ms(100);
/// So much has to be seen of a jump.
const SEEN: u64 = 500;
const TURNS: &str = "turns";
const LONG: &str = "turns longer than a ttl";
const JUMPS: &str = "jumps";
const OVERLAPPING: &str = "overlapping turns";
const REFUSED: &str = "stale writes refused";
const NAMED: &str = "reports of the member";

/// Members that each have a clock of their own.
struct Clocks {
    clocks: Vec<WallClock>,
    // The libraries and the shifts are in there.
    _grounds: Vec<Ground>,
}

impl Clocks {
    /// `None` where there is no C compiler.
    fn start() -> Option<(Self, Quorum)> {
        let grounds: Vec<_> = (0..MEMBERS).map(|_| Ground::new("member")).collect();
        let clocks = grounds.iter().map(WallClock::build).collect::<Option<Vec<_>>>()?;
        let quorum = Quorum::of(clocks.iter().map(|clock| clock.server(&[])));
        quorum.vouch_for_all("lock");
        Some((Self { clocks, _grounds: grounds }, quorum))
    }

    /// Moves the clocks of the first `count` members, and gives how many have moved by so much.
    fn shift(&self, quorum: &Quorum, count: usize, millis: i64) -> usize {
        let moved = (0..count).filter(|member| {
            let before = WallClock::ahead(quorum.server(*member));
            self.clocks[*member].shift(millis);
            WallClock::ahead(quorum.server(*member)).abs_diff(before) > SEEN
        });
        moved.count()
    }
}

fn workload(name: &'static str, seconds: usize) -> Workload {
    Workload {
        ttl: TTL.as_millis() as u64,
        wait: 4_000,
        processes: 3,
        tasks: 2,
        work: 10_000,
        renewed: TTL.as_millis() as u64,
        fenced: true,
        bound: false,
        events: &[(TURNS, 1, History::turns), (LONG, 1, History::renewed_turns)],
        ..Workload::new(name, 1, ms(seconds as u64 * 1_000))
    }
}

/// Whether the client names the member whose clock is wrong, and no other.
async fn names_the_member(quorum: &Quorum, client: &LockClient) -> bool {
    // A lock first, so that the client has seen the clock.
    client.mutex("seen").lock().await.unwrap().release().await.unwrap();
    let mut problems = client.health().await.unwrap().problems;
    problems.retain(|problem| problem.contains("has a clock"));
    problems.len() == 1 && problems[0].contains(&format!(":{}", quorum.proxy(0).port()))
}

/// What holds as long as a majority is right about the time.
///
/// A member whose clock jumps drops its locks and does not notice. So a lock that it holds with a
/// bare majority at that moment, within one of `jumps`, can be given to another holder until the
/// renewal of its lease.
fn check(outcome: &Outcome, jumps: &[RangeInclusive<u128>]) {
    let words = outcome.words();
    let _hand_offs = outcome.history.check_but_within(jumps);
    let overlaps = outcome.history.overlaps_of("");
    assert!(overlaps.iter().all(|overlap| *overlap <= TTL), "{overlaps:?}");
    assert_eq!((outcome.history.stale(), outcome.lost_updates()), (0, 0), "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
}

/// H17: one member is wrong about the time, and the others keep what is promised.
#[test]
fn one_wrong_clock_of_a_quorum_shares_no_lock() {
    let _alone = alone_of_quorums();
    let name = "turns of grants since the jump never overlap, those before it for less than a ttl, numbers grow, locks are granted, the member is named";
    for (by, fault) in [
        (HOUR, "the clock of one member of three jumps an hour ahead and back"),
        (-HOUR, "the clock of one member of three jumps an hour back and ahead"),
        (2 * SECOND, "the clock of one member of three jumps 2 s ahead and back"),
        (3 * SECOND, "the clock of one member of three jumps 3 s ahead and back"),
        (-2 * SECOND, "the clock of one member of three jumps 2 s back and ahead"),
    ] {
        let during = "turns while it was wrong";
        let events = [JUMPS, TURNS, LONG, during, NAMED];
        let mut experiment = Experiment::new(67, name, fault, &events).counted_last(&[TURNS, LONG]);
        let Some((clocks, quorum)) = Clocks::start() else { return };
        let runtime = runtime();
        let store = QuorumStore::builder(quorum.urls());
        let store = runtime.block_on(store.connect()).unwrap();
        let client = LockClient::builder(store).build().unwrap();
        let (mut is_named, mut jumps) = (false, Vec::new());
        let outcome = workload("clock", rounds(1, 8)).run_on(quorum, |field| {
            while !field.is_over(STAY * 2, &experiment) {
                let before = field.ground.history().turns();
                let begun = now();
                experiment.saw(JUMPS, clocks.shift(&field.server, 1, by));
                sleep(STAY);
                if !is_named {
                    is_named = runtime.block_on(names_the_member(&field.server, &client));
                    experiment.saw(NAMED, usize::from(is_named));
                }
                experiment.saw(during, field.ground.history().turns() - before);
                experiment.saw(JUMPS, clocks.shift(&field.server, 1, 0));
                jumps.push(begun..=now() + ON_THE_WAY.as_nanos());
                sleep(STAY);
            }
        });
        check(&outcome, &jumps);
        experiment.ran(1);
        experiment.saw(TURNS, outcome.history.turns());
        experiment.saw(LONG, outcome.renewed);
        experiment.finish();
    }
}

/// H17: the same with a clock that runs too fast, and so passes all distances from the others.
#[test]
fn one_fast_clock_of_a_quorum_shares_no_lock() {
    let _alone = alone_of_quorums();
    let name = "no two turns at once, numbers grow, locks are granted";
    let fault = "the clock of one member of three runs at 1.2 times the rate of the others";
    let gained = "milliseconds that it gained";
    let mut experiment =
        Experiment::new(67, name, fault, &[gained, TURNS, LONG]).counted_last(&[TURNS, LONG]);
    let Some((clocks, quorum)) = Clocks::start() else { return };
    let outcome = workload("fast", rounds(2, 25)).run_on(quorum, |field| {
        let begun = Instant::now();
        let (mut turns, mut seen, mut told) = (0, Instant::now(), 0);
        while !field.is_over(ms(0), &experiment) {
            let ahead = i64::try_from(begun.elapsed().as_millis() / 5).unwrap();
            clocks.clocks[0].shift(ahead);
            sleep(ms(5));
            let all = field.ground.history().turns();
            if all > turns {
                (turns, seen) = (all, Instant::now());
            }
            assert!(seen.elapsed() < ms(10_000), "no turn, {ahead} ms ahead");
            if WallClock::ahead(field.server.server(0)) > 50 {
                experiment.saw(gained, usize::try_from(ahead - told).unwrap());
                told = ahead;
            }
        }
    });
    // It drops its locks at five sixths of their ttl.
    check(&outcome, &[]);
    experiment.ran(1);
    experiment.saw(TURNS, outcome.history.turns());
    experiment.saw(LONG, outcome.renewed);
    experiment.finish();
}

/// H18: the clocks of two members of three jump, so a majority is wrong: locks are shared, which is
/// expected and counted. What is written late is refused at the resource, and numbers grow.
#[test]
fn two_wrong_clocks_of_a_quorum_let_no_stale_write_through() {
    let _alone = alone_of_quorums();
    let name =
        "numbers grow, a resource that checks them accepts no stale write and loses no update";
    let events = [JUMPS, TURNS, OVERLAPPING, REFUSED];
    // Ahead only: a member that has accepted a later time accepts no smaller number before then.
    let mut experiment = Experiment::new(
        68,
        name,
        "the clocks of two members of three jump a minute ahead, again and again",
        &events,
    )
    .counted_last(&[TURNS, OVERLAPPING, REFUSED]);
    let Some((clocks, quorum)) = Clocks::start() else { return };
    let workload = Workload {
        keys: 3,
        work: 400_000,
        events: &[
            (TURNS, 1, History::turns),
            (OVERLAPPING, 1, History::overlaps),
            (REFUSED, 1, History::refused),
        ],
        ..workload("majority", rounds(2, 20))
    };
    let outcome = workload.run_on(quorum, |field| {
        for round in 1.. {
            if field.is_over(STAY, &experiment) {
                return;
            }
            experiment.saw(JUMPS, clocks.shift(&field.server, 2, round * 60 * SECOND));
            sleep(STAY);
        }
    });
    outcome.keeps_its_order(&mut experiment);
    experiment.saw(OVERLAPPING, outcome.history.overlaps());
    experiment.saw(REFUSED, outcome.history.refused());
    experiment.finish();
}
