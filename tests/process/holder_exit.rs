//! The ways in which a holder leaves: its lock is released, or expires.

use std::time::Instant;

use lock_testkit::{Experiment, RedisServer, eventually, ms, scale};

use crate::support::worker::Worker;

const TTL: u64 = 1_500;
/// A round trip, on a machine that does other things, too.
const AT_ONCE: u64 = 500;

/// A worker that holds a lock, and then leaves it.
fn leaver(server: &RedisServer, way: &str) -> Worker {
    let args = [format!("ttl={TTL}"), "key=k".to_owned(), format!("way={way}")];
    let worker = Worker::start(server, "leave", &args);
    assert_eq!(worker.next().1, "held");
    assert!(server.has("lock:k"));
    worker
}

/// The body panics, its task is aborted, or the runtime of the holder is dropped.
#[tokio::test]
async fn lock_of_a_holder_that_ends_early_is_released() {
    for (way, fault) in [
        ("panic", "the body panics"),
        ("abort", "the task is aborted"),
        ("runtime", "the runtime of the holder is dropped"),
    ] {
        let events = ["locks released"];
        let name = "released at once, and renewed no more";
        let mut experiment = Experiment::new(41, name, fault, &events);
        for _ in 0..scale(1) {
            let server = RedisServer::start();
            let mut worker = leaver(&server, way);
            worker.tell("go");
            let start = Instant::now();
            assert_eq!(worker.next().1, "left");
            eventually(&format!("it is released: {way}"), ms(AT_ONCE), || !server.has("lock:k"))
                .await;
            assert!(start.elapsed() < ms(TTL), "{:?}", start.elapsed());
            server.reset_calls();
            tokio::time::sleep(ms(TTL)).await;
            assert_eq!(server.script_calls(), 0, "{way}: something goes on");
            assert!(server.leftovers().is_empty(), "{way}: {:?}", server.leftovers());
            worker.tell("end");
            assert!(worker.ends_well());
            experiment.ran(1);
            experiment.saw("locks released", 1);
        }
        experiment.finish();
    }
}

/// A guard that is forgotten is kept, as everything forgotten is, for as long as its process lives.
#[tokio::test]
async fn lock_of_a_killed_or_forgetful_holder_is_free_after_its_ttl() {
    for (way, fault) in [
        ("abort", "SIGKILL of the holder"),
        ("forget", "the guard is forgotten, and the process killed"),
    ] {
        let events = ["locks expired"];
        let name = "free when the ttl is over, not before";
        let mut experiment = Experiment::new(41, name, fault, &events);
        for _ in 0..scale(1) {
            let server = RedisServer::start();
            let mut worker = leaver(&server, way);
            if way == "forget" {
                worker.tell("go");
                assert_eq!(worker.next().1, "left");
                assert!(server.has("lock:k"));
            }
            worker.kill();
            let left = server.pttl("lock:k");
            assert!((1..=TTL as i64).contains(&left), "{left}");
            let start = Instant::now();
            eventually("it expires", ms(TTL + AT_ONCE), || !server.has("lock:k")).await;
            let took = i64::try_from(start.elapsed().as_millis()).unwrap();
            assert!(took >= left - 10 && took <= left + 200, "{took} ms for {left}");
            experiment.ran(1);
            experiment.saw("locks expired", 1);
        }
        experiment.finish();
    }
}
