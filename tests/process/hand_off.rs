//! Hand-off between processes, and heads of the queue that are stopped or killed.

use std::time::{Duration, Instant};

use lock_core::{LockClient, MutexGuard};
use lock_testkit::history::now;
use lock_testkit::{Experiment, RedisServer, Signal, client, eventually, ms};

use crate::support::history::History;
use crate::support::worker::Worker;
use crate::support::workload::Workload;

/// A round trip on a busy machine.
const AT_ONCE: Duration = ms(250);
/// What a loaded machine may add to a time limit.
const SLACK: Duration = ms(400);

/// A lock held by this process, with a short lease or a long one, and processes that wait for it.
struct Line {
    server: RedisServer,
    client: LockClient,
    guard: Option<MutexGuard>,
    waiters: Vec<Worker>,
}

impl Line {
    async fn form(waiters: usize, ttl: u64) -> Self {
        let server = RedisServer::start();
        let client = client(&server.url()).await;
        let guard = Some(client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap());
        let mut line = Self { server, client, guard, waiters: Vec::new() };
        for _ in 0..waiters {
            line.joins(ttl).await;
        }
        line
    }

    /// Another process joins the queue.
    async fn joins(&mut self, ttl: u64) {
        self.waiters.push(Worker::holder(&self.server.url(), "k", ttl));
        let count = self.waiters.len();
        let queued = || self.server.queued("k") == count;
        eventually("it is queued", ms(20_000), queued).await;
    }

    /// Releases the lock, and returns the time of the release.
    async fn release(&mut self) -> u128 {
        let at = now();
        self.guard.take().unwrap().release().await.unwrap();
        at
    }
}

/// Waits until a worker has the lock. Returns the time since `at`, and the fencing token.
fn served(worker: &Worker, at: u128) -> (Duration, u64) {
    let (when, fence) = worker.holds();
    (Duration::from_nanos(u64::try_from(when - at).unwrap()), fence)
}

fn stops(worker: &mut Worker) -> u128 {
    let at = now();
    worker.tell("stop");
    let (_, event) = worker.next();
    assert!(event.contains("Ok(InTime)"), "{event}");
    at
}

/// Processes are served one after the other, in order of arrival and at once.
#[tokio::test]
async fn processes_are_served_in_order_of_arrival() {
    let mut line = Line::form(4, 10_000).await;
    line.server.load_scripts();
    line.server.reset_calls();
    let (start, mut at, mut last) = (Instant::now(), line.release().await, 0);
    for worker in &mut line.waiters {
        let (took, fence) = served(worker, at);
        assert!(took < AT_ONCE && fence > last, "{took:?}, {fence} after {last}");
        last = fence;
        at = stops(worker);
    }
    let (calls, seconds) = (line.server.script_calls(), start.elapsed().as_secs() + 1);
    assert!((5..=5 + 8 * seconds).contains(&calls), "{calls} commands for five releases");
    assert!(line.server.leftovers().is_empty(), "{:?}", line.server.leftovers());
}

/// R21: the head of the queue is killed as by `kill -9`. The release notices that no client
/// receives its message, and serves the next waiter. redisson#3730, #3004.
#[tokio::test]
async fn killed_head_does_not_delay_the_next_waiter() {
    let mut experiment = Experiment::new(
        41,
        "the next process is served at once, nothing is left",
        "SIGKILL of the first two in the queue",
        &["waiters served past the dead"],
    );
    let mut line = Line::form(3, 10_000).await;
    line.waiters[0].kill();
    line.waiters[1].kill();
    // A busy server may look at the release before it looks at the ends of their connections.
    let noticed = || line.server.inboxes().len() == 1;
    eventually("the server has noticed", ms(5_000), noticed).await;
    let at = line.release().await;
    let (took, _) = served(&line.waiters[2], at);
    assert!(took < AT_ONCE, "{took:?}");
    let _at = stops(&mut line.waiters[2]);
    assert!(line.server.leftovers().is_empty(), "{:?}", line.server.leftovers());
    experiment.ran(1);
    experiment.saw("waiters served past the dead", 1);
    experiment.finish();
}

