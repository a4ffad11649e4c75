//! A runtime that does not get to run, and one that has a thousand leases to renew.

use lock_tests::{Experiment, RedisServer, client, dose, ms};

use crate::support::worker::{Worker, number};

const TTL: u64 = 600;
const LOCKS: u64 = 20;

/// All threads of a runtime are blocked for half a ttl to three: no body goes on after its deadline.
#[test]
fn a_blocked_runtime_polls_a_body_after_its_deadline() {
    let events = ["bodies cut off", "steps"];
    let fault = "all threads of the runtime blocked for 0.5, 1.5 and 3 ttl";
    let name = "no poll of a body begins after its deadline";
    let mut experiment = Experiment::new(42, name, fault, &events);
    for _ in 0..dose(1) {
        let server = RedisServer::start();
        let spans = [TTL / 2, TTL * 3 / 2, TTL * 3].map(|span| span.to_string()).join(",");
        let args = [format!("ttl={TTL}"), format!("locks={LOCKS}"), format!("block={spans}")];
        let worker = Worker::start(&server, "starve", &args);
        let (_, event) = worker.next();
        assert_eq!(number(&event, "late"), 0, "{event}");
        // Those of the two long spans; a short one may cost a lease on a machine that does other things, too.
        let lost = number(&event, "lost");
        assert!((2 * LOCKS..=3 * LOCKS).contains(&lost), "{event}");
        experiment.ran(1);
        experiment.saw("bodies cut off", usize::try_from(lost).unwrap());
        experiment.saw("steps", usize::try_from(number(&event, "steps")).unwrap());
        assert!(worker.ends_well());
    }
    experiment.finish();
}

const GUARDS: usize = 1_000;

/// A thousand guards renew on one connection, many in a call, and lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_leases_on_one_connection_lose_one() {
    let events = ["renewals", "leases kept"];
    let fault = "1,000 leases on one connection";
    let mut experiment =
        Experiment::new(42, "no lease is lost, renewals travel together", fault, &events);
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let ttl = ms(3_000);
    let claims: Vec<_> = (0..GUARDS)
        .map(|number| tokio::spawn(client.mutex(format!("g{number}")).with_ttl(ttl).lock()))
        .collect();
    let mut guards = Vec::new();
    for claim in claims {
        guards.push(claim.await.unwrap().unwrap());
    }
    server.reset_calls();
    for _ in 0..dose(4) {
        tokio::time::sleep(ms(1_000)).await;
        assert!(guards.iter().all(|guard| guard.is_valid()), "one was lost");
        experiment.ran(1);
    }
    // What each call asks is one GET for each lease.
    let (calls, renewals) = (server.script_calls(), server.calls("get"));
    let seconds = dose(4) as u64;
    // One for each second at least, for each lease; a hundredth of as many calls.
    assert!(renewals >= (seconds - 1) * GUARDS as u64, "{renewals} renewals in {seconds} s");
    assert!(calls < renewals / 10, "{calls} calls for {renewals} renewals");
    experiment.saw("renewals", usize::try_from(renewals).unwrap());
    for guard in guards {
        assert!(guard.is_valid(), "it was lost");
        experiment.saw("leases kept", 1);
        drop(guard);
    }
    lock_core::testing::settled(&client).await;
    assert!(server.remains().is_empty());
    experiment.finish();
}
