//! A lock that somebody else deletes, overwrites or changes while it is held.

use lock_core::{ErrorKind, Released};
use lock_tests::history::now;
use lock_tests::{Experiment, RedisServer, client, dose, eventually, ms, within};

use crate::support::contest::Contest;
use crate::support::worker::{Worker, number};

const TTL: u64 = 900;
/// The next renewal, on a machine that does other things, too.
const NOTICED: u128 = (TTL as u128 / 3 + 500) * 1_000_000;

struct Held {
    server: RedisServer,
    worker: Worker,
    fence: u64,
}

impl Held {
    fn begin() -> Self {
        let server = RedisServer::start();
        let args = [format!("ttl={TTL}"), "key=k".to_owned()];
        let worker = Worker::start(&server, "hold", &args);
        let (_, event) = worker.next();
        assert!(event.starts_with("held"), "{event}");
        Self { server, worker, fence: number(&event, "fence") }
    }

    /// The holder is told by its next renewal, goes on no more, and its release says what it found.
    fn is_lost(&self, since: u128, released: &str) {
        let (at, event) = self.worker.next();
        assert!(event.starts_with("lost"), "{event}");
        assert!(at - since < NOTICED, "noticed after {} ms", (at - since) / 1_000_000);
        let (_, event) = self.worker.next();
        assert!(event.contains(released), "{event}, and not {released}");
        assert_eq!(number(&event, "late"), 0, "{event}");
    }

    /// Somebody else gets the lock, with a greater number.
    fn is_free(&self) -> impl Future<Output = ()> + use<> {
        let (url, fence) = (self.server.url(), self.fence);
        async move {
            let other = client(&url).await;
            let (guard, _) = within("the lock", ms(5_000), other.mutex("k").lock()).await;
            let guard = guard.unwrap();
            assert!(guard.fencing_token().get() > fence);
            assert_eq!(guard.release().await.unwrap(), Released::InTime);
        }
    }
}

/// Deleted, alone or with the counter and everything else.
#[tokio::test]
async fn a_held_lock_that_is_deleted_is_lost_and_does_not_come_back() {
    for (command, fault) in [("DEL lock:k", "foreign DEL"), ("FLUSHALL", "FLUSHALL")] {
        let events = ["leases lost", "greater numbers"];
        let name = "lost within a renewal, never created again, numbers grow";
        let mut experiment = Experiment::new(23, name, fault, &events);
        for _ in 0..dose(1) {
            let held = Held::begin();
            let since = now();
            drop(held.server.cli::<redis::Value>(command));
            held.is_lost(since, "Ok(Expired)");
            for _ in 0..10 {
                tokio::time::sleep(ms(TTL / 10)).await;
                assert!(!held.server.has("lock:k"), "it was created again");
            }
            held.is_free().await;
            assert!(held.worker.ends_well());
            experiment.ran(1);
            experiment.saw("leases lost", 1);
            experiment.saw("greater numbers", 1);
        }
        experiment.finish();
    }
}

/// Overwritten, with an expiry or without: nothing of the foreign value is touched, and a waiter asks until it goes.
#[tokio::test]
async fn a_held_lock_that_is_overwritten_is_lost_and_left_alone() {
    for (command, fault) in [
        ("SET lock:k foreign PX 600000", "foreign SET with an expiry"),
        ("SET lock:k foreign", "foreign SET without one"),
    ] {
        let events = ["leases lost", "busy answers", "greater numbers"];
        let name = "lost within a renewal, the foreign value is left alone and waited for";
        let mut experiment = Experiment::new(23, name, fault, &events);
        for _ in 0..dose(1) {
            let held = Held::begin();
            let since = now();
            let () = held.server.cli(command);
            held.is_lost(since, "Ok(TakenByOther)");
            assert_eq!(held.server.get("lock:k").as_deref(), Some("foreign"));
            let other = client(&held.server.url()).await;
            let busy = other.mutex("k").with_wait(ms(300)).lock().await.unwrap_err();
            assert!(busy.is_busy(), "{busy:?}");
            experiment.saw("busy answers", 1);
            let waiting = tokio::spawn(other.mutex("k").with_wait(ms(20_000)).lock());
            eventually("it is queued", ms(5_000), || held.server.queued("k") == 1).await;
            let _: i64 = held.server.cli("DEL lock:k");
            let (guard, _) = within("the lock", ms(3_000), waiting).await;
            let guard = guard.unwrap().unwrap();
            assert!(guard.fencing_token().get() > held.fence);
            guard.release().await.unwrap();
            assert!(held.worker.ends_well());
            experiment.ran(1);
            experiment.saw("leases lost", 1);
            experiment.saw("greater numbers", 1);
        }
        experiment.finish();
    }
}

