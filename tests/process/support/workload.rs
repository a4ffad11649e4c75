//! Processes that contend for locks while a test disturbs them, the server or the keys.

use std::time::{Duration, Instant};

use lock_testkit::history::now;
use lock_testkit::{Experiment, Line, Quorum, RedisCluster, RedisServer, Sentinels, Signal, ms};

use crate::support::history::{Ground, History, Stop};
use crate::support::worker::Worker;

/// In milliseconds. A machine that does not run the tests for longer may cost an answer or a lease.
const STALL: u64 = 150;
/// The machine does not stall in so many runs in a row unless it has no time for tests.
const CALM_RUNS: usize = 3;

/// The servers on which processes contend.
pub(crate) trait Servers {
    /// Whether records of a queue may stay that a fault kept a client from removing: what one
    /// server has lost, another one brings back. They expire two minutes after the last claim.
    const KEEP_QUEUES: bool = true;

    /// What the store is connected to.
    fn urls(&self) -> String;

    /// The keys of locks and queues, without those that stay.
    fn leftovers(&self) -> Vec<String>;

    /// Calls of lock scripts, by those servers that run.
    fn script_calls(&self) -> u64;
}

impl Servers for RedisServer {
    const KEEP_QUEUES: bool = false;

    fn urls(&self) -> String {
        self.url()
    }

    fn leftovers(&self) -> Vec<String> {
        self.leftovers()
    }

    fn script_calls(&self) -> u64 {
        self.script_calls()
    }
}

impl Servers for RedisCluster {
    fn urls(&self) -> String {
        self.url()
    }

    fn leftovers(&self) -> Vec<String> {
        confirmed(self.leftovers())
    }

    fn script_calls(&self) -> u64 {
        calls(self.servers().iter())
    }
}

impl Servers for Sentinels {
    fn urls(&self) -> String {
        self.url()
    }

    fn leftovers(&self) -> Vec<String> {
        confirmed(self.server(self.master_by(0)).leftovers())
    }

    fn script_calls(&self) -> u64 {
        calls(self.servers().iter())
    }
}

impl Servers for Quorum {
    fn urls(&self) -> String {
        self.urls().join(" ")
    }

    fn leftovers(&self) -> Vec<String> {
        self.servers().filter(|server| server.runs()).flat_map(RedisServer::leftovers).collect()
    }

    fn script_calls(&self) -> u64 {
        calls(self.servers())
    }
}

fn calls<'a>(servers: impl Iterator<Item = &'a RedisServer>) -> u64 {
    servers.filter(|server| server.runs()).map(RedisServer::script_calls).sum()
}

fn is_of_a_queue(key: &str) -> bool {
    key.contains("}:q:") || key.contains("}:a:")
}

/// Without what is written for replicas to confirm, which expires.
fn confirmed(mut keys: Vec<String>) -> Vec<String> {
    keys.retain(|key| !key.ends_with("}:w"));
    keys
}

/// How the processes contend.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// How long it usually takes.
    pub(crate) span: Duration,
    pub(crate) ttl: u64,
    pub(crate) wait: u64,
    pub(crate) keys: u64,
    pub(crate) processes: usize,
    /// The tasks of each process.
    pub(crate) tasks: u64,
    /// How long a body takes, in microseconds.
    pub(crate) work: u64,
    /// Besides, some tasks of each process, on keys of their own, have this ttl, in milliseconds,
    /// and hold for longer than it every other time, so that leases must be renewed. 0: there are
    /// none.
    pub(crate) renewed: u64,
    /// Besides, so many tasks of each process share a key of their own, whose locks a replica has
    /// to confirm.
    pub(crate) confirmed: u64,
    /// Behind the number in each key.
    pub(crate) suffix: &'static str,
    /// What the lock protects: numbers in files, or in rows of a table.
    pub(crate) resource: &'static str,
    /// Whether the resource checks tokens.
    pub(crate) fenced: bool,
    /// Whether bodies end with their lease, as those of `run` do, or go on like the owner of a
    /// guard.
    pub(crate) bound: bool,
    /// Events that are counted in the logs. The workload goes on until it has seen each of them.
    pub(crate) events: &'static [LoggedEvent],
    /// Lines of the server's configuration.
    pub(crate) config: &'static [&'static str],
}

