//! Clients of other libraries, which look for a free key from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use lock_core::LockOptions;
use lock_testkit::{RedisServer, Rng, client_with, ms, within};

/// How long each trial goes on: a client that looks every 150 ms looks often.
const TRIAL: Duration = Duration::from_secs(4);
/// The work of a turn.
const TURN: Duration = Duration::from_millis(1);

/// What all see of the section.
#[derive(Default)]
struct Section {
    is_taken: AtomicBool,
    overlaps: AtomicU64,
    own: AtomicU64,
    foreign: AtomicU64,
    is_over: AtomicBool,
}

impl Section {
    fn enter(&self, turns: &AtomicU64) {
        self.overlaps.fetch_add(u64::from(self.is_taken.swap(true, SeqCst)), SeqCst);
        turns.fetch_add(1, SeqCst);
    }

    fn leave(&self) {
        self.is_taken.store(false, SeqCst);
    }
}

/// Takes turns as redsync does: `SET NX`, a script that compares and deletes, and a look after 50
/// to 250 ms if the lock is taken.
fn foreign_client(server: &RedisServer, section: &Section) {
    const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                           return redis.call('DEL', KEYS[1]) end return 0";
    let (mut redis, mut rng) = (server.connect(), Rng::new(7));
    while !section.is_over.load(SeqCst) {
        let words = ["SET", "lock:k", "foreign", "NX", "PX", "10000"];
        let set: Option<String> = redis.command(&words).unwrap();
        if set.is_none() {
            std::thread::sleep(ms(50 + rng.below(200)));
            continue;
        }
        section.enter(&section.foreign);
        std::thread::sleep(TURN);
        section.leave();
        let released: u64 = redis.command(&["EVAL", RELEASE, "1", "lock:k", "foreign"]).unwrap();
        assert_eq!(released, 1);
    }
}

/// Our waiters hand a lock on, so that a client that looks from time to time never found it free:
/// redsync got 5 of 8,851 turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_client_gets_its_part_of_the_turns_where_they_are_left() {
    for (processes, tasks) in [(1, 8), (3, 2)] {
        let (server, section) = (RedisServer::start(), Arc::new(Section::default()));
        let options = LockOptions::new().wait_forever().with_turns_for_others();
        let mut running = Vec::new();
        for _ in 0..processes {
            let client = client_with(&server.url(), options).await;
            for _ in 0..tasks {
                let (client, section) = (client.clone(), Arc::clone(&section));
                running.push(tokio::spawn(async move {
                    while !section.is_over.load(SeqCst) {
                        let guard = client.mutex("k").lock().await.unwrap();
                        section.enter(&section.own);
                        tokio::time::sleep(TURN).await;
                        section.leave();
                        guard.release().await.unwrap();
                    }
                }));
            }
        }
        std::thread::scope(|scope| {
            scope.spawn(|| foreign_client(&server, &section));
            tokio::task::block_in_place(|| std::thread::sleep(TRIAL));
            section.is_over.store(true, SeqCst);
        });
        for task in running {
            within("the task ends", ms(20_000), task).await.0.unwrap();
        }
        let count = |turns: &AtomicU64| turns.load(SeqCst);
        let (own, foreign) = (count(&section.own), count(&section.foreign));
        println!("{processes} processes: {own} own turns, {foreign} of the foreign client");
        assert_eq!(count(&section.overlaps), 0);
        // About half of them on a quiet machine.
        assert!(10 * foreign >= own + foreign, "{own} own turns, {foreign} of the foreign client");
        assert!(20 * own >= foreign, "{own} own turns, {foreign} of the foreign client");
    }
}