/// A key of another type takes its place: lost for the holder, an error for whoever comes, and not touched.
#[tokio::test]
async fn a_held_lock_that_becomes_a_list_is_lost_and_left_alone() {
    let events = ["leases lost", "errors of the right kind"];
    let name = "lost within a renewal, wrong kind for others, left alone";
    let mut experiment = Experiment::new(23, name, "a list takes the place of the key", &events);
    for _ in 0..dose(1) {
        let held = Held::begin();
        let _: i64 = held.server.cli("RPUSH list precious");
        let since = now();
        let () = held.server.cli("RENAME list lock:k");
        held.is_lost(since, "Ok(TakenByOther)");
        let other = client(&held.server.url()).await;
        let error = other.mutex("k").with_wait(ms(5_000)).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error:?}");
        assert_eq!(held.server.cli::<i64>("LLEN lock:k"), 1);
        assert!(held.worker.ends_well());
        experiment.ran(1);
        experiment.saw("leases lost", 1);
        experiment.saw("errors of the right kind", 1);
    }
    experiment.finish();
}

/// The expiry is taken off: the next renewal puts it back, and a holder that is killed then blocks nobody for ever.
#[tokio::test]
async fn a_held_lock_without_an_expiry_gets_it_back() {
    let events = ["expiries restored", "greater numbers"];
    let name = "the next renewal restores the expiry";
    let mut experiment = Experiment::new(23, name, "PERSIST", &events);
    for _ in 0..dose(1) {
        let mut held = Held::begin();
        assert_eq!(held.server.cli::<i64>("PERSIST lock:k"), 1);
        let restored = || (1..=TTL as i64).contains(&held.server.pttl("lock:k"));
        eventually("its expiry is back", ms(TTL / 3 + 500), restored).await;
        assert!(held.worker.is_silent(ms(TTL)), "it was not lost");
        held.worker.kill();
        held.is_free().await;
        experiment.ran(1);
        experiment.saw("expiries restored", 1);
        experiment.saw("greater numbers", 1);
    }
    experiment.finish();
}

/// Everything is forgotten, again and again, under processes that contend: two may be at work at once, which no lock can
/// prevent; a resource that checks tokens loses no update, and numbers grow.
#[test]
fn keys_that_are_flushed_under_processes_make_no_number_smaller() {
    let events = ["flushes", "turns", "overlapping turns"];
    let name = "numbers grow, a resource that checks them loses no update, no turn begins late";
    let mut experiment = Experiment::new(23, name, "FLUSHALL every 400 ms", &events);
    let contest = Contest {
        ttl: 1_000,
        work: 250_000,
        tasks: 3,
        fenced: true,
        bound: false,
        ..Contest::new("flushed", 3, ms(dose(5) as u64 * 1_000))
    };
    let outcome = contest.run(|field| {
        while !field.is_over(ms(500)) {
            std::thread::sleep(ms(400));
            let () = field.server.cli("FLUSHALL");
            experiment.saw("flushes", 1);
        }
    });
    let words = outcome.words();
    outcome.history.check_numbers();
    assert_eq!((outcome.lost_updates(), outcome.history.stale()), (0, 0), "{words}");
    assert!(outcome.remains.is_empty(), "{words}");
    experiment.ran(1);
    experiment.saw("turns", outcome.history.turns());
    experiment.saw("overlapping turns", outcome.history.overlaps());
    experiment.finish();
}
