//! Many tasks take turns on a few keys: each turn adds one to a number that the lock protects, slowly and without any care,
//! and records when it began and ended.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, FencingToken, Lease, LockClient, LockOptions};
use lock_tests::history::now;

use crate::polls::Polls;
use crate::resource::Resource;
use crate::{Args, say};

/// Two readings of a clock in a row take no longer, unless the process is stopped in between. In nanoseconds.
const SOON: u128 = 5_000_000;

/// What the tasks of a process share.
struct Contest {
    dir: PathBuf,
    resource: Resource,
    log: File,
    work: Duration,
    wait: Duration,
    /// Whether bodies end with their lease, as those of `run` do, or go on like the owner of a guard.
    bound: bool,
    end: u128,
}

#[derive(Default)]
struct Counts {
    busy: u64,
    lost: u64,
    failed: u64,
    /// Of those that failed: it is not known whether the store acted.
    unknown: u64,
    /// Polls of bound bodies that began after the deadline.
    late: u64,
    /// By how much the longest wait was longer than it should have been, in milliseconds.
    overrun: u128,
    /// The last failure, for the report.
    failure: Option<Error>,
}

pub(crate) async fn run(client: &LockClient, args: &Args) {
    let (tasks, keys) = (args.number("tasks"), args.number("keys"));
    let dir = PathBuf::from(args.text("dir"));
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join(format!("log-{}", std::process::id())))
        .unwrap();
    let resource = Resource::open(args);
    say("ready");
    let contest = Arc::new(Contest {
        resource,
        log,
        work: Duration::from_micros(args.number("work")),
        wait: args.millis("wait"),
        bound: args.number("bound") == 1,
        end: now() + args.millis("for").as_nanos(),
        dir,
    });
    let mut running = Vec::new();
    for task in 0..tasks {
        let (client, contest) = (client.clone(), Arc::clone(&contest));
        let key = format!("k{}", task % keys);
        running.push(tokio::spawn(async move { contest.contend(&client, &key).await }));
    }
    let mut all = Counts::default();
    for task in running {
        all.add(task.await.unwrap());
    }
    let Counts { busy, lost, failed, unknown, late, overrun, failure } = all;
    say(&format!(
        "done busy={busy} lost={lost} failed={failed} unknown={unknown} late={late} overrun={overrun} {failure:?}"
    ));
}

/// Says what the numbers are in all.
pub(crate) fn total(args: &Args) {
    say(&format!("total={}", Resource::open(args).total(args.number("keys"))));
}

impl Contest {
    async fn contend(&self, client: &LockClient, key: &str) -> Counts {
        let options = LockOptions::new().with_wait(self.wait);
        let mutex = client.mutex(key).with_options(options);
        let mut counts = Counts::default();
        while now() < self.end {
            let asked = now();
            let polls = Polls::default();
            let outcome = if self.bound {
                let body = mutex.run(async |lease| self.turn(key, asked, &lease, &polls).await);
                polls.of(body).await
            } else {
                match mutex.lock().await {
                    Ok(guard) => {
                        self.turn(key, asked, &guard, &polls).await;
                        // A lost lease is told by the log.
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
                    let overrun = waited.saturating_sub(self.wait.as_nanos()) / 1_000_000;
                    counts.overrun = counts.overrun.max(overrun);
                    if error.is_busy() {
                        counts.busy += 1;
                    } else {
                        counts.failed += 1;
                        counts.unknown += u64::from(error.is_unknown());
                        counts.failure = Some(error);
                        // A store that is down answers at once.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        }
        counts
    }

    async fn turn(&self, key: &str, asked: u128, lease: &Lease, polls: &Polls) {
        polls.begin(lease);
        let turn = Turn::begin(self, key, asked, lease);
        std::fs::write(self.dir.join(format!("holder-{key}")), std::process::id().to_string())
            .unwrap();
        let Ok(before) = self.resource.read(key, turn.token) else {
            return turn.wrote(now(), false);
        };
        tokio::time::sleep(self.work).await;
        let _late = polls.polled();
        let (at, written) = self.resource.write(key, before + 1, turn.token);
        turn.wrote(at, written.is_ok());
        turn.done();
    }
}

/// A turn that is not over. Recorded when it ends, also if it is dropped.
struct Turn<'a> {
    log: &'a File,
    key: &'a str,
    asked: u128,
    enter: u128,
    deadline: u128,
    token: FencingToken,
    done: bool,
}

impl<'a> Turn<'a> {
    fn begin(contest: &'a Contest, key: &'a str, asked: u128, lease: &Lease) -> Self {
        let enter = now();
        let left = lease.remaining().as_nanos();
        // Stopped between the two readings: nothing is known but that it began. Stopped before the first: not even when.
        let deadline = enter + if left > 0 && now() - enter > SOON { 1 } else { left };
        let token = lease.fencing_token();
        Self { log: &contest.log, key, asked, enter, deadline, token, done: false }
    }

    fn wrote(&self, at: u128, accepted: bool) {
        let Self { key, token, .. } = self;
        record(self.log, &format!("write {key} {at} {token} {}", u8::from(accepted)));
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self { log, key, asked, enter, deadline, token, done } = self;
        let (exit, done) = (now(), u8::from(*done));
        record(log, &format!("turn {key} {asked} {enter} {exit} {deadline} {token} {done}"));
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
