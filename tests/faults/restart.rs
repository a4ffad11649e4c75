//! A server that forgets, breaks connections or dies while many clients wait (P25, R13).
//! spring-integration#3805, redis/redis#11767, redisson#6026, #2181.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions, LostReason, MutexGuard, Released};
use lock_testkit::history::{self, Loss, Turns};
use lock_testkit::{Experiment, RedisServer, client_with, eventually, ms, within};
use tokio::task::JoinHandle;

use crate::lost_wakeup::AT_ONCE;

const CLIENTS: usize = 4;
const TASKS: usize = 20;
const ALL: usize = CLIENTS * TASKS;
/// How soon the clients must have recovered once the server has.
const RECOVERY: Duration = ms(2_000);
/// Extra time for a busy machine.
const SLACK: Duration = ms(1_000);

/// Clients with many tasks that wait for one lock.
struct Waiters {
    clients: Vec<LockClient>,
    turns: Turns,
    fates: Fates,
    tasks: Vec<JoinHandle<()>>,
}

/// How the releases failed of the tasks that were served.
#[derive(Clone, Debug, Default)]
struct Fates {
    /// The server had forgotten the lock.
    lost: Arc<AtomicUsize>,
    /// Two attempts got no answer.
    unanswered: Arc<AtomicUsize>,
}

impl Fates {
    fn lost(&self) -> usize {
        self.lost.load(Ordering::Acquire)
    }

    fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Acquire)
    }
}

impl Waiters {
    /// Starts the waiters behind a holder.
    async fn gather(server: &RedisServer) -> (Self, MutexGuard) {
        let defaults = LockOptions::new().with_ttl(ms(3_000)).with_wait(ms(60_000));
        let holder = client_with(&server.url(), defaults).await;
        let guard = holder.mutex("k").lock().await.unwrap();
        let mut waiters = Self {
            clients: vec![holder],
            turns: Turns::default(),
            fates: Fates::default(),
            tasks: Vec::new(),
        };
        for owner in 0..CLIENTS {
            let client = client_with(&server.url(), defaults).await;
            for _ in 0..TASKS {
                let (client, turns) = (client.clone(), waiters.turns.clone());
                let fates = waiters.fates.clone();
                waiters.tasks.push(tokio::spawn(async move {
                    let guard = client.mutex("k").lock().await.unwrap();
                    match turns.hold(owner, guard, ms(3)).await {
                        Ok(Released::InTime) => {}
                        Err(error) if !error.is_store_failure() => panic!("{error:?}"),
                        Ok(_) => _ = fates.lost.fetch_add(1, Ordering::AcqRel),
                        Err(_) => _ = fates.unanswered.fetch_add(1, Ordering::AcqRel),
                    }
                }));
            }
            waiters.clients.push(client);
        }
        eventually("all are queued", ms(10_000), || server.queued("k") == CLIENTS).await;
        assert_eq!(server.inboxes().len(), CLIENTS);
        (waiters, guard)
    }

    /// Whether a task still waits for its turn.
    fn waits(&self) -> bool {
        self.turns.len() < ALL
    }

    /// Waits until all clients are as they were before the fault.
    async fn recovers(&self, server: &RedisServer) {
        let start = Instant::now();
        let back = || server.inboxes().len() == CLIENTS && server.queued("k") == CLIENTS;
        eventually("inboxes and queue are back", RECOVERY + SLACK, back).await;
        println!("back after {:?}", start.elapsed());
    }

    /// Gives every task a turn, and checks that no two have one at once. Returns what became of
    /// their releases.
    async fn all_served(self, server: &RedisServer, losses: &[Loss]) -> Fates {
        let Self { clients, turns, fates, tasks } = self;
        let start = Instant::now();
        for task in tasks {
            within("a turn", ms(20_000), task).await.0.unwrap();
        }
        println!("served within {:?}, {fates:?}", start.elapsed());
        assert_eq!(history::check_but_at("k", turns.all(), losses).len(), ALL);
        for client in &clients {
            wait_idle(client).await;
            assert!(ClientStats::of(client).is_idle());
        }
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
        drop(clients);
        eventually("no subscription remains", ms(5_000), || server.inboxes().is_empty()).await;
        eventually("no connection remains", ms(5_000), || server.clients() == 0).await;
        fates
    }
}

/// Without a fault, all waiters are served quickly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_quickly_without_a_fault() {
    let server = RedisServer::start();
    let (waiters, guard) = Waiters::gather(&server).await;
    guard.release().await.unwrap();
    let start = Instant::now();
    let fates = waiters.all_served(&server, &[]).await;
    assert_eq!((fates.lost(), fates.unanswered()), (0, 0));
    assert!(start.elapsed() < ms(5_000), "{:?}", start.elapsed());
}

