//! A process that does not get to run, and one that has a thousand leases to renew.

use std::thread::sleep;
use std::time::Duration;

use lock_testkit::{Experiment, RedisServer, Signal, client, ms, scale};

use crate::support::worker::Worker;

/// How bodies are entered, as the worker and the report call that.
const WAYS: [(&str, &str); 4] = [
    ("run", "bodies of `run` cut off"),
    ("bind", "bodies of `bind` cut off"),
    ("macro", "bodies of locked functions cut off"),
    ("layer", "bodies of handlers cut off"),
];

/// A process that enters `locks` bodies for each span of `block`, in these ways in turn.
fn enters(server: &RedisServer, ways: &str, (ttl, locks): (u64, usize), block: &[u64]) -> Worker {
    let spans: Vec<_> = block.iter().map(u64::to_string).collect();
    let spans = spans.join(",");
    let args = [
        format!("ttl={ttl}"),
        format!("locks={locks}"),
        format!("block={spans}"),
        format!("ways={ways}"),
    ];
    Worker::start(server, "bodies", &args)
}

/// Lets a process enter `locks` bodies for each span of `block`, a quarter in each way, and looks
/// at what came of them.
fn bodies(
    experiment: &mut Experiment,
    (ttl, locks): (u64, usize),
    block: &[u64],
    stop: impl Fn(&Worker, usize),
) {
    let server = RedisServer::start();
    let worker = enters(&server, &WAYS.map(|(way, _)| way).join(","), (ttl, locks), block);
    for (round, span) in block.iter().enumerate() {
        assert_eq!(worker.next().1, "held");
        stop(&worker, round);
        let (_, event) = worker.next();
        assert_eq!(event.number("late"), 0, "{event}");
        for (way, cut_off) in WAYS {
            let lost = usize::try_from(event.number(way)).unwrap();
            // A short span may cost a lease on a machine that does other things, too.
            let all = *span == 0 || *span > ttl;
            assert!(!all || lost == locks / WAYS.len(), "{event} in round {round}");
            experiment.saw(cut_off, lost);
        }
        experiment.saw("steps", usize::try_from(event.number("steps")).unwrap());
        experiment.ran(locks);
    }
    assert!(worker.ends_well());
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

fn experiment(number: u32, fault: &'static str) -> Experiment {
    let [run, bind, marked, layer] = WAYS.map(|(_, cut_off)| cut_off);
    let name = "no poll of a body begins after its deadline";
    Experiment::new(number, name, fault, &["steps", run, bind, marked, layer])
}

/// All threads of a runtime are blocked for half a ttl to three, while a thousand leases are
/// renewed on one connection.
#[test]
fn blocked_runtime_polls_no_body_after_its_deadline() {
    let fault =
        "1,000 leases on one connection, all threads of the runtime blocked for 0.5, 1.5 and 3 ttl";
    let mut experiment = experiment(42, fault);
    let ttl = 900;
    for _ in 0..scale(1) {
        bodies(&mut experiment, (ttl, 1_000), &[ttl / 2, ttl * 3 / 2, ttl * 3], |_, _| {});
    }
    experiment.finish();
}

/// The process is stopped from some time before the deadline of its bodies until after it.
#[test]
fn stopped_process_polls_no_body_after_its_deadline() {
    let mut experiment =
        experiment(43, "SIGSTOP of the process until the leases of its bodies are over");
    let ttl = 600;
    let rounds = scale(4);
    bodies(&mut experiment, (ttl, 200), &vec![0; rounds], |worker, round| {
        // At any time between two renewals.
        sleep(ms(ttl / 3 * (round as u64 % 4) / 4));
        worker.signal(Signal::STOP);
        sleep(Duration::from_millis(ttl + ttl / 4 * (1 + round as u64 % 3)));
        worker.signal(Signal::CONT);
    });
    experiment.finish();
}

/// Not a promise, but what makes the other two worth something.
#[test]
fn bodies_of_these_tests_notice_late_polls() {
    let name = "control: a body in a `select!` beside its loss is polled late";
    let fault = "all threads of the runtime blocked for 1.5 ttl";
    let mut experiment = Experiment::new(43, name, fault, &["late polls noticed"]);
    let server = RedisServer::start();
    let worker = enters(&server, "select", (600, 20), &[900]);
    assert_eq!(worker.next().1, "held");
    let (_, event) = worker.next();
    experiment.ran(20);
    experiment.saw("late polls noticed", usize::try_from(event.number("late")).unwrap());
    assert!(worker.ends_well());
    experiment.finish();
}

const GUARDS: usize = 1_000;

/// A thousand guards renew on one connection, many in a call, and lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_leases_on_one_connection_are_all_renewed() {
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
    for _ in 0..scale(4) {
        tokio::time::sleep(ms(1_000)).await;
        assert!(guards.iter().all(|guard| guard.is_valid()), "one was lost");
        experiment.ran(1);
    }
    // What each call asks is one GET for each lease.
    let (calls, renewals) = (server.script_calls(), server.calls("get"));
    let seconds = scale(4) as u64;
    // One for each second at least, for each lease; a hundredth of as many calls.
    assert!(renewals >= (seconds - 1) * GUARDS as u64, "{renewals} renewals in {seconds} s");
    assert!(calls < renewals / 10, "{calls} calls for {renewals} renewals");
    experiment.saw("renewals", usize::try_from(renewals).unwrap());
    for guard in guards {
        assert!(guard.is_valid(), "it was lost");
        experiment.saw("leases kept", 1);
        drop(guard);
    }
    lock_core::testing::wait_idle(&client).await;
    assert!(server.leftovers().is_empty());
    experiment.finish();
}
