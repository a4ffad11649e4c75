//! A table of operations and faults, with the allowed results of each cell. Every cell is tried.
//!
//! After each cell the lock is free within a bound that does not depend on its TTL, the client
//! works again, it has left nothing on the server, and nothing has panicked.
// Each test is one task, on one thread.
#![allow(clippy::future_not_send)]

mod black_hole;
mod fault;
mod operation;

use std::cell::{Cell as Slot, RefCell};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions, Released};
use lock_testkit::{
    Experiment, Gate, Proxy, RedisServer, Rule, client, eventually, ms, scale, within,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use self::fault::{Class, Fault, Injected, LONGEST, Times};
use self::operation::{End, Operation, short_ttl, store};

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
struct Cell {
    operation: Operation,
    fault: Fault,
    times: Times,
    /// How many tasks do it at the same time, on one connection.
    width: usize,
}

/// How many cells run at the same time. They mostly wait.
const AT_ONCE: usize = 16;
/// Enough for several calls with several items each.
const MANY: usize = 20;
/// The time within which a lock is free, however long its TTL. A lock that is granted to an
/// unreachable client is free after 3 s.
const FREE_WITHIN: Duration = ms(6_000);
/// For locks that must not expire during a test.
const LONG_TTL: Duration = ms(60_000);
/// A pulse that is later than this shows that the machine stood still. A client cannot tell that
/// from a fault: if the reply to the last claim of a wait is 40 ms late, the outcome is unknown.
/// Two stalls may add up to that.
const STALL: Duration = ms(25);
/// The number of attempts at a cell on a machine that stands still again and again.
const MOST_ATTEMPTS: usize = 20;
/// How long nothing passes, if the fault happens once.
const DARK: Duration = ms(400);

/// The state that all cells of a test share.
struct Bench {
    server: RedisServer,
    /// A client that meets no faults.
    other: LockClient,
    /// When the machine last stood still.
    stalled: Slot<Option<Instant>>,
}

/// The results of the cells.
#[derive(Default)]
struct Tally {
    cells: usize,
    hits: usize,
    asks: usize,
    done: usize,
    failed: usize,
}

impl Bench {
    async fn new() -> Self {
        let server = RedisServer::start();
        let other = client(&server.url()).await;
        Self { server, other, stalled: Slot::new(None) }
    }

    /// Tries cells, and reports the failures.
    async fn try_all(&self, cells: impl IntoIterator<Item = Cell>) -> Tally {
        let panics = panics();
        let waiting: RefCell<VecDeque<(usize, Cell)>> =
            RefCell::new(cells.into_iter().enumerate().collect());
        let (tally, wrong) = (RefCell::new(Tally::default()), RefCell::new(Vec::new()));
        let next = || waiting.borrow_mut().pop_front();
        let worker = async || {
            let proxy = Proxy::to(&self.server);
            while let Some((number, cell)) = next() {
                if let Err(problem) = self.try_cell(&proxy, cell, number, &tally).await {
                    wrong.borrow_mut().push(format!("{cell:?}: {problem}"));
                }
                proxy.reset();
            }
        };
        let work = join_all((0..AT_ONCE).map(|_| worker()));
        tokio::select! {
            _ = work => {}
            () = self.pulse() => {}
        }
        let wrong = wrong.into_inner();
        assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!(panics.load(Ordering::Acquire), 0, "a task of the client panicked");
        // The client without faults may have a subscription.
        let remains = || self.server.leftovers().is_empty() && self.server.inboxes().len() <= 1;
        eventually("no key, queue and subscription", ms(10_000), remains).await;
        tally.into_inner()
    }

    /// Tries a cell, and tries again if the machine stood still.
    async fn try_cell(
        &self,
        proxy: &Proxy,
        cell: Cell,
        number: usize,
        tally: &RefCell<Tally>,
    ) -> Result<(), String> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let keys: Vec<_> =
                (0..cell.width).map(|key| format!("k{number}-{attempt}-{key}")).collect();
            let begun = Instant::now();
            let tried = AssertUnwindSafe(self.run(proxy, cell, &keys, tally)).catch_unwind().await;
            let Err(panic) = tried else { return Ok(()) };
            // This panic is our own: it is reported below, or the machine stood still.
            panics().fetch_sub(1, Ordering::AcqRel);
            let stalled = self.stalled.get().is_some_and(|at| at >= begun);
            if !stalled || attempt == MOST_ATTEMPTS {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()));
                return Err(text.unwrap_or_default());
            }
            proxy.reset();
        }
    }

    /// Watches for times when the test, the proxy or the server did not run.
    async fn pulse(&self) {
        let proxy = Proxy::to(&self.server);
        let address = proxy.url().replace("redis://", "").replace('/', "");
        let mut stream = TcpStream::connect(address).await.unwrap();
        loop {
            let begun = Instant::now();
            tokio::time::sleep(ms(10)).await;
            stream.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
            let _: usize = stream.read_exact(&mut [0; 7]).await.unwrap();
            if begun.elapsed() > STALL {
                self.stalled.set(Some(Instant::now()));
            }
        }
    }

    async fn run(&self, proxy: &Proxy, cell: Cell, keys: &[String], tally: &RefCell<Tally>) {
        let Cell { operation, fault, times, width } = cell;
        let class = fault.class();
        // If a server says that our lock is something else, the client believes it and leaves the
        // lock to its expiry.
        let short = operation == Operation::Renew || class == Class::WrongType;
        let defaults = LockOptions::new().with_ttl(if short { short_ttl(width) } else { LONG_TTL });
        let client = LockClient::builder(store(proxy).connect_lazy().unwrap());
        let client = client.with_defaults(defaults).build().unwrap();
        if !operation.connects() {
            self.works(&client, &keys[0]).await;
        }
        let holder = if operation.queues() { &self.other } else { &client };
        let mut held = Vec::new();
        if operation.queues() || operation.holds() {
            let lock = |key| holder.mutex(key).lock();
            for guard in join_all(keys.iter().map(lock)).await {
                held.push(guard.unwrap());
            }
        }
        if operation == Operation::Queue {
            // A claim that finds the lock taken enters the queue at once.
            let begun = Instant::now();
            let look = async |key: &String| loop {
                let found = client.mutex(key).with_wait(ms(50)).lock().await.unwrap_err();
                if found.is_busy() {
                    break;
                }
                assert!(found.is_unknown() && begun.elapsed() < LONGEST, "it is taken: {found}");
            };
            join_all(keys.iter().map(look)).await;
            wait_idle(&client).await;
        }

        let gate = Gate::new();
        // The first of many travels alone.
        let rule = fault
            .action(&gate)
            .map(|action| proxy.rule(operation.command(), action).after(usize::from(width > 1)));
        let rule = rule.map(|rule| if times == Times::Once { rule.once() } else { rule.always() });
        let injected = Injected { rule, cut: Slot::new(false), times };
        let darkness = async {
            if injected.rule.is_some() {
                return;
            }
            if operation.queues() {
                eventually("a place", LONGEST, || self.server.queued(&keys[0]) > 0).await;
            }
            proxy.cut();
            injected.cut.set(true);
            if times == Times::Once {
                tokio::time::sleep(DARK).await;
                proxy.heal();
            }
        };
        let work = operation.perform(proxy, &client, held, keys, &injected);
        let ((ends, ()), _) =
            within("an end", LONGEST, async { tokio::join!(work, darkness) }).await;

        let allowed = operation.allowed(class, times);
        for end in &ends {
            if *end == End::Late {
                if allowed.contains(&End::Unknown) {
                    continue;
                }
                // The store had 10 ms to report what it knows, which is less than the pulse
                // notices.
                self.stalled.set(Some(Instant::now()));
            }
            let spared = width > 1 && *end == End::Done;
            assert!(spared || allowed.contains(end), "{end:?} is none of {allowed:?}");
        }
        {
            let mut tally = tally.borrow_mut();
            let cut = usize::from(injected.cut.get());
            let hits = injected.rule.as_ref().map_or(cut, Rule::hits);
            assert!(hits > 0, "the fault never hit");
            let asks = injected.rule.as_ref().map_or(cut, Rule::locks);
            let done = ends.iter().filter(|end| **end == End::Done).count();
            tally.cells += 1;
            tally.hits += hits;
            tally.asks += asks;
            tally.done += done;
            tally.failed += ends.len() - done;
        }

        // The fault is over.
        if let Some(rule) = injected.rule {
            rule.end();
        }
        proxy.heal();
        gate.open();
        for key in keys {
            let free = self.other.mutex(key).with_wait(FREE_WITHIN).lock().await;
            let left = || self.server.pttl(&format!("lock:{key}"));
            let free = free.unwrap_or_else(|error| {
                panic!("held without an owner for {} ms more: {error:?}", left());
            });
            free.release().await.unwrap();
        }
        if operation.checks() {
            drop(store(proxy).connect().await.unwrap());
        }
        for key in keys {
            self.works(&client, key).await;
        }
        within("all is settled", ms(10_000), wait_idle(&client)).await;
        assert!(ClientStats::of(&client).is_idle(), "{:?}", ClientStats::of(&client));
        for key in keys {
            let names = ["lock:", "lock:{0}:q:", "lock:{0}:a:"].map(|kind| format!("{kind}{key}"));
            let there = || self.server.cli::<u64>(&format!("EXISTS {}", names.join(" ")));
            eventually("nothing is left", ms(5_000), || there() == 0).await;
        }
    }

    /// Locks, extends and releases, in time.
    async fn works(&self, client: &LockClient, key: &str) {
        let begun = Instant::now();
        let once = async || {
            let guard =
                client.mutex(key.to_owned()).try_lock().await.map_err(|error| error.to_string())?;
            let guard = guard.ok_or("it is taken")?;
            guard.extend(ms(65_000)).await.map_err(|error| error.to_string())?;
            match guard.release().await {
                Ok(Released::InTime) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        // Half an answer spoils the next one.
        while let Err(problem) = once().await {
            assert!(begun.elapsed() < ms(8_000), "it does not work: {problem}");
            tokio::time::sleep(ms(50)).await;
        }
    }

    /// The length of the reply that an operation gets. A cell with a cut at the end measures it.
    async fn reply_len(&self, operation: Operation) -> usize {
        let proxy = Proxy::to(&self.server);
        let cell = Cell { operation, fault: Fault::Slice, times: Times::Once, width: 1 };
        let (keys, tally) = (["length".to_owned()], RefCell::default());
        tokio::select! {
            () = self.run(&proxy, cell, &keys, &tally) => {}
            () = self.pulse() => {}
        }
        proxy.reply_len(operation.command())
    }
}

/// Counts panics on the threads of these tests. The client's tasks run on the same threads.
fn panics() -> &'static AtomicUsize {
    static COUNTERS: OnceLock<
        std::sync::Mutex<std::collections::HashMap<String, &'static AtomicUsize>>,
    > = OnceLock::new();
    let counter = |name: &str, make: bool| {
        let mut counters = COUNTERS.get_or_init(std::sync::Mutex::default).lock().unwrap();
        if make {
            let fresh = || &*Box::leak(Box::<AtomicUsize>::default());
            return Some(*counters.entry(name.to_owned()).or_insert_with(fresh));
        }
        counters.get(name).copied()
    };
    static HOOK: OnceLock<()> = OnceLock::new();
    let () = HOOK.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if let Some(counter) = thread.name().and_then(|name| counter(name, false)) {
                counter.fetch_add(1, Ordering::AcqRel);
            }
            before(panic);
        }));
    });
    counter(std::thread::current().name().unwrap_or_default(), true).unwrap()
}

