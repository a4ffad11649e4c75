//! Masters of a cluster are killed, and replaced by order, while processes contend for locks there.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions, MutexGuard};
use lock_testkit::history::{Turn, Turns, misnumbered, now, overlaps};
use lock_testkit::{Experiment, FailOver, RedisCluster, client, eventually, eventually_some, ms};

use crate::probe::Probe;
use crate::support::workload::{Field, Outcome, Workload};
use crate::{alone, rounds, runtime};

/// The hash tag of all keys, whose slot is 0: on the first master at the start.
const TAG: &str = "{3560}";
/// A lease outlives a failover of two to four seconds.
const TTL: u64 = 6_000;
/// Where the old master lives, a failover takes a moment.
const ORDERED_TTL: u64 = 3_000;
/// For leases that only the test holds.
const LONG: Duration = ms(30_000);
/// A loaded machine takes its time.
const BOUND: Duration = ms(60_000);

/// A waiter without its subscription claims again within a second, and its place counts from the
/// next round on.
const BACK: Duration = ms(1_200);
/// A machine that stands still for longer than this, in milliseconds, may cost a place.
const STALL: u64 = 150;

/// The names of what is counted.
const TURNS: &str = "turns";
const HELD: &str = "locks held at that moment";
const OVERLAPS: &str = "overlaps of locks that the replica did not have";
const REFUSED: &str = "grants refused for want of the replica";
const IN_TURN: &str = "grants in turn";
const BETWEEN: &str = "grants between failovers";
const KILLS: &str = "masters killed";
/// How long locks are away.
const AWAY: &str = "until locks are granted again";
const SERVED: &str = "until the waiters take turns again";

/// Twenty tasks of four processes wait for a lock that a replica has to confirm, and as many for
/// one that it has not.
fn workload(name: &'static str) -> Workload {
    Workload {
        ttl: TTL,
        wait: 3_000,
        processes: 4,
        tasks: 5,
        confirmed: 5,
        work: 2_000,
        fenced: true,
        suffix: TAG,
        ..Workload::new(name, 1, ms(1))
    }
}

/// What the test itself does beside the processes.
struct Beside {
    plain: LockClient,
    rival: LockClient,
    confirmed: LockClient,
    probe: Probe,
    confirmed_probe: Probe,
    /// Of locks that the replica did not have when its master was killed.
    turns: Turns,
}

impl Beside {
    async fn start(cluster: &RedisCluster) -> Self {
        let (plain, rival) = (client(&cluster.url()).await, client(&cluster.url()).await);
        let store = RedisStore::builder(cluster.url()).with_replica_acks(1);
        let confirmed = LockClient::builder(store.connect_lazy().unwrap())
            .with_defaults(LockOptions::new().with_ttl(ms(TTL)))
            .build()
            .unwrap();
        let here = tokio::runtime::Handle::current();
        let probe = Probe::start(&here, &plain, TAG);
        let confirmed_probe = Probe::start(&here, &confirmed, &format!("-confirmed{TAG}"));
        Self { plain, rival, confirmed, probe, confirmed_probe, turns: Turns::default() }
    }

    async fn end(self) {
        self.probe.end().await;
        self.confirmed_probe.end().await;
        // By the rule of all others, but that these turns may overlap.
        let all = self.turns.all();
        let misnumbered = misnumbered(&all, |_| true);
        assert!(misnumbered.is_empty(), "{misnumbered:?}");
    }

    /// Takes a lock that the replica does not get to know. A client that demands its confirmation
    /// gets none. Gives the guard, and when it was granted.
    async fn take_unreplicated(&self, round: usize) -> (MutexGuard, u128) {
        let refused = self.confirmed.mutex(format!("refused{round}{TAG}")).try_lock().await;
        assert!(refused.is_err(), "granted without its replica: {refused:?}");
        let mutex = self.plain.mutex(format!("lost{round}{TAG}")).with_ttl(LONG);
        let guard = mutex.without_renewal().lock().await.unwrap();
        (guard, now())
    }

    /// Another client gets the same lock from the promoted replica. Gives the number of overlaps.
    async fn take_again(&self, round: usize, guard: MutexGuard, enter: u128) -> usize {
        let requested = now();
        let rival = self.rival.mutex(format!("lost{round}{TAG}")).with_wait(BOUND).lock().await;
        let rival = rival.unwrap();
        let fence = guard.fencing_token().get();
        let deadline = now() + guard.remaining().as_nanos();
        let entered = now();
        let next = Turn {
            owner: 1,
            requested,
            enter: entered,
            exit: now() + 1,
            deadline: entered + rival.remaining().as_nanos(),
            fence: rival.fencing_token().get(),
        };
        let first = Turn { owner: 0, requested: enter, enter, exit: now() + 1, deadline, fence };
        rival.release().await.unwrap();
        drop(guard);
        self.turns.push(first);
        self.turns.push(next);
        overlaps(&[first, next]).len()
    }
}

