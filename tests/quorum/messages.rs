//! Messages that come late, twice, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_testkit::history::{self, Turns};
use lock_testkit::{Action, Gate, Op, Quorum, Rng, Rule, eventually, ms, within};

use crate::{BOUND, RESTART_DELAY, client, on};

/// So many faults strike at least.
const FAULTS: usize = 30;

/// H19: claims and releases are doubled and delayed at random on all members, and connections
/// break. Two clients never hold the lock at once, tokens grow, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_holds_while_messages_are_late_doubled_and_lost() {
    let quorum = Quorum::of_age(3, "lock");
    let clients = futures_util::future::join_all((0..3).map(|_| client(&quorum))).await;
    let (turns, is_over) = (Turns::default(), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(owner, client)| {
            let (mutex, turns) = (client.mutex("hot").with_wait(ms(1_000)), turns.clone());
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(guard) = mutex.lock().await {
                        drop(turns.hold(owner, guard, ms(2)).await);
                    }
                }
            })
        })
        .collect();
    let mut rng = Rng::new(11);
    let mut rules = Vec::new();
    let (start, hits) =
        (Instant::now(), |rules: &[Rule]| rules.iter().map(Rule::hits).sum::<usize>());
    // As long as it takes: a fast machine needs more turns, a slow one more time.
    while (hits(&rules) < FAULTS || turns.len() <= 10) && start.elapsed() < BOUND * 6 {
        let proxy = quorum.proxy(usize::try_from(rng.below(3)).unwrap());
        let op = rng.one_of(&[Op::Vote, Op::Release, Op::Vote, Op::Acquire]);
        let action = match rng.below(6) {
            0 => Action::Duplicate,
            1 => Action::DelayRequest(rng.ms(1..=150)),
            2 => Action::DelayReply(rng.ms(1..=150)),
            3 => Action::LoseRequest,
            4 => Action::LoseReply,
            _ => Action::CloseAfter,
        };
        rules.push(proxy.rule(op, action).once());
        tokio::time::sleep(rng.ms(20..=120)).await;
    }
    assert!(hits(&rules) >= FAULTS, "no faults, no test");
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    history::check("hot", turns.all());
    assert!(turns.len() > 10, "{}", turns.len());
    for member in 0..3 {
        quorum.proxy(member).reset();
    }
    for client in &clients {
        within("the releases", BOUND * 2, wait_idle(client)).await;
    }
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// `token-again-after-release` (found by the simulation of the design): a failed claim's release
/// arrives late. It must not take away the lock that the same acquisition got after it.
#[tokio::test]
async fn late_release_of_a_failed_round_takes_nothing_from_the_next() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, client) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    // The claim gets one member, where the holder's lock is gone.
    let () = quorum.server(0).cli("DEL lock:k");
    let gates = [(); 3].map(|()| Gate::new());
    let waiting = tokio::spawn(client.mutex("k").lock());
    let late: Vec<_> = gates
        .iter()
        .enumerate()
        .map(|(member, gate)| {
            quorum.proxy(member).rule(Op::Release, Action::Stray(gate.clone())).once()
        })
        .collect();
    let waits = || quorum.servers().any(|server| server.queued("k") == 1);
    eventually("it has a place", BOUND, waits).await;
    let hits = || late.iter().map(Rule::hits).sum::<usize>();
    eventually("a release of the claim is late", BOUND, || hits() > 0).await;
    // The releases of the holder are not.
    late.iter().for_each(Rule::end);
    drop(guard);
    let next = within("the waiter's turn", BOUND * 2, waiting).await.0.unwrap().unwrap();
    // By its renewal, if not by its claim.
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    for gate in &gates {
        gate.open();
    }
    tokio::time::sleep(ms(500)).await;
    let having = quorum.having("lock:k");
    // On a machine that is busy enough, the lease ends meanwhile.
    assert!(having == 3 || !next.is_valid(), "a late release took it from {}", 3 - having);
    drop(next);
    wait_idle(&client).await;
}

/// HA23 (RedLock.net#78), P7: a claim is executed when its client has given up and released.
#[tokio::test]
async fn late_claim_takes_no_lock() {
    let quorum = Quorum::of_age(3, "lock");
    let store = QuorumStore::builder(quorum.urls())
        .with_restart_delay(RESTART_DELAY)
        .with_request_timeout(ms(100));
    let client = on(store.connect().await.unwrap());
    let gates = [(); 3].map(|()| Gate::new());
    let late: Vec<_> = gates
        .iter()
        .enumerate()
        .map(|(member, gate)| {
            quorum.proxy(member).rule(Op::Vote, Action::Stray(gate.clone())).once()
        })
        .collect();
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    assert!(late.iter().all(|rule| rule.hits() == 1));
    for gate in &gates {
        gate.open();
    }
    within("the releases", BOUND, wait_idle(&client)).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
}

/// A repeated claim whose vote was lost is refused its own number, and proposes another: taking the
/// old one for a vote would give one number twice.
#[tokio::test]
async fn lost_votes_cost_a_number_and_no_lock() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let lost: Vec<_> = (0..2)
        .map(|member| quorum.proxy(member).rule(Op::Vote, Action::CloseAfter).once())
        .collect();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(lost.iter().all(|rule| rule.hits() == 1));
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let next = client.mutex("k").lock().await.unwrap();
    assert!(next.fencing_token() > fence);
    next.release().await.unwrap();
}