/// The part of the table for one operation. A dose of 4 covers all of it. A smaller one tries each
/// fault once, and some of them without end.
async fn table(operation: Operation, name: &'static str) {
    let cell = |fault, times| Cell { operation, fault, times, width: 1 };
    let endless = |faults: Vec<Fault>| {
        let some = faults.clone().into_iter().step_by(4_usize.div_ceil(scale(1)));
        let once = faults.into_iter().map(|fault| cell(fault, Times::Once));
        once.chain(some.map(|fault| cell(fault, Times::Always))).collect::<Vec<_>>()
    };
    // Both experiments are in the report even if the first fails.
    let faults = "network: each request or reply lost, late, doubled, cut, reset";
    let network = Experiment::new(28, name, faults, &EVENTS);
    let replies = Experiment::new(29, name, "server: each error, odd replies", &EVENTS);
    let bench = Bench::new().await;

    let len = bench.reply_len(operation).await;
    assert!(len > 0, "nothing to cut");
    let cuts = (0..len).step_by(len.div_ceil(scale(64))).map(Fault::Truncate);
    let cuts = cuts.map(|cut| cell(cut, Times::Once));
    let cells = endless(Fault::transport().collect()).into_iter().chain(cuts);
    bench.try_all(cells).await.report(network);
    bench.try_all(endless(Fault::replies().collect())).await.report(replies);
}

