//! A holder that is stopped or killed.

use std::time::Instant;

use lock_core::{LostReason, Released};
use lock_tests::{RedisServer, Signal, client, eventually, ms, within};

use crate::support::worker::{Worker, number};

const TTL: u64 = 1_000;

fn holder(server: &RedisServer) -> (Worker, u64) {
    let args = [format!("ttl={TTL}"), "key=k".to_owned()];
    let worker = Worker::start(server, "hold", &args);
    let (_, event) = worker.next();
    assert!(event.starts_with("held"), "{event}");
    let fence = number(&event, "fence");
    (worker, fence)
}

/// R7: the holder is stopped for two leases, another process takes the lock, the holder goes on.
/// redisson#5698, #3636.
#[tokio::test]
async fn a_stopped_holder_does_no_step_after_its_lease() {
    let server = RedisServer::start();
    let (mut worker, fence) = holder(&server);
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

    let (_, event) = worker.next();
    assert!(event.starts_with("lost"), "{event}");
    let (_, event) = worker.next();
    assert!(number(&event, "steps") > 0, "{event}");
    assert_eq!(number(&event, "late"), 0, "{event}");
    assert!(event.contains("Ok(TakenByOther)"), "{event}");
    assert_eq!(server.get("lock:k"), token);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(worker.ends_well());
}

/// P16: the holder is stopped until its lock is gone, nobody takes it, the holder goes on. redis-semaphore#175.
#[tokio::test]
async fn a_stopped_holder_does_not_create_its_lock_again() {
    let server = RedisServer::start();
    let (worker, _) = holder(&server);
    worker.signal(Signal::STOP);
    eventually("the lock expires", ms(10_000), || !server.has("lock:k")).await;
    worker.signal(Signal::CONT);
    let (_, event) = worker.next();
    assert!(event.starts_with("lost"), "{event}");
    let (_, event) = worker.next();
    assert_eq!(number(&event, "late"), 0, "{event}");
    assert!(event.contains("Ok(Expired)"), "{event}");
    assert!(!server.has("lock:k"));
    assert!(worker.ends_well());
}

/// A holder that lives goes on holding: the renewals keep its lock, and its steps go on.
#[tokio::test]
async fn a_running_holder_keeps_its_lock_for_many_leases() {
    let server = RedisServer::start();
    let (mut worker, _) = holder(&server);
    let token = server.get("lock:k").unwrap();
    assert!(worker.is_silent(ms(3 * TTL)), "it was not lost");
    assert_eq!(server.get("lock:k"), Some(token));
    worker.tell("stop");
    let (_, event) = worker.next();
    assert!(number(&event, "steps") > 50, "{event}");
    assert!(event.contains("Ok(InTime)"), "{event}");
    assert!(!server.has("lock:k"));
    assert!(worker.ends_well());
}

/// The holder is killed as by `kill -9`: its lock is free after its ttl, not before and not much later.
#[tokio::test]
async fn a_killed_holder_blocks_the_key_for_its_ttl() {
    let server = RedisServer::start();
    let (mut worker, fence) = holder(&server);
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
}