/// `CLIENT KILL` of every connection, while the first holder holds the lock and while the waiters
/// take turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_although_their_connections_are_killed() {
    let mut experiment = Experiment::new(
        21,
        "all are served once",
        "CLIENT KILL TYPE normal, pubsub",
        &["connections killed", "connections killed while they take turns"],
    );
    while experiment.next_round(1).is_some() {
        let server = RedisServer::start();
        let (waiters, guard) = Waiters::gather(&server).await;
        let killed = server.kill_connections();
        assert_eq!(killed, 1 + CLIENTS);
        experiment.saw("connections killed", killed);
        waiters.recovers(&server).await;
        guard.release().await.unwrap();
        let mut rounds = 0;
        while rounds < 5 && waiters.waits() {
            tokio::time::sleep(ms(30)).await;
            experiment.saw("connections killed while they take turns", server.kill_connections());
            rounds += 1;
        }
        // No lock is lost with a connection, but a release may go unanswered twice.
        let fates = waiters.all_served(&server, &[]).await;
        assert!(fates.lost() == 0 && fates.unanswered() <= rounds, "{fates:?} of {rounds} rounds");
        experiment.ran(1 + rounds);
    }
    experiment.finish();
}

/// `FLUSHALL`: lock, queue and counter are gone. Holders notice at their next renewal or release.
/// The others queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_although_all_keys_are_flushed() {
    let events = ["flushes", "locks forgotten under the waiters"];
    let mut experiment =
        Experiment::new(23, "all are served, fences in order", "FLUSHALL", &events);
    while experiment.next_round(1).is_some() {
        let server = RedisServer::start();
        let (waiters, guard) = Waiters::gather(&server).await;
        let mut losses = Vec::new();
        // The task that holds the lock during a flush has lost it.
        let mut flush = |server: &RedisServer| {
            losses.push(Loss::by(|| server.cli("FLUSHALL")));
        };
        flush(&server);
        // The head of the queue claims again within a second, finds the lock free and goes on.
        let served = || !waiters.turns.is_empty();
        eventually("the first turn", RECOVERY + SLACK, served).await;
        // A flush may fall between two turns, so flush until one of the waiters has lost its lock.
        let mut flushes = 1;
        while waiters.waits() && (flushes < 4 || waiters.fates.lost() == 0) {
            flush(&server);
            flushes += 1;
            tokio::time::sleep(ms(25)).await;
        }
        let (reason, _) = within("the loss", ms(5_000), guard.lost()).await;
        assert!(matches!(reason, LostReason::Gone | LostReason::TakenByOther), "{reason:?}");
        assert_ne!(guard.release().await.unwrap(), Released::InTime);
        let lost = waiters.all_served(&server, &losses).await.lost();
        assert!(lost < flushes, "{lost} of the waiters lost it by {flushes} flushes");
        experiment.ran(flushes);
        experiment.saw("flushes", flushes);
        experiment.saw("locks forgotten under the waiters", lost);
    }
    experiment.finish();
}

/// `SCRIPT FLUSH` has no effect that a caller could see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_although_scripts_are_flushed() {
    let mut experiment =
        Experiment::new(22, "all are served in time", "SCRIPT FLUSH", &["scripts sent again"]);
    while experiment.next_round(1).is_some() {
        let server = RedisServer::start();
        let (waiters, guard) = Waiters::gather(&server).await;
        server.reset_calls();
        let () = server.cli("SCRIPT FLUSH");
        let start = Instant::now();
        guard.release().await.unwrap();
        let mut flushes = 0;
        while flushes < 10 && waiters.waits() {
            let () = server.cli("SCRIPT FLUSH");
            flushes += 1;
            tokio::time::sleep(ms(10)).await;
        }
        // A loaded script is called by its digest, so each text was sent because the script was
        // missing.
        let sent = server.calls("eval") as usize;
        let fates = waiters.all_served(&server, &[]).await;
        assert_eq!((fates.lost(), fates.unanswered()), (0, 0));
        assert!(start.elapsed() < ms(6_000), "{:?}", start.elapsed());
        experiment.ran(1 + flushes);
        // If all tasks were served too soon, the flushes had little effect.
        let had_effect = flushes > 1 && sent > 2;
        experiment.saw("scripts sent again", if had_effect { sent } else { 0 });
    }
    experiment.finish();
}

