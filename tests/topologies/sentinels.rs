//! Masters under sentinels are killed, stopped and replaced by order while processes contend.

use std::time::{Duration, Instant};

use lock_core::LockClient;
use lock_core::store::RedisStore;
use lock_testkit::{Experiment, RedisServer, Sentinels, client, eventually, ms};
use tokio::runtime::Runtime;

use crate::probe::Probe;
use crate::support::workload::{Field, Outcome, Workload};
use crate::{alone, rounds, runtime};

const TTL: u64 = 8_000;
/// A loaded machine takes its time.
const BOUND: Duration = ms(60_000);
const AWAY: &str = "until locks are granted again";
const TURNS: &str = "turns";
const HELD: &str = "locks held at that moment";

/// A round of an experiment: what happens to the server `master`, until another one is the master.
type Strike = fn(&Runtime, &mut Sentinels, usize, usize, &mut Experiment);

/// Three processes contend for a lock that a replica has to confirm, and for one that it has not.
fn workload(name: &'static str) -> Workload {
    Workload {
        ttl: TTL,
        wait: 3_000,
        processes: 3,
        tasks: 3,
        confirmed: 3,
        work: 3_000,
        fenced: true,
        ..Workload::new(name, 1, ms(1))
    }
}

fn master(group: &Sentinels) -> usize {
    group.master_by(0)
}

/// Whether clients of locks are connected to the server.
fn has_clients(server: &RedisServer) -> bool {
    server.cli::<String>("CLIENT LIST").contains(" name=lock:")
}

async fn confirmed(group: &Sentinels) -> LockClient {
    let store = RedisStore::builder(group.url()).with_replica_acks(1);
    let client = LockClient::builder(store.connect_lazy().unwrap()).build().unwrap();
    client.mutex("first").with_wait(BOUND).lock().await.unwrap().release().await.unwrap();
    client
}

fn check(outcome: &Outcome) {
    let words = outcome.words();
    outcome.history.check_of("c");
    outcome.history.check_numbers();
    let overlaps = outcome.history.overlaps_of("k");
    assert!(overlaps.iter().all(|overlap| *overlap <= ms(TTL)), "{overlaps:?}");
    assert_eq!((outcome.history.stale(), outcome.lost_updates()), (0, 0), "{words}");
    assert_eq!(outcome.late, 0, "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
}

/// Replaces the master again and again.
fn experiment(fault: &'static str, event: &'static str, more: &[&'static str], strike: Strike) {
    let name = "confirmed locks never overlap, the others for no longer than a ttl, numbers grow, nothing left";
    let events = [&[event, HELD, TURNS], more].concat();
    let mut experiment = Experiment::new(59, name, fault, &events).counted_last(&[TURNS]);
    let runtime = runtime();
    let group = runtime.block_on(Sentinels::builder(1).hasty().start());
    let plain = runtime.block_on(client(&group.url()));
    let probe = Probe::start(runtime.handle(), &plain, "");
    let confirmed = runtime.block_on(confirmed(&group));
    let confirmed_probe = Probe::start(runtime.handle(), &confirmed, "-confirmed");
    let outcome = workload("sentinels").run_on(group, |field: &mut Field<Sentinels>| {
        while let Some(round) = experiment.next_round(rounds(1, 50)) {
            let begun = Instant::now();
            let old = master(&field.server);
            let held = async {
                eventually("a turn", BOUND, || field.holder("k0").is_some()).await;
            };
            runtime.block_on(held);
            experiment.saw(HELD, 1);
            let fault = Instant::now();
            strike(&runtime, &mut field.server, old, round, &mut experiment);
            experiment.saw(event, 1);
            experiment.ran(1);
            runtime.block_on(async {
                experiment.took(AWAY, probe.away_since(fault).await);
                let before = field.ground.history().turns_of("k");
                eventually("turns of the waiters", BOUND, || {
                    field.ground.history().turns_of("k") > before + 5
                })
                .await;
                experiment.took("until the waiters take turns again", fault.elapsed());
                field.server.settled().await;
                let away = confirmed_probe.away_since(fault).await;
                experiment.took("until confirmed locks are granted again", away);
            });
            println!("{event} {round}: {:?}", begun.elapsed());
        }
    });
    runtime.block_on(async {
        probe.end().await;
        confirmed_probe.end().await;
    });
    check(&outcome);
    experiment.saw(TURNS, outcome.history.turns());
    experiment.finish();
}

fn kill(runtime: &Runtime, group: &mut Sentinels, old: usize, _: usize, _: &mut Experiment) {
    group.server_mut(old).kill();
    runtime.block_on(async {
        let _new = group.switched_from(old).await;
    });
    group.server_mut(old).boot();
}

fn pause(runtime: &Runtime, group: &mut Sentinels, old: usize, _: usize, _: &mut Experiment) {
    group.server(old).pause();
    runtime.block_on(async {
        let _new = group.switched_from(old).await;
    });
    group.server(old).resume();
}

/// An operator orders it: the old master lives on, and would grant locks for seconds. In every
/// third round one of the sentinels says nothing to clients.
fn order(
    runtime: &Runtime,
    group: &mut Sentinels,
    old: usize,
    round: usize,
    experiment: &mut Experiment,
) {
    let is_cut = round % 3 == 2;
    if is_cut {
        group.proxy(round % 9 / 3).cut();
    }
    runtime.block_on(async {
        group.fail_over_from(old).await;
        let told = Instant::now();
        eventually("no client is at the old master", BOUND, || !has_clients(group.server(old)))
            .await;
        let left = if is_cut { LEFT_WITHOUT_ONE } else { LEFT };
        experiment.took(left, told.elapsed());
    });
    if is_cut {
        group.proxy(round % 9 / 3).heal();
        group.proxy(round % 9 / 3).close_all();
    }
}

const LEFT: &str = "until all clients had left the old master";
const LEFT_WITHOUT_ONE: &str = "the same with one sentinel cut off from them";

/// H9, HA1, HA2, HA8: each on sentinels of its own, at the same time, since most of it is waiting.
#[test]
fn masters_that_sentinels_replace_never_share_a_confirmed_lock() {
    let _alone = alone();
    std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| {
                let fault = "kill of the master under sentinels, with three processes";
                experiment(fault, "masters killed", &[], kill);
            }),
            scope.spawn(|| {
                let fault = "SIGSTOP of the master under sentinels, until it is replaced";
                experiment(fault, "masters stopped", &[], pause);
            }),
            scope.spawn(|| {
                let fault =
                    "SENTINEL FAILOVER, every third time with a sentinel that clients cannot reach";
                experiment(fault, "failovers by order", &[], order);
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
