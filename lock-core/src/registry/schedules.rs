//! Tasks of one process use one key, in many interleavings of what they do under the wait list's
//! locks: `make schedules`.
//!
//! Each task requests the key a few times and ends each request in a random way. At each lock,
//! shuttle's scheduler decides which task goes on; it fails the test if no task can. Experiment 5
//! of the programme of faults.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::future::poll_fn;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::{
    Admission, Assignment, HandedClaim, HandedLease, LocalTurn, Registry, Rejected, Status,
};
use crate::Key;
use crate::driver::Releaser;
use crate::lease::HandOffChain;
use crate::options::LockOptions;
use crate::store::{MemoryStore, Name, Token, WaitEvent};
use crate::time::{Deadline, Instant};

const TASKS: usize = 3;
const TURNS: usize = 2;
const TTL: Duration = Duration::from_secs(3_600);
/// The schedules are repeated until each event has occurred, at most this many times.
const MAX_ROUNDS: usize = 10;

/// What happened, over all schedules.
#[derive(Default)]
struct Seen {
    turns: AtomicUsize,
    handed_on: AtomicUsize,
    claims_taken_over: AtomicUsize,
    waits_dropped: AtomicUsize,
    given_back: AtomicUsize,
    refused: AtomicUsize,
}

impl Seen {
    fn events(&self) -> [(&'static str, usize); 6] {
        [
            ("turns", &self.turns),
            ("leases handed on", &self.handed_on),
            ("claims taken over", &self.claims_taken_over),
            ("waits dropped", &self.waits_dropped),
            ("leases given back", &self.given_back),
            ("tries refused", &self.refused),
        ]
        .map(|(event, count)| (event, count.load(Relaxed)))
    }

    /// An event that has not occurred.
    fn lacks(&self) -> Option<&'static str> {
        self.events().into_iter().find_map(|(event, count)| (count == 0).then_some(event))
    }
}

/// One process.
struct Process {
    registry: Registry,
    releaser: Arc<Releaser<LocalTurn>>,
    name: Name,
    /// Whether a task works under the lock.
    at_work: AtomicBool,
}

impl Process {
    fn new() -> Self {
        let releaser = Arc::<Releaser<LocalTurn>>::default();
        let registry = Registry::new(Arc::clone(&releaser));
        let name = Name::new(Some("test"), &Key::new("k").unwrap()).unwrap();
        Self { registry, releaser, name, at_work: AtomicBool::new(false) }
    }

    fn visit(&self, seen: &Seen) {
        let options = LockOptions::new().with_ttl(TTL);
        let options = if thread_rng().gen_bool(0.2) { options.without_wait() } else { options };
        match self.registry.admit(&self.name, "k", options.resolve().unwrap()) {
            Ok(Admission::Turn(turn)) => self.claim(turn, None, seen),
            Ok(Admission::Queued(mut waiter)) => {
                let polls = if thread_rng().gen_bool(0.3) {
                    thread_rng().gen_range(0..3)
                } else {
                    usize::MAX
                };
                let mut polled = 0;
                let turn = block_on(async {
                    let mut timer = pin!(Deadline::default());
                    poll_fn(|cx| {
                        if polled == polls {
                            return Poll::Ready(None);
                        }
                        polled += 1;
                        let turn = waiter.poll(None, timer.as_mut(), cx);
                        if turn.is_pending() && polled == polls {
                            return Poll::Ready(None);
                        }
                        turn.map(Some)
                    })
                    .await
                });
                thread::yield_now();
                drop(waiter);
                match turn {
                    None => bump(&seen.waits_dropped),
                    Some(Ok((turn, Assignment::Turn))) => self.claim(turn, None, seen),
                    Some(Ok((turn, Assignment::Claim(claim)))) => {
                        self.claim(turn, Some(claim), seen);
                    }
                    Some(Ok((turn, Assignment::Lease(lease, _)))) => {
                        self.hold(turn, Some(lease), seen);
                    }
                    Some(Err(Rejected::Taken(_) | Rejected::Draining)) => bump(&seen.refused),
                }
            }
            Err(Rejected::Taken(_) | Rejected::Draining) => bump(&seen.refused),
        }
    }