const EVENTS: [&str; 2] = ["faults injected", "outcomes as allowed"];

impl Tally {
    fn report(&self, mut experiment: Experiment) {
        println!(
            "{experiment}: {} cells, {} faults; {} succeeded, {} failed",
            self.cells, self.hits, self.done, self.failed
        );
        experiment.ran(self.cells);
        experiment.saw("faults injected", self.hits);
        experiment.saw("outcomes as allowed", self.done + self.failed);
        experiment.finish();
    }
}

macro_rules! table {
    ($($test:ident: $operation:ident, $name:literal;)*) => {$(
        #[tokio::test]
        async fn $test() {
            table(Operation::$operation, $name).await;
        }
    )*};
}

table! {
    a_try_ends_as_its_fault_allows: TryLock, "try_lock";
    a_lock_ends_as_its_fault_allows: Lock, "lock";
    a_queued_claim_ends_as_its_fault_allows: Queue, "lock, queued";
    a_release_ends_as_its_fault_allows: Release, "release";
    a_renewal_ends_as_its_fault_allows: Renew, "renewal";
    an_extension_ends_as_its_fault_allows: Extend, "extend";
    a_subscription_ends_as_its_fault_allows: Subscribe, "subscription";
    a_greeting_ends_as_its_fault_allows: Greet, "connection, HELLO";
    reading_the_clock_ends_as_its_fault_allows: AskTime, "connection, TIME";
    the_check_of_the_server_ends_as_its_fault_allows: CheckInfo, "start, INFO";
    the_check_of_claims_ends_as_its_fault_allows: CheckClaim, "start, claim";
    the_check_of_renewals_ends_as_its_fault_allows: CheckRenewal, "start, renewal";
    the_check_of_releases_ends_as_its_fault_allows: CheckRelease, "start, release";
}

