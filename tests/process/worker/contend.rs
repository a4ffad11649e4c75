//! Many tasks take turns on a few keys. Each turn adds one to a number that the lock protects,
//! slowly and without any care. It records when it began and ended, and until when it took its
//! lease for valid.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{Error, FencingToken, Lease, LockClient, LockOptions};
use lock_testkit::history::now;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::args::Args;
use crate::polls::Polls;
use crate::report::say;
use crate::resource::Resource;

/// Two consecutive readings of a clock take no longer unless the process is stopped between them.
/// In nanoseconds.
const SOON: u128 = 5_000_000;
/// More than it takes from the start of a poll to the first step of its body, in nanoseconds.
const AT_ONCE: u128 = 1_000_000;
/// How often a process measures whether it gets to run.
const PULSE: Duration = Duration::from_millis(10);
/// Long work checks its lease this often.
const STEP: Duration = Duration::from_millis(40);
/// If leases are to be renewed, this many tasks of each process hold them for longer than their
/// ttl, each on a key of its own.
const RENEWED_KEYS: u64 = 2;

/// The key whose locks a replica has to confirm.
const CONFIRMED: &str = "c0";

/// Longer than any release takes: the server answers again when a workload ends.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// What the tasks of a process share.
struct Workload {
    dir: PathBuf,
    resource: Resource,
    log: File,
    work: Duration,
    wait: Duration,
    /// Whether bodies end with their lease, as those of `run` do, or go on like the owner of a
    /// guard.
    bound: bool,
    /// Whether no more turns are to begin.
    is_over: AtomicBool,
    /// By how many milliseconds a timer was late at most.
    stalled: AtomicU64,
}

#[derive(Default)]
struct Counts {
    busy: u64,
    lost: u64,
    failed: u64,
    /// Failures after which it is unknown whether the store acted.
    unknown: u64,
    /// Polls of bound bodies that began after the deadline.
    late: u64,
    /// By how much the longest wait was longer than it should have been, in milliseconds.
    overrun: u128,
    /// The last failure, for the report.
    failure: Option<Error>,
}

/// `confirmed`: a client that demands the confirmation of a replica.
pub(crate) async fn run(client: &LockClient, confirmed: Option<&LockClient>, args: &Args) {
    let (tasks, keys) = (args.number("tasks"), args.number("keys"));
    let dir = PathBuf::from(args.text("dir"));
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join(format!("log-{}", std::process::id())))
        .unwrap();
    let resource = Resource::open(args);
    say("ready");
    let workload = Arc::new(Workload {
        resource,
        log,
        work: Duration::from_micros(args.number("work")),
        wait: args.millis("wait"),
        bound: args.number("bound") == 1,
        is_over: AtomicBool::new(false),
        stalled: AtomicU64::new(0),
        dir,
    });
    let watched = Arc::clone(&workload);
    tokio::spawn(async move { watched.watch().await });
    let mut running = Vec::new();
    // If there are more keys than tasks, each task goes from key to key.
    let (first, step) = if keys > tasks { (u64::from(std::process::id()), 1) } else { (0, 0) };
    for task in first..first + tasks {
        let (client, workload) = (client.clone(), Arc::clone(&workload));
        let suffix = args.text("suffix").to_owned();
        let key = move |turn: u64| format!("k{}{suffix}", (task + step * turn) % keys);
        running.push(tokio::spawn(async move { workload.contend(&client, key, None).await }));
    }
    let renewed = args.millis("renewed");
    for number in 0..if renewed.is_zero() { 0 } else { RENEWED_KEYS } {
        let (client, workload) = (client.clone(), Arc::clone(&workload));
        let suffix = args.text("suffix").to_owned();
        let key = move |_| format!("r{number}{suffix}");
        running
            .push(tokio::spawn(async move { workload.contend(&client, key, Some(renewed)).await }));
    }
    for _ in 0..args.number("confirmed") {
        let (client, workload) = (confirmed.unwrap().clone(), Arc::clone(&workload));
        let suffix = args.text("suffix").to_owned();
        let key = move |_| format!("{CONFIRMED}{suffix}");
        running.push(tokio::spawn(async move { workload.contend(&client, key, None).await }));
    }
    // The test sends a line, or ends.
    drop(BufReader::new(tokio::io::stdin()).lines().next_line().await);
    workload.is_over.store(true, Ordering::Relaxed);
    let mut all = Counts::default();
    for task in running {
        all.add(task.await.unwrap());
    }
    // A process that exits with pending releases would leave their keys.
    for client in [Some(client), confirmed].into_iter().flatten() {
        let drained = client.drain(DRAIN_LIMIT).await;
        assert!(drained.is_clean(), "{drained:?}");
    }
    let Counts { busy, lost, failed, unknown, late, overrun, failure } = all;
    let stalled = workload.stalled.load(Ordering::Relaxed);
    say(&format!(
        "done busy={busy} lost={lost} failed={failed} unknown={unknown} late={late} \
         overrun={overrun} stalled={stalled} {failure:?}"
    ));
}

/// Prints the sum of the numbers.
pub(crate) fn total(args: &Args) {
    let suffix = args.text("suffix");
    let keys = (0..args.number("keys")).map(|number| format!("k{number}{suffix}"));
    let keys = keys.chain((0..RENEWED_KEYS).map(|number| format!("r{number}{suffix}")));
    let keys = keys.chain([format!("{CONFIRMED}{suffix}")]);
    say(&format!("total={}", Resource::open(args).total(keys)));
}