/// An event of an experiment that is counted in the logs of the processes: its name, the least
/// count, and how to count it.
pub(crate) type LoggedEvent = (&'static str, usize, fn(&History) -> usize);

/// A workload that is running.
#[derive(Debug)]
pub(crate) struct Field<S = RedisServer> {
    pub(crate) server: S,
    pub(crate) workers: Vec<Worker>,
    pub(crate) ground: Ground,
    pub(crate) end: Instant,
    /// The workload ends by then even if an event has not occurred.
    limit: Instant,
    events: &'static [LoggedEvent],
    args: Vec<String>,
    renewed: Duration,
    /// A lock that the servers keep although it was released is free after this.
    lasting: Duration,
    stops: Vec<Stop>,
    /// How long the server did not answer at most.
    stalled: Duration,
}

/// The outcome of a workload.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) history: History,
    /// Turns that came to their end.
    pub(crate) turns: u64,
    /// The sum of the numbers.
    pub(crate) total: u64,
    pub(crate) busy: u64,
    pub(crate) lost: u64,
    pub(crate) failed: u64,
    pub(crate) unknown: u64,
    pub(crate) late: u64,
    /// By how many milliseconds the longest wait was too long.
    pub(crate) overrun: u64,
    /// How long, in milliseconds, a process did not run or the server did not answer the test.
    pub(crate) stalled: u64,
    /// Commands, as the server counted them.
    pub(crate) calls: u64,
    /// Turns of renewed leases: those that were longer than the ttl.
    pub(crate) renewed: usize,
    /// Keys that were left when all had ended.
    pub(crate) remains: Vec<String>,
    // Shown by a failed assertion.
    #[allow(dead_code)]
    reports: Vec<Line>,
}

impl Workload {
    pub(crate) fn new(name: &'static str, keys: u64, span: Duration) -> Self {
        Self {
            name,
            span,
            ttl: 10_000,
            wait: 2_000,
            keys,
            processes: 4,
            tasks: 8,
            work: 500,
            renewed: 0,
            confirmed: 0,
            suffix: "",
            resource: "file",
            fenced: false,
            bound: true,
            events: &[],
            config: &[],
        }
    }

    /// Owners of guards that go on when their lease is lost, and a resource that checks tokens: for
    /// servers that forget or misjudge time.
    pub(crate) fn fenced(name: &'static str, keys: u64, span: Duration) -> Self {
        Self { fenced: true, bound: false, ..Self::new(name, keys, span) }
    }

    /// Lets processes contend while `disturb` runs, and reads their logs.
    pub(crate) fn run(&self, disturb: impl FnOnce(&mut Field)) -> Outcome {
        self.run_on(RedisServer::start_with(self.config), disturb)
    }

    /// As [`run`](Self::run), for a workload in which all goes well. If the machine stalled,
    /// failures mean nothing, so the workload is repeated, up to [`CALM_RUNS`] in all, until there
    /// are no `troubles`.
    pub(crate) fn run_calmly(
        &self,
        mut disturb: impl FnMut(&mut Field),
        troubles: impl Fn(&Outcome) -> u64,
    ) -> Outcome {
        let mut round = 0;
        loop {
            let outcome = self.run(&mut disturb);
            if troubles(&outcome) == 0 {
                return outcome;
            }
            round += 1;
            let words = outcome.words();
            assert!(outcome.stalled > STALL && round < CALM_RUNS, "run {round}: {words}");
            let _hand_offs = outcome.history.check();
            assert_eq!(outcome.lost_updates(), 0, "{words}");
        }
    }

