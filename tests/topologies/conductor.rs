//! The member of a quorum in whose queue clients wait is killed.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_testkit::{Experiment, Quorum, ms};

use crate::support::history::History;
use crate::support::workload::{Field, Servers as _, Workload};
use crate::{alone_of_quorums, rounds};

const MEMBERS: usize = 5;
const PROCESSES: usize = 8;
/// A loaded machine takes its time.
const BOUND: Duration = ms(30_000);

/// The member in whose queue most clients wait.
fn conductor(quorum: &Quorum) -> Option<usize> {
    let queued = |member: &usize| quorum.server(*member).queued("k0");
    let running = (0..MEMBERS).filter(|member| quorum.server(*member).runs());
    running.filter(|member| queued(member) > 1).max_by_key(queued)
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        sleep(ms(5));
    }
}

/// The turns of each process while nothing happens, and what they cost.
struct Calm {
    /// By process.
    shares: BTreeMap<u32, usize>,
    turns: usize,
    calls: u64,
    span: Duration,
}

fn calm(field: &Field<Quorum>, span: Duration) -> Calm {
    let (shares, calls) = (field.ground.history().shares_by_process(), field.server.script_calls());
    let begun = Instant::now();
    sleep(span);
    let (after, calls_after) =
        (field.ground.history().shares_by_process(), field.server.script_calls());
    let shares: BTreeMap<_, _> = after
        .into_iter()
        .map(|(process, turns)| (process, turns - shares.get(&process).copied().unwrap_or(0)))
        .collect();
    let turns = shares.values().sum();
    Calm { shares, turns, calls: calls_after - calls, span: begun.elapsed() }
}

/// H20: eight processes take turns on one lock of five members. The conductor is killed, and the
/// one after it. All go on to be served, with fair shares, and do not poll for it.
#[test]
fn processes_are_served_although_two_conductors_die() {
    let _alone = alone_of_quorums();
    let name = "no two turns at once, numbers grow, fair shares, few commands, nothing left";
    let fault =
        "the member of five in whose queue eight processes wait is killed, and the next one";
    let killed = "conductors killed";
    let mut experiment =
        Experiment::new(70, name, fault, &[killed, "turns", "hand-offs between processes"])
            .counted_last(&["turns", "hand-offs between processes"]);
    for _ in 0..rounds(1, 3) {
        let workload = Workload {
            wait: 20_000,
            processes: PROCESSES,
            tasks: 1,
            work: 2_000,
            fenced: true,
            ..Workload::new("conductor", 1, ms(1))
        };
        let span = ms(rounds(1_500, 8_000) as u64);
        let quorum = Quorum::of_age(MEMBERS, "lock");
        let mut all_shares = BTreeMap::<u32, usize>::new();
        let outcome = workload.run_on(quorum, |field| {
            for dead in 0..=2_usize {
                let Calm { shares, turns, calls, span } = calm(field, span);
                let words = format!("{dead} dead: {shares:?} in {span:?}, {calls} calls");
                println!("{words}");
                assert_eq!(shares.len(), PROCESSES, "{words}");
                assert!(shares.values().all(|turns| *turns > 0), "{words}");
                for (process, turns) in shares {
                    *all_shares.entry(process).or_default() += turns;
                }
                let for_turns = 3 * (MEMBERS * turns) as u64;
                let for_waiting = 2 * PROCESSES as u64 * (span.as_secs() + 1);
                assert!(calls < for_turns + for_waiting, "{words}");
                if dead == 2 {
                    break;
                }
                let conductor = eventually("they wait", || conductor(&field.server));
                let done = field.ground.history().done();
                let fault = Instant::now();
                field.server.server_mut(conductor).kill();
                eventually("a turn", || (field.ground.history().done() > done + 1).then_some(()));
                experiment.took("until locks are granted again", fault.elapsed());
                experiment.saw(killed, 1);
            }
            // Releases go on until each member has confirmed that nothing is left.
            for member in 0..MEMBERS {
                if !field.server.server(member).runs() {
                    field.server.server_mut(member).boot();
                }
            }
        });
        let words = outcome.words();
        let (least, most) = (all_shares.values().min(), all_shares.values().max());
        assert!(most.unwrap() <= &(2 * least.unwrap()), "{all_shares:?}: {words}");
        let hand_offs = outcome.history.check();
        assert_eq!((outcome.history.stale(), outcome.lost_updates()), (0, 0), "{words}");
        assert!(outcome.remains.is_empty(), "{words}");
        experiment.ran(1);
        experiment.saw("turns", History::turns(&outcome.history));
        experiment.saw("hand-offs between processes", hand_offs);
    }
    experiment.finish();
}