impl Workload {
    /// Takes turns, each on the key that `key` returns. With `renewed`, every other turn is longer
    /// than that ttl.
    async fn contend(
        &self,
        client: &LockClient,
        key: impl Fn(u64) -> String,
        renewed: Option<Duration>,
    ) -> Counts {
        // Longer than it takes until each process has had the key once.
        let wait = renewed.map_or(self.wait, |ttl| self.wait.max(ttl * 15));
        let mut options = LockOptions::new().with_wait(wait);
        if let Some(ttl) = renewed {
            options = options.with_ttl(ttl);
        }
        let mut counts = Counts::default();
        for number in 0.. {
            if self.is_over() {
                break;
            }
            let (asked, polls, key) = (now(), Polls::default(), key(number));
            let mutex = client.mutex(&key).with_options(options);
            let long = renewed.filter(|_| number % 2 == 0);
            let outcome = if self.bound {
                let body = async |lease: Lease| self.turn(&key, asked, &lease, &polls, long).await;
                polls.of(mutex.run(body)).await
            } else {
                match polls.of(mutex.lock()).await {
                    Ok(guard) => {
                        self.turn(&key, asked, &guard, &polls, long).await;
                        // The log shows a lost lease.
                        drop(guard.release().await);
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            };
            counts.late += polls.late();
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_lost() => counts.lost += 1,
                Err(error) => {
                    let waited = now() - asked;
                    let overrun = waited.saturating_sub(wait.as_nanos()) / 1_000_000;
                    counts.overrun = counts.overrun.max(overrun);
                    if error.is_busy() {
                        counts.busy += 1;
                    } else {
                        counts.failed += 1;
                        if error.is_unknown() {
                            counts.unknown += 1;
                            record(&self.log, "unknown");
                        }
                        counts.failure = Some(error);
                        // A store that is down answers at once.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        }
        counts
    }

    async fn turn(
        &self,
        key: &str,
        asked: u128,
        lease: &Lease,
        polls: &Polls,
        long: Option<Duration>,
    ) {
        polls.begin(lease);
        let mut turn = Turn::begin(self, key, asked, lease, polls);
        let Ok(before) = self.resource.read(key, turn.token) else {
            return turn.wrote(now(), false);
        };
        let begun = now();
        // A third longer than its ttl, if there is time.
        let long = long.map(|ttl| begun + (ttl + ttl / 3).as_nanos());
        let short = begun + self.work.as_nanos();
        loop {
            let done = long.filter(|_| !self.is_over()).unwrap_or(short);
            let left = Duration::from_nanos(u64::try_from(done.saturating_sub(now())).unwrap());
            tokio::time::sleep(left.min(STEP)).await;
            let _late = polls.polled();
            turn.look_at(lease);
            if now() >= done {
                break;
            }
        }
        let (at, written) = self.resource.write(key, before + 1, turn.token);
        turn.wrote(at, written.is_ok());
        turn.done();
    }

    /// Measures for how long this process does not run.
    async fn watch(&self) {
        loop {
            let due = now() + PULSE.as_nanos();
            tokio::time::sleep(PULSE).await;
            let late = u64::try_from(now().saturating_sub(due) / 1_000_000).unwrap();
            self.stalled.fetch_max(late, Ordering::Relaxed);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// This file names the process that is in the middle of a turn.
    fn holder_file(&self, key: &str) -> PathBuf {
        self.dir.join(format!("holder-{key}"))
    }
}

/// A turn that is not over. Recorded when it ends, also if it is dropped.
struct Turn<'a> {
    workload: &'a Workload,
    key: &'a str,
    asked: u128,
    enter: u128,
    /// Until when the lease was believed in at the last look.
    deadline: u128,
    token: FencingToken,
    done: bool,
}

impl<'a> Turn<'a> {
    fn begin(
        workload: &'a Workload,
        key: &'a str,
        asked: u128,
        lease: &Lease,
        polls: &Polls,
    ) -> Self {
        let (enter, token) = (now(), lease.fencing_token());
        let mut turn = Self { workload, key, asked, enter, deadline: enter, token, done: false };
        turn.look_at(lease);
        let is_over = turn.deadline == enter;
        if is_over && enter - polls.since() > AT_ONCE {
            // The lease was valid when this poll began, and the process did not run since.
            turn.deadline = enter + 1;
        }
        let pid = std::process::id().to_string();
        std::fs::write(workload.holder_file(key), pid).unwrap();
        turn
    }

    /// Records until when the lease is valid. It may have been renewed; after it ended it stays as
    /// it was.
    fn look_at(&mut self, lease: &Lease) {
        loop {
            let before = now();
            let left = lease.remaining().as_nanos();
            if left > 0 {
                self.deadline = self.deadline.max(before + left);
            }
            // Stopped between the two readings, it has seen an end that is too early.
            if left == 0 || now() - before <= SOON {
                return;
            }
        }
    }

    fn wrote(&self, at: u128, accepted: bool) {
        let Self { workload, key, token, .. } = self;
        record(&workload.log, &format!("write {key} {at} {token} {}", u8::from(accepted)));
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self { workload, key, asked, enter, deadline, token, done } = self;
        let holder = workload.holder_file(key);
        // Unless it is late, and another one's by now.
        let pid = std::process::id().to_string();
        if std::fs::read_to_string(&holder).is_ok_and(|holder| holder == pid) {
            std::fs::write(holder, "").unwrap();
        }
        let (exit, done) = (now(), u8::from(*done));
        record(
            &workload.log,
            &format!("turn {key} {asked} {enter} {exit} {deadline} {token} {done}"),
        );
    }
}

/// In one write, so that a process that is killed leaves no half of it.
fn record(mut log: &File, line: &str) {
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.lost += other.lost;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.late += other.late;
        self.overrun = self.overrun.max(other.overrun);
        self.failure = other.failure.or_else(|| self.failure.take());
    }
}
