//! The slot of contended locks moves to and fro.

use std::thread::sleep;
use std::time::Instant;

use lock_testkit::{Experiment, RedisCluster, Rng, ms};

use crate::support::history::History;
use crate::support::workload::Workload;
use crate::{alone, rounds, runtime};

const TAG: &str = "{3560}";
/// A machine that stands still for longer than this, in milliseconds, may cost a lease.
const STALL: u64 = 300;

/// H5, HA11, HA13: a slot moves between two masters, key by key and with pauses, while processes
/// contend for its locks and hold some for longer than their ttl.
#[test]
fn moving_slot_costs_no_lease_and_no_order() {
    let _alone = alone();
    let name =
        "no two turns at once, numbers grow, no outcome is unknown, no lease is lost, few commands";
    let fault = "a slot moves to another master and back, with pauses between its keys";
    let met = "calls that met the slot on its way";
    let long = "turns longer than a ttl";
    let events = ["moves", met, "turns", long];
    let mut experiment =
        Experiment::new(55, name, fault, &events).counted_last(&[met, "turns", long]);
    let workload = Workload {
        wait: 10_000,
        tasks: 3,
        work: 2_000,
        renewed: 1_500,
        fenced: true,
        suffix: TAG,
        ..Workload::new("moves", 1, ms(2_500))
    };
    let waiters = workload.processes as u64 * (workload.tasks + 2);
    let runtime = runtime();
    let cluster = runtime.block_on(RedisCluster::start_with(&["cluster-node-timeout 10000"]));
    let (mut seconds, mut refused) = (0, 0);
    let outcome = workload.run_on(cluster, |field| {
        let begun = Instant::now();
        let mut rng = Rng::new(55);
        while let Some(round) = experiment.next_round(rounds(8, 200)) {
            let migration = field.server.migration(&format!("lock:k0{TAG}"), (round + 1) % 2);
            for key in migration.keys() {
                sleep(rng.ms(0..=50));
                migration.step(&key);
            }
            sleep(rng.ms(0..=30));
            migration.finish();
            experiment.ran(1);
            experiment.saw("moves", 1);
            sleep(rng.ms(0..=100));
        }
        seconds = begun.elapsed().as_secs() + 1;
        let errors = |code| (0..2).map(|node| field.server.server(node).errors(code)).sum::<u64>();
        refused = errors("TRYAGAIN") + errors("ASK") + errors("MOVED");
    });
    let words = outcome.words();
    let _hand_offs = outcome.history.check();
    assert_eq!((outcome.unknown, outcome.history.unknown()), (0, 0), "{words}");
    assert_eq!((outcome.history.stale(), outcome.lost_updates()), (0, 0), "{words}");
    assert!(outcome.lost == 0 || outcome.stalled > STALL, "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    // A turn is a claim, a release, and two renewals if it is long. The rest is for waiting.
    let calls = (outcome.calls + refused).saturating_sub(4 * outcome.turns);
    let most = 10 * waiters * seconds;
    assert!(calls < most, "{calls} of {most}, {refused} refused: {words}");
    experiment.saw(met, usize::try_from(refused).unwrap());
    experiment.saw("turns", outcome.history.turns());
    experiment.saw(long, History::renewed_turns(&outcome.history));
    experiment.finish();
}