/// A cluster that replaces a master which is silent for longer than the given time.
async fn start(node_timeout: &str) -> RedisCluster {
    RedisCluster::start_with(&[node_timeout]).await
}

/// The worker that holds the contended lock at the moment, after a wait if there is none.
async fn is_held(field: &Field<RedisCluster>) -> bool {
    let key = format!("k0{TAG}");
    eventually_some("a turn", BOUND, || field.holder(&key)).await;
    true
}

/// Waits until the contended lock that no replica has to confirm changes hands again. Gives the
/// time since `fault`.
async fn served_since(field: &Field<RedisCluster>, fault: Instant) -> Duration {
    let before = field.ground.history().turns_of("k");
    eventually("turns of the waiters", BOUND, || field.ground.history().turns_of("k") > before + 5)
        .await;
    fault.elapsed()
}

/// What is promised of both kinds of locks.
fn check(outcome: &Outcome, ttl: Duration) {
    let words = outcome.words();
    // Those that a replica confirmed never overlap.
    outcome.history.check_of("c");
    outcome.history.check_numbers();
    let overlaps = outcome.history.overlaps_of("k");
    assert!(overlaps.iter().all(|overlap| *overlap <= ttl), "{overlaps:?}");
    assert_eq!((outcome.history.stale(), outcome.lost_updates()), (0, 0), "{words}");
    assert_eq!(outcome.late, 0, "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
}

/// H1, H13: the master of two contended locks is killed, in every third round when its replica has
/// not received the last grants. Locks that a replica confirmed never overlap. The others do for
/// no longer than a ttl, and the control, a lock that the replica never had, shows it.
#[test]
fn killed_masters_never_share_a_confirmed_lock() {
    let _alone = alone();
    let fault = "kill of a cluster's master, with 20 waiters for each of two locks; in every third round its replica is cut off before";
    let name = "confirmed by a replica: no two turns at once, numbers grow, nothing left";
    let mut confirmed =
        Experiment::new(51, name, fault, &[KILLS, REFUSED, TURNS]).counted_last(&[TURNS, REFUSED]);
    let name = "not confirmed: overlaps end with their ttl, numbers grow, no stale write is accepted, nothing left";
    let mut plain =
        Experiment::new(51, name, fault, &[KILLS, HELD, OVERLAPS, TURNS]).counted_last(&[TURNS]);
    let runtime = runtime();
    let cluster = runtime.block_on(start("cluster-node-timeout 2000"));
    let beside = runtime.block_on(Beside::start(&cluster));
    let outcome = workload("killed").run_on(cluster, |field| {
        while let Some(round) = plain.next_round(rounds(2, 30)) {
            runtime.block_on(async {
                let master = field.server.owner(&format!("lock:k0{TAG}")).expect("a master");
                let replica = field.server.replica_of(master);
                let is_cut = round % 3 == 1;
                let mut unreplicated = None;
                if is_cut {
                    let (from, to) = (field.server.server(master), field.server.server(replica));
                    to.cut_off_from(from).await;
                    unreplicated = Some(beside.take_unreplicated(round).await);
                    confirmed.saw(REFUSED, 1);
                }
                plain.saw(HELD, usize::from(is_held(field).await));
                let fault = Instant::now();
                field.server.server_mut(master).kill();
                field.server.promoted(replica).await;
                plain.took(AWAY, beside.probe.away_since(fault).await);
                plain.took(SERVED, served_since(field, fault).await);
                if let Some((guard, enter)) = unreplicated {
                    field.server.server(replica).mend();
                    plain.saw(OVERLAPS, beside.take_again(round, guard, enter).await);
                }
                field.server.back(master, replica).await;
                confirmed.took(AWAY, beside.confirmed_probe.away_since(fault).await);
            });
            for experiment in [&mut plain, &mut confirmed] {
                experiment.ran(1);
                experiment.saw(KILLS, 1);
            }
        }
    });
    runtime.block_on(beside.end());
    check(&outcome, ms(TTL));
    plain.saw(TURNS, outcome.history.turns_of("k"));
    confirmed.saw(TURNS, outcome.history.turns_of("c"));
    plain.finish();
    confirmed.finish();
}

/// The replica takes over, again and again, while processes contend.
fn ordered(
    how: FailOver,
    many: usize,
    experiment: &mut Experiment,
    event: &'static str,
) -> (Outcome, Vec<RangeInclusive<u128>>) {
    let mut disturbed = Vec::new();
    let runtime = runtime();
    let cluster = runtime.block_on(start("cluster-node-timeout 1000"));
    let beside = runtime.block_on(Beside::start(&cluster));
    let workload = Workload { ttl: ORDERED_TTL, ..workload("ordered") };
    let outcome = workload.run_on(cluster, |field| {
        while experiment.next_round(many).is_some() {
            runtime.block_on(async {
                experiment.saw(HELD, usize::from(is_held(field).await));
                let master = field.server.owner(&format!("lock:k0{TAG}")).expect("a master");
                // At first the processes join one after another.
                let begun = if disturbed.is_empty() { 0 } else { now() };
                let fault = Instant::now();
                let replica = field.server.fail_over(master, how).await;
                experiment.took(AWAY, beside.probe.away_since(fault).await);
                experiment.took(SERVED, served_since(field, fault).await);
                disturbed.push(begun..=now() + BACK.as_nanos());
                field.server.restored(master, replica).await;
                // Within two timeouts nodes vote for no other replica of the same master.
                tokio::time::sleep(RedisCluster::NODE_TIMEOUT).await;
                beside.confirmed_probe.away_since(fault).await;
                served_since(field, Instant::now()).await;
            });
            experiment.ran(1);
            experiment.saw(event, 1);
        }
    });
    let spans = beside.probe.spans();
    experiment.took("what one call in a hundred exceeds", spans[spans.len() * 99 / 100]);
    runtime.block_on(beside.end());
    check(&outcome, ms(ORDERED_TTL));
    experiment.saw(TURNS, outcome.history.turns());
    (outcome, disturbed)
}

/// H3: the master waits for its replica before it steps down, so no lock is shared and no number is
/// out of order, also where no replica confirms, and no outcome is unknown. Processes get the lock
/// in the order in which they wait, but for those that are passed over.
#[test]
fn graceful_failovers_under_load_share_no_lock() {
    let _alone = alone();
    let name = "no two turns at once, numbers grow, no outcome is unknown, nothing left";
    let fault = "CLUSTER FAILOVER while 40 tasks of four processes contend";
    let event = "graceful failovers";
    let mut experiment = Experiment::new(53, name, fault, &[event, HELD, TURNS, IN_TURN, BETWEEN])
        .counted_last(&[TURNS, IN_TURN, BETWEEN]);
    let (outcome, disturbed) = ordered(FailOver::Graceful, rounds(2, 100), &mut experiment, event);
    let _hand_offs = outcome.history.check();
    assert_eq!((outcome.unknown, outcome.history.unknown()), (0, 0), "{}", outcome.words());
    check_order(&outcome, &disturbed, &mut experiment);
    experiment.finish();
}

/// Processes are granted the lock in the order in which they wait for it, except those that a
/// failover passed over: their subscriptions ended, and they are back within [`BACK`].
fn check_order(outcome: &Outcome, disturbed: &[RangeInclusive<u128>], experiment: &mut Experiment) {
    let is_between = |at: &&u128| !disturbed.iter().any(|window| window.contains(at));
    let grants = outcome.history.grants_of("k");
    let out_of_turn = outcome.history.out_of_turn_of("k");
    let between: Vec<_> = out_of_turn.iter().filter(is_between).collect();
    let words = outcome.words();
    assert!(between.is_empty() || outcome.stalled > STALL, "{between:?} {disturbed:?} {words}");
    experiment.saw(IN_TURN, grants.len() - out_of_turn.len());
    experiment.saw(BETWEEN, grants.iter().filter(is_between).count());
    experiment.also_saw("grants to a process ahead of one that was passed over", out_of_turn.len());
}

/// H4: the master does not take part, and goes on until it learns that it is none any more.
#[test]
fn forced_failovers_never_share_a_confirmed_lock() {
    let _alone = alone();
    let name = "confirmed locks never overlap, the others for no longer than a ttl, numbers grow, nothing left";
    for (how, fault, event) in [
        (FailOver::Force, "CLUSTER FAILOVER FORCE under load", "forced failovers"),
        (FailOver::Takeover, "CLUSTER FAILOVER TAKEOVER under load", "takeovers"),
    ] {
        let mut experiment =
            Experiment::new(54, name, fault, &[event, HELD, TURNS]).counted_last(&[TURNS]);
        let (_outcome, _disturbed) = ordered(how, rounds(1, 15), &mut experiment, event);
        experiment.finish();
    }
}