/// The head is stopped, which looks the same as a slow process. So the next waiter is served when
/// the head's claim has expired, and the head queues again when it goes on.
#[tokio::test]
async fn stopped_head_delays_the_next_waiter_by_no_more_than_its_claim() {
    let mut experiment = Experiment::new(
        18,
        "the next is served after the claim's time, a late grant is no lock",
        "SIGSTOP of the first in the queue",
        &["waiters served past the stopped"],
    );
    let ttl = 1_000;
    let mut line = Line::form(2, ttl).await;
    line.waiters[0].signal(Signal::STOP);
    let at = line.release().await;
    let (took, fence) = served(&line.waiters[1], at);
    assert!(took <= ms(ttl + 100) + SLACK, "{took:?}");
    assert!(took >= ms(ttl - 50), "{took:?}: it was not stopped");
    line.waiters[0].signal(Signal::CONT);
    assert!(line.waiters[0].is_silent(ms(600)), "it took its late grant for a lock");
    let at = stops(&mut line.waiters[1]);
    let (took, later) = served(&line.waiters[0], at);
    assert!(took < AT_ONCE && later > fence, "{took:?}, {later} after {fence}");
    let _at = stops(&mut line.waiters[0]);
    assert!(line.server.leftovers().is_empty(), "{:?}", line.server.leftovers());
    experiment.ran(1);
    experiment.saw("waiters served past the stopped", 1);
    experiment.finish();
}

/// The holder is killed. The head knows when the holder's lock expires.
#[tokio::test]
async fn killed_holder_delays_the_queue_by_no_more_than_its_ttl() {
    let mut experiment = Experiment::new(
        41,
        "the queue is served when the ttl is over",
        "SIGKILL of a holder with others in the queue",
        &["waiters served after the dead"],
    );
    let mut line = Line::form(3, 1_500).await;
    let at = line.release().await;
    let _served = served(&line.waiters[0], at);
    // The first grant is for the hand-off TTL, which is no longer than the ttl.
    line.waiters[0].kill();
    let (at, left) = (now(), line.server.pttl("lock:k"));
    let left = ms(u64::try_from(left).unwrap());
    let (took, _) = served(&line.waiters[1], at);
    assert!(took + ms(10) >= left && took < left + ms(100) + SLACK, "{took:?} for {left:?}");
    let at = stops(&mut line.waiters[1]);
    let (took, _) = served(&line.waiters[2], at);
    assert!(took < AT_ONCE, "{took:?}");
    let _at = stops(&mut line.waiters[2]);
    experiment.ran(1);
    experiment.saw("waiters served after the dead", 1);
    experiment.finish();
}

/// R21: the holder and the head are dead. The next live waiter is served soon after the holder's
/// lease ends. It sends few commands while it waits, and a waiter that has waited for long is
/// served before one that came late.
#[tokio::test]
async fn dead_head_does_not_prolong_the_wait_for_a_dead_holder() {
    let mut experiment = Experiment::new(
        41,
        "the queue is served soon after the ttl, and asks little",
        "SIGKILL of the holder and the first in the queue",
        &["waiters served after the dead"],
    );
    let mut line = Line::form(4, 2_000).await;
    let at = line.release().await;
    let _served = served(&line.waiters[0], at);
    // The lock is renewed once, to its whole ttl.
    eventually("it is renewed", ms(5_000), || line.server.pttl("lock:k") > 1_900).await;
    line.waiters[1].kill();
    line.waiters[0].kill();
    let (at, left) = (now(), line.server.pttl("lock:k"));
    let left = ms(u64::try_from(left).unwrap());
    let (took, _) = served(&line.waiters[2], at);
    assert!(took < left + ms(1_000) + SLACK, "{took:?} for {left:?}");

    // A late-comer, and a long wait of those two.
    let args = ["ttl=2000".to_owned(), "key=k".to_owned()];
    let late = Worker::start(&line.server, "hold", &args);
    eventually("it is queued", ms(20_000), || line.server.queued("k") == 2).await;
    line.server.load_scripts();
    line.server.reset_calls();
    assert!(line.waiters[3].is_silent(ms(4_000)));
    let calls = line.server.script_calls();
    // The renewals of the holder are three in two seconds.
    assert!(calls <= 4 * (2 * 5 + 2), "{calls} commands in 4 s");
    assert_eq!(line.server.queued("k"), 2);
    let at = stops(&mut line.waiters[2]);
    let (took, fence) = served(&line.waiters[3], at);
    assert!(took < AT_ONCE, "{took:?}");
    let at = stops(&mut line.waiters[3]);
    let (took, last) = served(&late, at);
    assert!(took < AT_ONCE && last > fence, "{took:?}");
    experiment.ran(1);
    experiment.saw("waiters served after the dead", 1);
    experiment.finish();
}

