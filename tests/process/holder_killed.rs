//! A holder that is stopped or killed.

use std::time::Instant;

use lock_core::{LostReason, Released};
use lock_testkit::{Experiment, RedisServer, Signal, client, eventually, ms, scale, within};

use crate::support::worker::Worker;

const TTL: u64 = 1_000;

/// R7: the holder is stopped for two leases, another process takes the lock, the holder goes on.
/// redisson#5698, #3636.
#[tokio::test]
async fn stopped_holder_does_no_step_after_its_lease() {
    let events = ["steps", "leases taken over"];
    let name = "no poll after the deadline, the next holder is left alone";
    let fault = "SIGSTOP of the holder for two ttl";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let server = RedisServer::start();
    let (mut worker, fence) = Worker::hold(&server, "k", TTL);
    worker.tell("steps");
    let (_, event) = worker.next();
    assert!(event.starts_with("steps"), "{event}");

    worker.signal(Signal::STOP);
    let stopped = Instant::now();
    let other = client(&server.url()).await;
    let mutex = other.mutex("k").with_ttl(ms(60_000)).with_wait(ms(20_000));
    let guard = mutex.lock().await.unwrap();
    assert!(stopped.elapsed() < ms(2 * TTL), "the lease of the stopped holder ended by itself");
    assert!(guard.fencing_token().get() > fence);
    tokio::time::sleep(ms(2 * TTL).saturating_sub(stopped.elapsed())).await;
    let token = server.get("lock:k");
    worker.signal(Signal::CONT);

    let end = worker.end();
    assert!(end.lost.is_some() && end.released == "Ok(TakenByOther)", "{end:?}");
    assert_eq!(server.get("lock:k"), token);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    experiment.ran(1);
    experiment.saw("steps", end.steps);
    experiment.saw("leases taken over", 1);
    experiment.finish();
}

/// P16: the holder is stopped until its lock has expired, no other client takes it, and the holder
/// goes on. redis-semaphore#175.
#[tokio::test]
async fn stopped_holder_does_not_create_its_lock_again() {
    let events = ["releases that found it expired"];
    let name = "told that its lease is over, creates no lock again";
    let fault = "SIGSTOP of the holder until its lock is gone";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let server = RedisServer::start();
    for _ in 0..scale(1) {
        let (worker, _) = Worker::hold(&server, "k", TTL);
        worker.signal(Signal::STOP);
        eventually("the lock expires", ms(10_000), || !server.has("lock:k")).await;
        worker.signal(Signal::CONT);
        finds_it_expired(&server, worker, "k");
        experiment.ran(1);
        experiment.saw("releases that found it expired", 1);
    }
    experiment.finish();
}

/// The same, with a renewal under way: the server executes it while its sender is stopped, and the
/// answer waits in the socket for longer than any call, or a connection, is waited for.
#[tokio::test]
async fn holder_stopped_during_a_renewal_does_not_create_its_lock_again() {
    let events = ["renewals that outlived their senders' lease", "releases that found it expired"];
    let name = "told that its lease is over, creates no lock again";
    let fault = "SIGSTOP of holders with a renewal under way";
    let mut experiment = Experiment::new(18, name, fault, &events);
    let server = RedisServer::start();
    while let Some(round) = experiment.next_round(scale(3)) {
        let keys = ["a", "b"];
        let workers = keys.map(|key| Worker::hold(&server, key, TTL).0);
        // From before the next renewal of each until after it, or after what is tried again then.
        server.pause();
        tokio::time::sleep(ms(TTL / 3 + 20 + TTL / 12 * (round as u64 % 3))).await;
        for worker in &workers {
            worker.signal(Signal::STOP);
        }
        server.resume();
        for key in keys {
            let name = format!("lock:{key}");
            if server.pttl(&name) > TTL as i64 * 9 / 10 {
                experiment.saw("renewals that outlived their senders' lease", 1);
            }
            eventually("the lock expires", ms(10_000), || !server.has(&name)).await;
        }
        for worker in &workers {
            worker.signal(Signal::CONT);
        }
        for (worker, key) in workers.into_iter().zip(keys) {
            finds_it_expired(&server, worker, key);
            experiment.saw("releases that found it expired", 1);
        }
        experiment.ran(1);
    }
    experiment.finish();
}

/// The holder of an expired lock learns of it and did nothing late. Its release finds the key gone
/// and reports `Expired`: it was not in time, and the lock was not taken. The outcome is known
/// because the server is reachable.
fn finds_it_expired(server: &RedisServer, worker: Worker, key: &str) {
    let end = worker.end();
    assert!(end.lost.is_some() && end.released == "Ok(Expired)", "{key}: {end:?}");
    assert!(!server.has(&format!("lock:{key}")), "{key}: it is there again");
}

/// A holder that lives goes on holding: the renewals keep its lock, and its steps go on.
#[tokio::test]
async fn running_holder_keeps_its_lock_for_many_leases() {
    let server = RedisServer::start();
    let (worker, _) = Worker::hold(&server, "k", TTL);
    let token = server.get("lock:k").unwrap();
    assert!(worker.is_silent(ms(3 * TTL)), "it was not lost");
    assert_eq!(server.get("lock:k"), Some(token));
    let end = worker.release();
    assert!(end.steps > 50 && end.released == "Ok(InTime)", "{end:?}");
    assert!(!server.has("lock:k"));
}

/// The holder is killed as by `kill -9`: its lock is free after its ttl, not before and not much
/// later.
#[tokio::test]
async fn lock_of_a_killed_holder_is_free_after_its_ttl() {
    let name = "free when the ttl is over, not before and not much later";
    let events = ["locks taken over"];
    let mut experiment = Experiment::new(41, name, "SIGKILL of the holder", &events);
    let server = RedisServer::start();
    let (mut worker, fence) = Worker::hold(&server, "k", TTL);
    worker.kill();
    let left = ms(u64::try_from(server.pttl("lock:k")).unwrap());
    let asked = Instant::now();
    let other = client(&server.url()).await;
    let waiting = other.mutex("k").with_wait(ms(20_000)).lock();
    let (guard, _) = within("the lock", ms(10_000), waiting).await;
    let took = asked.elapsed();
    let guard = guard.unwrap();
    assert!(guard.fencing_token().get() > fence);
    assert!(took + ms(5) >= left && took < left + ms(1_000), "{took:?} for {left:?}");
    let lost = guard.lease();
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert_eq!(lost.lost().await, LostReason::Released);
    experiment.ran(1);
    experiment.saw("locks taken over", 1);
    experiment.finish();
}