    /// As [`run`](Self::run), on a running server.
    pub(crate) fn run_on<S: Servers>(
        &self,
        server: S,
        disturb: impl FnOnce(&mut Field<S>),
    ) -> Outcome {
        let ground = Ground::new(self.name);
        let args = vec![
            format!("ttl={}", self.ttl),
            format!("wait={}", self.wait),
            format!("tasks={}", self.tasks),
            format!("keys={}", self.keys),
            format!("work={}", self.work),
            format!("renewed={}", self.renewed),
            format!("confirmed={}", self.confirmed),
            format!("suffix={}", self.suffix),
            format!("resource={}", self.resource),
            format!("fenced={}", u8::from(self.fenced)),
            format!("bound={}", u8::from(self.bound)),
            format!("dir={}", ground.path().display()),
        ];
        let (renewed, lasting, events) = (ms(self.renewed), ms(self.ttl), self.events);
        let (workers, stops, stalled) = (Vec::new(), Vec::new(), Duration::ZERO);
        let (end, limit) = (Instant::now(), Instant::now());
        let mut field = Field {
            server,
            workers,
            ground,
            end,
            limit,
            events,
            args,
            renewed,
            lasting,
            stops,
            stalled,
        };
        for _ in 0..self.processes {
            field.join();
        }
        for worker in &field.workers {
            assert_eq!(worker.next().1, "ready");
        }
        let begun = Instant::now();
        field.end = begun + self.span;
        field.limit = begun + Experiment::limit(self.span);
        disturb(&mut field);
        field.outcome()
    }
}

impl<S: Servers> Field<S> {
    fn start(&self, task: &str) -> Worker {
        Worker::run(Worker::command(task, &self.server.urls()).args(&self.args))
    }

    fn join(&mut self) {
        let worker = self.start("contend");
        self.workers.push(worker);
    }

    /// Kills a worker as by `kill -9`, and starts another one.
    pub(crate) fn replace(&mut self, worker: usize) {
        self.workers[worker].kill();
        self.workers.remove(worker);
        self.join();
        assert_eq!(self.workers.last().unwrap().next().1, "ready");
    }

    /// Stops a worker for a time.
    pub(crate) fn stop(&mut self, worker: usize, span: Duration) {
        let from = self.halt(worker);
        self.resume(worker, from, span);
    }

    /// Stops the worker that holds the lock of `key` for a time. Returns whether a worker was in
    /// the middle of a turn.
    pub(crate) fn stop_holder(&mut self, key: &str, span: Duration) -> bool {
        let Some(worker) = self.holder(key) else { return false };
        let from = self.halt(worker);
        if self.holder(key) == Some(worker) {
            self.resume(worker, from, span);
            return true;
        }
        // Its turn ended before it was stopped.
        self.workers[worker].signal(Signal::CONT);
        false
    }

    /// Stops a worker, and returns when it was stopped.
    fn halt(&self, worker: usize) -> u128 {
        let worker = &self.workers[worker];
        worker.signal(Signal::STOP);
        while !worker.is_stopped() {
            std::thread::sleep(ms(1));
        }
        now()
    }

    fn resume(&mut self, worker: usize, from: u128, span: Duration) {
        std::thread::sleep(span);
        let worker = &self.workers[worker];
        self.stops.push(Stop { pid: worker.pid(), from, to: now() });
        worker.signal(Signal::CONT);
    }

    /// Whether the workload ends within `left`. It ends after its span if each event has occurred,
    /// and after ten times its span at the latest.
    pub(crate) fn is_over(&mut self, left: Duration, experiment: &Experiment) -> bool {
        let end = Instant::now() + left;
        if end < self.end || end < self.limit && self.lacks_an_event(experiment) {
            return false;
        }
        self.end = self.end.max(end);
        true
    }

    fn lacks_an_event(&self, experiment: &Experiment) -> bool {
        let is_logged = |event| self.events.iter().any(|(logged, ..)| *logged == event);
        if experiment.lacks().any(|event| !is_logged(event)) {
            return true;
        }
        let history = self.history();
        self.events.iter().any(|(_, least, count)| count(&history) < *least)
    }

    /// What the logs say so far.
    fn history(&self) -> History {
        let mut history = self.ground.history();
        history.stops.clone_from(&self.stops);
        history.renewed = self.renewed;
        history
    }

