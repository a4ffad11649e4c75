//! A foreign client deletes, overwrites or changes the key of a held lock.

use lock_core::{ErrorKind, Released};
use lock_testkit::history::now;
use lock_testkit::{Experiment, RedisServer, client, eventually, ms, scale, within};

use crate::support::history::History;
use crate::support::worker::Worker;
use crate::support::workload::Workload;

const TTL: u64 = 900;
/// Time until the next renewal on a busy machine.
const NOTICED: u128 = (TTL as u128 / 3 + 500) * 1_000_000;

struct Held {
    server: RedisServer,
    worker: Worker,
    fence: u64,
}

impl Held {
    fn begin() -> Self {
        let server = RedisServer::start();
        let (worker, fence) = Worker::hold(&server, "k", TTL);
        Self { server, worker, fence }
    }

    /// Sends `commands` as a foreign client. The holder learns of the loss from its next renewal
    /// and stops, and its release returns `released`.
    fn loses_by(self, commands: &[&str], released: &str, experiment: &mut Experiment) -> Lost {
        let Self { server, worker, fence } = self;
        let mut since = 0;
        for command in commands {
            since = now();
            drop(server.cli::<redis::Value>(command));
        }
        let end = worker.end();
        let noticed = end.lost.expect("it was lost") - since;
        assert!(noticed < NOTICED, "noticed after {} ms", noticed / 1_000_000);
        assert_eq!(end.released, released, "{end:?}");
        experiment.ran(1);
        experiment.saw("leases lost", 1);
        Lost { server, fence }
    }
}

/// The server after the holder has lost its lock.
struct Lost {
    server: RedisServer,
    fence: u64,
}

impl Lost {
    /// Another client gets the lock with a greater fencing token. If there is a foreign key, that
    /// client waits first, and claims again after the key is deleted.
    async fn is_free(&self, foreign: bool, experiment: &mut Experiment) {
        let other = client(&self.server.url()).await;
        let waiting = tokio::spawn(other.mutex("k").with_wait(ms(20_000)).lock());
        if foreign {
            let queued = || self.server.queued("k") == 1;
            eventually("it is queued", ms(5_000), queued).await;
            let _: i64 = self.server.cli("DEL lock:k");
        }
        let (guard, _) = within("the lock", ms(5_000), waiting).await;
        let guard = guard.unwrap().unwrap();
        assert!(guard.fencing_token().get() > self.fence);
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
        experiment.saw("greater numbers", 1);
    }
}

/// The key is deleted, alone or together with the counter and all other keys.
#[tokio::test]
async fn deleted_lock_is_lost_and_not_created_again() {
    for (command, fault) in [("DEL lock:k", "foreign DEL"), ("FLUSHALL", "FLUSHALL")] {
        let events = ["leases lost", "greater numbers"];
        let name = "lost within a renewal, never created again, numbers grow";
        let mut experiment = Experiment::new(23, name, fault, &events);
        for _ in 0..scale(1) {
            let lost = Held::begin().loses_by(&[command], "Ok(Expired)", &mut experiment);
            for _ in 0..10 {
                tokio::time::sleep(ms(TTL / 10)).await;
                assert!(!lost.server.has("lock:k"), "it was created again");
            }
            lost.is_free(false, &mut experiment).await;
        }
        experiment.finish();
    }
}

/// The key is overwritten, with an expiry or without. The foreign value is not touched, and a
/// waiter retries until it is gone.
#[tokio::test]
async fn overwritten_lock_is_lost_and_left_alone() {
    for (command, fault) in [
        ("SET lock:k foreign PX 600000", "foreign SET with an expiry"),
        ("SET lock:k foreign", "foreign SET without one"),
    ] {
        let events = ["leases lost", "busy answers", "greater numbers"];
        let name = "lost within a renewal, the foreign value is left alone and waited for";
        let mut experiment = Experiment::new(23, name, fault, &events);
        for _ in 0..scale(1) {
            let lost = Held::begin().loses_by(&[command], "Ok(TakenByOther)", &mut experiment);
            assert_eq!(lost.server.get("lock:k").as_deref(), Some("foreign"));
            let other = client(&lost.server.url()).await;
            let busy = other.mutex("k").with_wait(ms(300)).lock().await.unwrap_err();
            assert!(busy.is_busy(), "{busy:?}");
            experiment.saw("busy answers", 1);
            lost.is_free(true, &mut experiment).await;
        }
        experiment.finish();
    }
}

/// A key of another type takes its place. The holder loses the lock, later callers get an error,
/// and the foreign key is not touched.
#[tokio::test]
async fn lock_replaced_by_a_list_is_lost_and_left_alone() {
    let events = ["leases lost", "errors of the right kind"];
    let name = "lost within a renewal, wrong kind for others, left alone";
    let mut experiment = Experiment::new(23, name, "a list takes the place of the key", &events);
    for _ in 0..scale(1) {
        let commands = ["RPUSH list precious", "RENAME list lock:k"];
        let lost = Held::begin().loses_by(&commands, "Ok(TakenByOther)", &mut experiment);
        let other = client(&lost.server.url()).await;
        let error = other.mutex("k").with_wait(ms(5_000)).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error:?}");
        assert_eq!(lost.server.cli::<i64>("LLEN lock:k"), 1);
        experiment.saw("errors of the right kind", 1);
    }
    experiment.finish();
}

/// The expiry is removed. The next renewal restores it, so that a holder that is killed then does
/// not block others for ever.
#[tokio::test]
async fn renewal_restores_a_removed_expiry() {
    let events = ["expiries restored", "greater numbers"];
    let name = "the next renewal restores the expiry";
    let mut experiment = Experiment::new(23, name, "PERSIST", &events);
    for _ in 0..scale(1) {
        let Held { server, mut worker, fence } = Held::begin();
        assert_eq!(server.cli::<i64>("PERSIST lock:k"), 1);
        let restored = || (1..=TTL as i64).contains(&server.pttl("lock:k"));
        eventually("its expiry is back", ms(TTL / 3 + 500), restored).await;
        experiment.saw("expiries restored", 1);
        assert!(worker.is_silent(ms(TTL)), "it was not lost");
        worker.kill();
        Lost { server, fence }.is_free(false, &mut experiment).await;
        experiment.ran(1);
    }
    experiment.finish();
}

/// All keys are flushed again and again while processes contend. Two holders may be at work at
/// once, which no lock can prevent; but a resource that checks tokens loses no update, and tokens
/// grow.
#[test]
fn fencing_tokens_grow_although_keys_are_flushed() {
    let events = ["flushes", "turns", "overlapping turns", "stale writes refused"];
    let name = "numbers grow, a resource that checks them loses no update, no turn begins late";
    let mut experiment = Experiment::new(23, name, "FLUSHALL every 400 ms", &events);
    let workload = Workload {
        ttl: 1_000,
        work: 250_000,
        tasks: 3,
        events: &[
            ("turns", 1, History::turns),
            ("overlapping turns", 1, History::overlaps),
            ("stale writes refused", 1, History::refused),
        ],
        ..Workload::fenced("flushed", 3, ms(scale(5) as u64 * 1_000))
    };
    let outcome = workload.run(|field| {
        while !field.is_over(ms(500), &experiment) {
            std::thread::sleep(ms(400));
            let () = field.server.cli("FLUSHALL");
            experiment.saw("flushes", 1);
        }
    });
    outcome.keeps_its_order(&mut experiment);
    experiment.saw("overlapping turns", outcome.history.overlaps());
    experiment.saw("stale writes refused", outcome.history.refused());
    experiment.finish();
}