/// The server is killed and starts again, empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_although_the_server_is_killed() {
    let mut experiment = Experiment::new(
        24,
        "all are served, fences in order",
        "kill -9, restart without persistence",
        &["restarts"],
    );
    let mut server = RedisServer::start();
    let first_run = run_id(&server);
    let (waiters, guard) = Waiters::gather(&server).await;
    let loss = Loss::by(|| server.kill());
    tokio::time::sleep(ms(700)).await;
    server.boot();
    experiment.saw("restarts", usize::from(run_id(&server) != first_run));
    let back = Instant::now();
    let first = || !waiters.turns.is_empty();
    eventually("the first turn", RECOVERY + SLACK, first).await;
    // All clients are subscribed again, except those that have been served by then.
    let inboxes = || server.inboxes().len() == CLIENTS || waiters.turns.len() == ALL;
    eventually("inboxes are back", RECOVERY + SLACK, inboxes).await;
    println!("back after {:?}", back.elapsed());
    let (reason, _) = within("the loss", ms(5_000), guard.lost()).await;
    assert!(
        matches!(reason, LostReason::Gone | LostReason::Expired | LostReason::TakenByOther),
        "{reason:?}"
    );
    drop(guard);
    // None of the waiters held the lock when the server died.
    assert_eq!(waiters.all_served(&server, &[loss]).await.lost(), 0);
    experiment.ran(1);
    experiment.finish();
}

/// An identifier that the server draws anew at each start.
fn run_id(server: &RedisServer) -> String {
    let info: String = server.cli("INFO server");
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned()
}

/// A server that is paused: no task is served twice, and all go on when the server does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_are_served_although_the_server_pauses() {
    let events = ["pauses while a task waits"];
    let mut experiment =
        Experiment::new(19, "no task is served twice", "SIGSTOP of the server", &events);
    while experiment.next_round(1).is_some() {
        let server = RedisServer::start();
        let (waiters, guard) = Waiters::gather(&server).await;
        let release = tokio::spawn(guard.release());
        // Pauses that outlast both attempts of a release.
        let mut long = 0;
        for _ in 0..3 {
            let start = Instant::now();
            server.pause();
            // Commands under way may still end.
            tokio::time::sleep(ms(50)).await;
            let before = waiters.turns.len();
            tokio::time::sleep(ms(350)).await;
            let stands = waiters.waits() && waiters.turns.len() == before;
            server.resume();
            // Otherwise the next pause would merge with this one.
            assert_eq!(server.cli::<String>("PING"), "PONG");
            long += usize::from(start.elapsed() > ms(900));
            experiment.saw("pauses while a task waits", usize::from(stands));
            tokio::time::sleep(ms(40)).await;
        }
        let (outcome, _) = within("an answer", ms(5_000), release).await;
        let outcome = outcome.unwrap();
        assert!(outcome.is_ok_and(|found| found == Released::InTime) || long > 0);
        let fates = waiters.all_served(&server, &[]).await;
        assert!(fates.lost() == 0 && fates.unanswered() <= long, "{fates:?}, {long} long stalls");
        experiment.ran(3);
    }
    experiment.finish();
}

/// A client's subscription is gone for the moment in which it is granted the lock. The next waiter
/// gets the lock, without waiting for the hand-off TTL.
#[tokio::test]
async fn the_next_waiter_is_served_if_the_head_loses_its_subscription() {
    let mut experiment = Experiment::new(
        21,
        "the next in line is served",
        "CLIENT KILL TYPE pubsub",
        &["inboxes killed"],
    );
    let server = RedisServer::start();
    let clients = [
        lock_testkit::client(&server.url()).await,
        lock_testkit::client(&server.url()).await,
        lock_testkit::client(&server.url()).await,
    ];
    for round in 0..8 {
        let guard = clients[0].mutex("k").lock().await.unwrap();
        let mut waiters = Vec::new();
        for (before, client) in clients[1..].iter().enumerate() {
            waiters.push(tokio::spawn(client.mutex("k").with_wait(ms(30_000)).lock()));
            eventually("it is queued", ms(5_000), || server.queued("k") == before + 1).await;
        }
        // The channel is the last part of the head's entry in the queue.
        let head = server.queue("k")[0].clone();
        let list: String = server.cli("CLIENT LIST TYPE pubsub");
        assert_eq!(list.lines().count(), server.inboxes().len());
        assert!(head.contains("lock:{0}:inbox:"), "{head}");
        let killed: i64 = server.cli("CLIENT KILL TYPE pubsub");
        assert!(killed >= 2 && killed == list.lines().count() as i64, "{killed} of {list}");
        experiment.saw("inboxes killed", killed as usize);
        tokio::time::sleep(ms(round * 2)).await;
        guard.release().await.unwrap();
        // The order is not fixed, since one of them may have been unreachable.
        let (one, two) = (waiters.remove(0), waiters.remove(0));
        let free = |waiter: JoinHandle<Result<MutexGuard, lock_core::Error>>| async {
            waiter.await.unwrap().unwrap().release().await.unwrap();
            Instant::now()
        };
        let start = Instant::now();
        let (both, _) =
            within("both", ms(10_000), async { tokio::join!(free(one), free(two)) }).await;
        let took = both.0.max(both.1) - start;
        assert!(took < RECOVERY + SLACK, "round {round}: {took:?}");
        let first = both.0.min(both.1) - start;
        assert!(first < AT_ONCE + ms(1_000), "round {round}: {first:?}");
    }
    experiment.ran(8);
    experiment.finish();
}