    /// The worker that is in the middle of a turn on `key`.
    pub(crate) fn holder(&self, key: &str) -> Option<usize> {
        let pid = self.ground.holder(key)?;
        self.workers.iter().position(|worker| worker.pid() == pid)
    }

    fn outcome(mut self) -> Outcome {
        let mut reports = Vec::new();
        std::thread::sleep(self.end.saturating_duration_since(Instant::now()));
        for worker in &mut self.workers {
            worker.tell("end");
        }
        for worker in self.workers.drain(..) {
            reports.push(worker.next().1);
            assert!(worker.ends_well());
        }
        let counter = self.start("total");
        let total = counter.next().1.number("total");
        // Abandoned claims are released within a second. What a failover brought back expires.
        let patience = Instant::now() + ms(3_000) + self.lasting;
        let mut remains = self.server.leftovers();
        while !remains.is_empty() && Instant::now() < patience {
            std::thread::sleep(ms(20));
            remains = self.server.leftovers();
        }
        remains.retain(|key| !(S::KEEP_QUEUES && is_of_a_queue(key)));
        let history = self.history();
        let renewed = history.renewed_turns();
        let sum = |name: &str| reports.iter().map(|report| report.number(name)).sum();
        let most = |name: &str| reports.iter().map(|report| report.number(name)).max().unwrap();
        let answered = u64::try_from(self.stalled.as_millis()).unwrap();
        Outcome {
            turns: history.done() as u64,
            total,
            busy: sum("busy"),
            lost: sum("lost"),
            failed: sum("failed"),
            unknown: sum("unknown"),
            late: sum("late"),
            overrun: most("overrun"),
            stalled: most("stalled").max(answered),
            calls: self.server.script_calls(),
            remains,
            renewed,
            history,
            reports,
        }
    }
}

impl Field {
    /// Lets the workload go on undisturbed until it is over.
    pub(crate) fn wait(&mut self, experiment: &Experiment) {
        while !self.is_over(ms(0), experiment) {
            std::thread::sleep(ms(10));
            let _pong: String = self.timed(|server| server.cli("PING"));
        }
    }

    /// Sends a command, and measures how long the server takes to answer.
    pub(crate) fn timed<T>(&mut self, command: impl FnOnce(&RedisServer) -> T) -> T {
        let sent = Instant::now();
        let answer = command(&self.server);
        self.stalled = self.stalled.max(sent.elapsed());
        answer
    }
}

impl Outcome {
    /// Updates that another task overwrote without having read them.
    pub(crate) fn lost_updates(&self) -> u64 {
        self.history.accepted().checked_sub(self.total).expect("each update is logged")
    }

    /// Asserts what holds even if the server forgets or misjudges time, so that two holders may be
    /// at work at once: no turn begins late, fencing tokens grow, and the resource that checks them
    /// accepts no stale write and loses no update. Counts as a run of the experiment.
    pub(crate) fn keeps_its_order(&self, experiment: &mut Experiment) {
        let words = self.words();
        self.history.check_numbers();
        assert_eq!((self.lost_updates(), self.history.stale()), (0, 0), "{words}");
        assert!(self.remains.is_empty(), "{words}");
        experiment.ran(1);
        experiment.saw("turns", self.history.turns());
    }

    /// What a failed assertion prints.
    pub(crate) fn words(&self) -> String {
        let Self { turns, total, busy, lost, failed, unknown, late, overrun, calls, .. } = self;
        let Self { stalled, renewed, remains, reports, history, .. } = self;
        let (overstayed, cut) = (history.overstayed(), history.cut_off());
        let (refused, stale) = (history.refused(), history.stale());
        format!(
            "turns={turns} total={total} busy={busy} lost={lost} failed={failed} unknown={unknown} \
             late={late} overrun={overrun} stalled={stalled} calls={calls} overstayed={overstayed} cut={cut} \
             refused={refused} stale={stale} renewed={renewed} remains={remains:?} {reports:?}"
        )
    }
}
