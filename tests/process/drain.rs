//! SIGTERM: a service lets its holders finish, stops those that do not, and leaves no key.

use std::time::Instant;

use lock_testkit::{Experiment, RedisServer, Signal, ms};

use crate::support::worker::Worker;

/// A service gets SIGTERM while some bodies end soon, some never end and one caller waits.
#[test]
fn service_that_drains_on_sigterm_leaves_no_key() {
    let events = ["bodies finished", "bodies stopped"];
    let name = "bodies finish or stop in time, no key is left";
    let mut experiment = Experiment::new(41, name, "SIGTERM, and a drain", &events);
    let server = RedisServer::start();
    let () = server.cli("SET lock:foreign other PX 600000");
    let args = ["ttl=60000", "quick=5", "stuck=3", "limit=2500"].map(str::to_owned);
    let worker = Worker::start(&server, "serve", &args);
    for _ in 0..8 {
        assert_eq!(worker.next().1, "entered");
    }
    assert_eq!(server.cli::<Vec<String>>("KEYS lock:served-*").len(), 8);
    let told = Instant::now();
    worker.signal(Signal::TERM);
    let (_, event) = worker.next();
    assert!(event.starts_with("drained"), "{event}");
    assert_eq!((event.number("held"), event.number("pending")), (0, 0), "{event}");
    assert!(told.elapsed() < ms(6_000), "the limit was 2.5 s");
    assert!(server.cli::<Vec<String>>("KEYS lock:served-*").is_empty());
    assert_eq!(worker.next().1, "waiter: Draining");
    let (_, event) = worker.next();
    let (finished, stopped) = (event.number("finished"), event.number("stopped"));
    assert_eq!((finished, stopped), (5, 3), "{event}");
    assert!(worker.ends_well());
    assert_eq!(server.get("lock:foreign").as_deref(), Some("other"));
    experiment.ran(1);
    experiment.saw("bodies finished", usize::try_from(finished).unwrap());
    experiment.saw("bodies stopped", usize::try_from(stopped).unwrap());
    experiment.finish();
}
