//! Members of a quorum restart without their data, one after the other, under a long lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LockClient, LockOptions, MutexGuard, Released};
use lock_testkit::history::{Turn, Turns, check, now, overlaps};
use lock_testkit::{Experiment, Quorum, eventually, ms};
use tokio::task::JoinHandle;

use crate::{alone_of_quorums, rounds, runtime};

/// No ttl may be longer. A machine that stands still for so long would cost the lease.
const RESTART_DELAY: Duration = ms(5_000);
const TTL: Duration = ms(5_000);
/// A loaded machine takes its time.
const BOUND: Duration = ms(30_000);
const RIVALS: usize = 2;
/// How often each tries.
const TRIES: Duration = ms(50);
/// So many quorums at a time: all that happens in them is waiting.
const QUORUMS: usize = 8;

/// Clients that try to get the lock of the holder.
struct Rivals {
    is_over: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    turns: Turns,
    tasks: Vec<JoinHandle<()>>,
}

async fn client(quorum: &Quorum) -> LockClient {
    let store = QuorumStore::builder(quorum.urls()).with_restart_delay(RESTART_DELAY);
    let store = store.with_request_timeout(ms(1_000)).connect().await.unwrap();
    let defaults = LockOptions::new().with_ttl(TTL).with_wait(BOUND);
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}

impl Rivals {
    async fn start(quorum: &Quorum) -> Self {
        let (is_over, refused) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (turns, mut tasks) = (Turns::default(), Vec::new());
        for owner in 1..=RIVALS {
            let mutex = client(quorum).await.mutex("k");
            let (is_over, refused) = (Arc::clone(&is_over), Arc::clone(&refused));
            let turns = turns.clone();
            tasks.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    match mutex.try_lock().await {
                        Ok(Some(guard)) => drop(turns.hold(owner, guard, ms(5)).await),
                        Ok(None) | Err(_) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    tokio::time::sleep(TRIES).await;
                }
            }));
        }
        Self { is_over, refused, turns, tasks }
    }

    /// Records the turn of the holder, which ends now.
    fn held(&self, guard: &MutexGuard, enter: u128) {
        let exit = now();
        let deadline = exit + guard.remaining().as_nanos();
        let fence = guard.fencing_token().get();
        self.turns.push(Turn { owner: 0, requested: enter, enter, exit, deadline, fence });
    }

    async fn end(self) -> (usize, Turns) {
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        (self.refused.load(Ordering::Relaxed), self.turns)
    }
}

/// What happened on one quorum.
struct Seen {
    restarts: usize,
    refused: usize,
    /// How long a member had no lock.
    gaps: Vec<Duration>,
}

/// Restarts one member after the other, each when the one before has the lock again.
async fn one_after_the_other(restarts: usize) -> Seen {
    let mut quorum = Quorum::of_age(3, "lock");
    let holder = client(&quorum).await;
    let guard = holder.mutex("k").lock().await.unwrap();
    let enter = now();
    let rivals = Rivals::start(&quorum).await;
    let mut gaps = Vec::new();
    for restart in 0..restarts {
        let member = restart % 3;
        let restarted = Instant::now();
        quorum.restart_empty(member);
        eventually("it has the lock again", BOUND, || quorum.server(member).has("lock:k")).await;
        let gap = restarted.elapsed();
        assert!(gap >= RESTART_DELAY, "it votes {gap:?} after it has forgotten");
        assert!(guard.is_valid(), "lost after {restart} restarts");
        gaps.push(gap);
    }
    rivals.held(&guard, enter);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    eventually("a rival has it", BOUND, || rivals.turns.len() > 1).await;
    let (refused, turns) = rivals.end().await;
    let owners = check("k", turns.all());
    assert!(owners.first() == Some(&0) && !owners[1..].contains(&0), "{owners:?}");
    wait_idle(&holder).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
    Seen { restarts, refused, gaps }
}

/// H15, HA18 (redsync#186, PR 147): each restarted member votes for no claim until the locks that
/// it has forgotten are over, and renewals give the lease back to it. So the lease outlives any
/// number of restarts.
#[test]
fn lease_outlives_any_number_of_restarts_without_data() {
    let _alone = alone_of_quorums();
    let name = "one holder of a lease of minutes, kept through all of it, no vote too early";
    let fault = "members of a quorum of three restart without their data, one after the other";
    let events = ["restarts", "tries refused"];
    let mut experiment = Experiment::new(65, name, fault, &events);
    let restarts = rounds(3, 200);
    let quorums = if restarts > 3 { QUORUMS } else { 1 };
    let each = restarts.div_ceil(quorums);
    let each_seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..quorums)
            .map(|_| scope.spawn(|| runtime().block_on(one_after_the_other(each))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for seen in each_seen {
        experiment.ran(1);
        experiment.saw("restarts", seen.restarts);
        experiment.saw("tries refused", seen.refused);
        for gap in seen.gaps {
            experiment.took("until a member has the lock again", gap);
        }
    }
    experiment.finish();
}

/// The same where an operator says of members that they have forgotten nothing, which is not true:
/// another client gets the lock under the lease.
#[test]
fn members_that_vote_at_once_after_a_restart_share_the_lock() {
    let _alone = alone_of_quorums();
    let name = "control: members that vote at once after a restart give the lock to two";
    let fault = "members restart without their data, and vote at once";
    let mut experiment = Experiment::new(65, name, fault, &["restarts", "overlaps"]);
    runtime().block_on(async {
        while experiment.next_round(rounds(1, 5)).is_some() {
            let mut quorum = Quorum::of_age(3, "lock");
            let holder = client(&quorum).await;
            let guard = holder.mutex("k").without_renewal().lock().await.unwrap();
            let enter = now();
            let rivals = Rivals::start(&quorum).await;
            for member in 0..3 {
                quorum.restart_empty(member);
                quorum.vouch(member, "lock");
                experiment.saw("restarts", 1);
            }
            while guard.is_valid() && rivals.turns.is_empty() {
                tokio::time::sleep(ms(5)).await;
            }
            rivals.held(&guard, enter);
            let (_refused, turns) = rivals.end().await;
            experiment.saw("overlaps", overlaps(&turns.all()).len());
            experiment.ran(1);
        }
    });
    experiment.finish();
}
