//! Clients of other libraries use the locks of a quorum, too.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::{Turn, Turns, misnumbered, now, overlaps};
use lock_testkit::{ChildProcess, Experiment, Quorum, eventually, ms};
use rslock::LockManager;

use crate::{alone_of_quorums, rounds};

/// Programs that take the lock as `interop/redlock-peer.mjs` does, separated by `;`.
const PEERS: &str = "LOCK_TESTS_PEERS";
const TTL: Duration = ms(10_000);
const BOUND: Duration = ms(30_000);
/// How long a turn takes: longer than a message to another process.
const TURN: Duration = ms(2);
/// Longer than others pause between two looks at the lock.
const REST: Duration = ms(300);
/// Clients of each library in Rust.
const CLIENTS: usize = 2;
/// The least turns of each client.
const LEAST: usize = 1;

const OURS: &str = "turns of this library";
const RSLOCK: &str = "turns of rslock";
const PROGRAMS: &str = "turns of other programs";

/// Takes part in the contention.
#[derive(Clone)]
struct Part {
    owner: usize,
    turns: Turns,
    is_over: Arc<AtomicBool>,
}

impl Part {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Records a turn of a client that has the lock now, and has no tokens.
    async fn turn(&self) {
        let enter = now();
        tokio::time::sleep(TURN).await;
        let (exit, deadline) = (now(), enter + TTL.as_nanos());
        let Self { owner, ref turns, .. } = *self;
        turns.push(Turn { owner, requested: enter, enter, exit, deadline, fence: 0 });
    }

    async fn of_this_library(self, client: LockClient) {
        let mutex = client.mutex("k").with_wait(BOUND).with_turns_for_others();
        while !self.is_over() {
            // The others look for the lock more often.
            let guard = match mutex.lock().await {
                Err(error) if error.is_busy() => continue,
                guard => guard.unwrap(),
            };
            self.turns.hold(self.owner, guard, TURN).await.unwrap();
        }
        wait_idle(&client).await;
    }

    async fn of_rslock(self, urls: Vec<String>) {
        let manager = LockManager::new(urls);
        while !self.is_over() {
            // A single attempt that fails is repeated by `acquire` without an end.
            let Ok(guard) = manager.acquire("lock:k", TTL).await else { continue };
            self.turn().await;
            guard.release().await;
            // Else it has the lock again before another client looks.
            tokio::time::sleep(REST).await;
        }
    }

    /// The program says `held` when it has the lock, and releases it when it reads a line.
    async fn of_program(self, program: String, urls: Vec<String>) {
        let mut words = program.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        let mut child = ChildProcess::spawn(command.args(words).arg("lock:k").args(urls)).unwrap();
        while !self.is_over() {
            let line = child.next_line().await;
            assert_eq!(line, "held", "{program}");
            self.turn().await;
            child.tell("release");
        }
        child.stop(BOUND);
    }
}

/// H21: this library, rslock, and in `make test-interop` node-redlock and redsync contend for one
/// lock of three servers. Each of our rounds is one of Redlock, so all exclude each other.
#[test]
fn mixed_fleet_on_a_quorum_takes_turns() {
    let _alone = alone_of_quorums();
    let programs = env::var(PEERS).unwrap_or_default();
    let programs: Vec<_> = programs.split(';').filter(|program| !program.is_empty()).collect();
    let name = "no two turns at once, our numbers grow, all are served";
    let fault = "clients of other Redlock libraries use the same lock on the same three servers";
    let mut events = vec![OURS, RSLOCK];
    events.extend((!programs.is_empty()).then_some(PROGRAMS));
    let mut experiment = Experiment::new(71, name, fault, &events);
    let owners = 2 * CLIENTS + programs.len();
    crate::runtime().block_on(async {
        let quorum = Quorum::of_age(3, "lock");
        let (turns, is_over) = (Turns::default(), Arc::<AtomicBool>::default());
        let part = |owner| Part { owner, turns: turns.clone(), is_over: Arc::clone(&is_over) };
        let mut tasks = Vec::new();
        for owner in 0..CLIENTS {
            let store = QuorumStore::connect(quorum.urls()).await.unwrap();
            let defaults = LockOptions::new().with_ttl(TTL);
            let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
            tasks.push(tokio::spawn(part(owner).of_this_library(client)));
        }
        for owner in CLIENTS..2 * CLIENTS {
            tasks.push(tokio::spawn(part(owner).of_rslock(quorum.urls())));
        }
        for (owner, program) in (2 * CLIENTS..).zip(&programs) {
            let program = part(owner).of_program((*program).to_owned(), quorum.urls());
            tasks.push(tokio::spawn(program));
        }
        let of = |owner: usize| turns.all().iter().filter(|turn| turn.owner == owner).count();
        tokio::time::sleep(ms(1_000) * u32::try_from(rounds(2, 20)).unwrap()).await;
        println!("turns by client: {:?}", (0..owners).map(of).collect::<Vec<_>>());
        eventually("all are served", BOUND, || (0..owners).all(|owner| of(owner) >= LEAST)).await;
        is_over.store(true, Ordering::Relaxed);
        for task in join_all(tasks).await {
            task.unwrap();
        }
        let all = turns.all();
        let (overlaps, misnumbered) = (overlaps(&all), misnumbered(&all, |_| true));
        assert!(overlaps.is_empty() && misnumbered.is_empty(), "{overlaps:?} {misnumbered:?}");
        eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
        let of_owners = |owners: std::ops::Range<usize>| owners.map(of).sum::<usize>();
        experiment.ran(1);
        experiment.saw(OURS, of_owners(0..CLIENTS));
        experiment.saw(RSLOCK, of_owners(CLIENTS..2 * CLIENTS));
        if !programs.is_empty() {
            experiment.saw(PROGRAMS, of_owners(2 * CLIENTS..owners));
        }
        println!("turns by client: {:?}", (0..owners).map(of).collect::<Vec<_>>());
    });
    experiment.finish();
}