    /// Claims the lock: it is granted, or the task gives up.
    fn claim(&self, turn: LocalTurn, claim: Option<HandedClaim>, seen: &Seen) {
        if claim.is_some() {
            bump(&seen.claims_taken_over);
        }
        if thread_rng().gen_bool(0.2) {
            turn.set_status(Status::Waiting(WaitEvent::Busy(TTL)));
        }
        let is_new = claim.is_none();
        let token = claim.map_or_else(|| Token::fresh().unwrap(), |claim| claim.token);
        match thread_rng().gen_range(0..4) {
            0 => turn.pass_on_claim(HandedClaim { token, longest_ttl: TTL, label: "k" }),
            // Refused, with nothing left behind.
            1 if is_new => drop(turn),
            _ => self.hold(turn, None, seen),
        }
    }

    /// Works under the lock, and gives the lease to the next task or back to the store.
    fn hold(&self, turn: LocalTurn, lease: Option<HandedLease>, seen: &Seen) {
        let now = Instant::now();
        if lease.is_some() {
            bump(&seen.handed_on);
        } else {
            turn.set_status_at(Status::Held(now.saturating_add(TTL)), now);
        }
        assert!(!self.at_work.swap(true, Relaxed), "two tasks hold the lock");
        thread::yield_now();
        assert!(self.at_work.swap(false, Relaxed));
        bump(&seen.turns);
        let mut lease = lease.unwrap_or_else(|| HandedLease {
            token: Token::fresh().unwrap(),
            chain: HandOffChain::new(1, now, TTL),
            confirmed_until: now.saturating_add(TTL),
            label: "k",
        });
        lease.chain = lease.chain.next(TTL);
        if thread_rng().gen_bool(0.1) {
            // It has ended, so no task may get it.
            lease.confirmed_until = now;
        }
        if let Err((turn, lease)) = turn.hand_on(lease, now) {
            bump(&seen.given_back);
            turn.give_back_lease(lease, now);
        }
    }
}

fn bump(count: &AtomicUsize) {
    count.fetch_add(1, Relaxed);
}

fn schedule(seen: &Arc<Seen>, drained: bool) {
    let process = Arc::new(Process::new());
    let mut tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (process, seen) = (Arc::clone(&process), Arc::clone(seen));
            thread::spawn(move || (0..TURNS).for_each(|_| process.visit(&seen)))
        })
        .collect();
    if drained {
        let process = Arc::clone(&process);
        tasks.push(thread::spawn(move || process.registry.drain()));
    }
    // As a client does, which starts its task before it closes the queue.
    let run = Arc::clone(&process.releaser).run(Arc::new(MemoryStore::new()));
    let releaser = thread::spawn(move || block_on(run));
    for task in tasks {
        task.join().unwrap();
    }
    process.releaser.close();
    releaser.join().unwrap();
    assert_eq!(process.registry.len(), 0, "a key is left in the registry");
    assert_eq!(process.releaser.pending_count(), 0, "a release is pending");
}

/// A schedule loses a wake-up, so a task waits for ever; or gives two tasks the turn at once; or
/// leaves an entry in the registry.
#[test]
fn every_schedule_keeps_wake_ups_turns_and_entries() {
    let schedules = std::env::var("LOCK_SCHEDULES").unwrap_or_else(|_| "2000".into());
    let schedules: usize = schedules.parse().expect("LOCK_SCHEDULES is a number");
    let (seen, mut rounds) = (Arc::new(Seen::default()), 0);
    while rounds == 0 || rounds < MAX_ROUNDS && seen.lacks().is_some() {
        for drained in [false, true] {
            let counted = Arc::clone(&seen);
            shuttle::check_random(move || schedule(&counted, drained), schedules);
            let counted = Arc::clone(&seen);
            shuttle::check_pct(move || schedule(&counted, drained), schedules, 3);
        }
        rounds += 1;
    }
    if let Some(event) = seen.lacks() {
        panic!("no schedule came to `{event}`");
    }
    let counts = seen.events().map(|(event, count)| (event.to_owned(), count.into()));
    let counts: serde_json::Map<_, _> = counts.into_iter().collect();
    let Some(path) = std::env::var_os("LOCK_FAULTS_REPORT") else { return };
    let line = serde_json::json!({
        "experiment": 5,
        "name": "one holder at a time, no task waits for ever, nothing left in the registry",
        "fault": "tasks of a process in many interleavings: dropped waits, hand-offs, expired leases, drains",
        "runs": 4 * schedules * rounds, "events": counts, "violations": 0,
    });
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