/// Many tasks claim at the same time, and the fault hits a call that carries several claims.
#[tokio::test]
async fn a_batch_ends_as_its_fault_allows() {
    let mut experiment = Experiment::new(
        28,
        "many asks in one call",
        "any fault of the table on a call of several",
        &[EVENTS[0], EVENTS[1], "asks hit"],
    );
    let bench = Bench::new().await;
    let operations = [
        Operation::TryLock,
        Operation::Lock,
        Operation::Queue,
        Operation::Release,
        Operation::Renew,
        Operation::Extend,
    ];
    let faults = Fault::transport().chain(Fault::replies()).step_by(12_usize.div_ceil(scale(4)));
    let faults: Vec<_> = faults.collect();
    let cells: Vec<_> = operations
        .into_iter()
        .flat_map(|operation| {
            let cell = move |fault| Cell { operation, fault, times: Times::Once, width: MANY };
            faults.clone().into_iter().map(cell)
        })
        // No client cleans up after this fault, so each lock takes its TTL.
        .filter(|cell| !matches!(cell.fault, Fault::Stray))
        .collect();
    let tally = bench.try_all(cells).await;
    assert!(tally.asks > 3 * tally.hits, "{} asks in {} calls", tally.asks, tally.hits);
    experiment.saw("asks hit", tally.asks);
    tally.report(experiment);
}
