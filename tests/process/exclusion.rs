//! Exclusion: no two bodies at once, no lost update, whatever happens to processes and connections.

use std::time::{Duration, Instant};

use lock_tests::{RedisServer, Signal, ms};

use crate::support::history::{Ground, Verdict};
use crate::support::worker::{Worker, number};

const PROCESSES: usize = 4;
const TASKS: u64 = 8;

/// How they contend.
struct Contest {
    name: &'static str,
    span: Duration,
    ttl: u64,
    keys: u64,
    /// How long a body takes, in microseconds.
    work: u64,
}

/// What the workers report in all.
#[derive(Debug, Default)]
struct Tally {
    turns: u64,
    busy: u64,
    lost: u64,
    failed: u64,
    reports: Vec<String>,
}

/// Lets processes contend while `disturb` does what it does, and checks what they did.
fn contend(
    contest: &Contest,
    disturb: impl Fn(&RedisServer, &[Worker], Instant),
) -> (Tally, Verdict, u64) {
    let &Contest { name, span, ttl, keys, work } = contest;
    let server = RedisServer::start();
    let ground = Ground::new(name, keys);
    let args = [
        format!("ttl={ttl}"),
        format!("tasks={TASKS}"),
        format!("keys={keys}"),
        format!("work={work}"),
        format!("for={}", span.as_millis()),
        format!("dir={}", ground.path().display()),
    ];
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start(&server, "contend", &args)).collect();
    for worker in &workers {
        assert_eq!(worker.next().1, "ready");
    }
    disturb(&server, &workers, Instant::now() + span);
    let mut tally = Tally::default();
    for worker in workers {
        let (_, event) = worker.next();
        tally.turns += number(&event, "turns");
        tally.busy += number(&event, "busy");
        tally.lost += number(&event, "lost");
        tally.failed += number(&event, "failed");
        tally.reports.push(event);
        assert!(worker.ends_well());
    }
    let verdict = ground.check();
    assert_eq!(verdict.turns, tally.turns);
    (tally, verdict, ground.counted())
}

#[test]
fn many_tasks_of_many_processes_take_turns_and_lose_no_update() {
    let contest = Contest { name: "calm", span: ms(5_000), ttl: 10_000, keys: 3, work: 500 };
    let (tally, verdict, counted) = contend(&contest, |_, _, _| {});
    assert_eq!(counted, tally.turns, "{tally:?}: each turn counted once");
    assert!(tally.turns > 100 && verdict.handovers > 20, "{tally:?} {verdict:?}");
    assert_eq!((tally.lost, tally.failed), (0, 0), "{tally:?}");
}

/// Connections are killed, scripts forgotten, the server stalls: answers are lost, locks are not.
#[test]
fn broken_connections_and_a_stalling_server_break_no_exclusion() {
    let contest = Contest { name: "rough", span: ms(6_000), ttl: 5_000, keys: 3, work: 500 };
    let (tally, verdict, counted) = contend(&contest, |server, _, end| {
        let mut cli = server.connect();
        let mut killed = 0_i64;
        while Instant::now() < end {
            // A connection that listens for hand-overs is of the second type.
            for kind in ["normal", "pubsub"] {
                let kill = format!("CLIENT KILL TYPE {kind} SKIPME yes");
                killed += cli.run::<i64>(&kill).unwrap();
            }
            let () = cli.run("SCRIPT FLUSH").unwrap();
            std::thread::sleep(ms(150));
            server.pause();
            std::thread::sleep(ms(60));
            server.resume();
            std::thread::sleep(ms(40));
        }
        assert!(killed > 40, "{killed} connections were killed");
    });
    assert_eq!(counted, tally.turns, "{tally:?}: each turn counted once");
    assert!(tally.turns > 50 && verdict.handovers > 10, "{tally:?} {verdict:?}");
}

/// Processes are stopped for longer than their leases last. A body that was stopped after it had read the counter writes it
/// back too late, which no lease can prevent; but no turn begins late, and none overlaps another one's lease.
#[test]
fn stopped_processes_overstay_no_lease() {
    let contest = Contest { name: "stopped", span: ms(6_000), ttl: 400, keys: 8, work: 5_000 };
    let (tally, verdict, _) = contend(&contest, |_, workers, end| {
        let mut turn = 0;
        while Instant::now() + ms(1_000) < end {
            let worker = &workers[turn % workers.len()];
            worker.signal(Signal::STOP);
            std::thread::sleep(ms(600));
            worker.signal(Signal::CONT);
            std::thread::sleep(ms(50));
            turn += 1;
        }
        assert!(turn >= 5);
    });
    assert!(tally.lost >= 1, "{tally:?}: no holder was stopped");
    assert!(tally.turns > 50 && verdict.handovers > 10, "{tally:?} {verdict:?}");
}