/// After all processes have died, every key that is left expires by itself.
#[tokio::test]
async fn queue_of_dead_waiters_expires() {
    let mut experiment = Experiment::new(
        41,
        "all that is left expires, no waiter waits for the dead",
        "SIGKILL of the holder and of all in the queue",
        &["queues of the dead"],
    );
    let mut line = Line::form(3, 1_000).await;
    let at = line.release().await;
    let _served = served(&line.waiters[0], at);
    for worker in &mut line.waiters {
        worker.kill();
    }
    let remains = line.server.leftovers();
    assert_eq!(remains.len(), 3, "lock and queue: {remains:?}");
    for key in &remains {
        let left = line.server.pttl(key);
        assert!(left > 0 && left <= 120_000, "{key} expires in {left} ms");
    }
    eventually("the lock expires", ms(5_000), || !line.server.has("lock:k")).await;
    assert!(line.server.inboxes().is_empty());
    // A new client does not wait for the dead.
    let start = Instant::now();
    let guard = line.client.mutex("k").lock().await.unwrap();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    guard.release().await.unwrap();
    assert!(line.server.leftovers().is_empty(), "{:?}", line.server.leftovers());
    experiment.ran(1);
    experiment.saw("queues of the dead", 1);
    experiment.finish();
}

/// P26: four processes with sixteen tasks each on one key send few commands, and no process gets
/// many more turns than another.
#[test]
fn processes_with_many_waiters_get_fair_shares() {
    let events = ["turns", "hand-offs between processes"];
    let name = "no two turns at once, no lost update, fair shares, few commands";
    let mut experiment = Experiment::new(17, name, "none: many waiters on one key", &events);
    let workload = Workload {
        tasks: 16,
        events: &[
            ("turns", 201, History::done),
            ("hand-offs between processes", 21, History::hand_offs),
        ],
        ..Workload::new("crowd", 1, ms(5_000))
    };
    let outcome = workload
        .run_calmly(|field| field.wait(&experiment), |outcome| outcome.lost + outcome.failed);
    let (turns, words) = (outcome.turns, outcome.words());
    assert_eq!(outcome.total, turns, "each turn counted once: {words}");
    assert_eq!((outcome.lost, outcome.failed), (0, 0), "{words}");
    let hand_offs = outcome.history.check();
    assert!(turns > 200 && hand_offs > 20, "{hand_offs} {words}");
    // A claim and a release for each at most, and what is re-sent each second.
    assert!(outcome.calls <= 2 * turns + 50, "{words}");
    let shares = &outcome.history.shares;
    let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    assert!(*most <= 2 * least, "{shares:?}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("hand-offs between processes", hand_offs);
    experiment.finish();
}

/// Scripts that a store calls when it connects.
const START_UP_CALLS: u64 = 7;

/// One task each: every section is a hand-off between processes, for a claim and a release.
#[test]
fn hand_off_between_processes_costs_two_commands() {
    let workload = Workload { tasks: 1, ..Workload::new("turns", 1, ms(3_000)) };
    let outcome =
        workload.run_calmly(|_| {}, |outcome| outcome.busy + outcome.lost + outcome.failed);
    let (turns, words) = (outcome.turns, outcome.words());
    assert_eq!(outcome.total, turns, "each turn counted once: {words}");
    assert_eq!((outcome.busy, outcome.lost, outcome.failed), (0, 0, 0), "{words}");
    let hand_offs = outcome.history.check() as u64;
    assert!(turns > 100 && hand_offs > turns * 9 / 10, "{hand_offs} {words}");
    // The check at the start of each, its first waits, and claims that are re-sent each second.
    let once = 4 * (START_UP_CALLS + 3 + 5);
    assert!(outcome.calls <= 2 * turns + once, "{words}");
    let shares = &outcome.history.shares;
    let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
    assert!(*most <= least + least / 5 + 5, "{shares:?}");
}
