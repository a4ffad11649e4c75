//! Members restart without their data, or lose it otherwise.

use std::time::Instant;

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LostReason, Released};
use lock_testkit::{Quorum, eventually, ms};

use crate::{BOUND, RESTART_DELAY, TTL, client, on};

/// H15, HA18 (redsync#186, PR 147): members restart empty one after the other while a lease is
/// held. Without repair the lease is lost, and without a birth mark another client gets it as soon
/// as a majority has restarted.
#[tokio::test]
async fn held_lease_outlives_the_restart_of_every_member() {
    let mut quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let (mutex, lease) = (other.mutex("k"), guard.lease());
    let trying = tokio::spawn(async move {
        let mut refused = 0;
        loop {
            match mutex.try_lock().await {
                Ok(Some(_)) => panic!("granted, and the lease is valid: {}", lease.is_valid()),
                Ok(None) | Err(_) => refused += 1,
            }
            tokio::time::sleep(ms(5)).await;
            if refused > 100_000 {
                return;
            }
        }
    });
    for member in 0..3 {
        let restarted = Instant::now();
        quorum.restart_empty(member);
        eventually("it has the lock again", BOUND, || quorum.server(member).has("lock:k")).await;
        let took = restarted.elapsed();
        assert!(took >= RESTART_DELAY, "{took:?}");
        assert!(guard.is_valid() && !trying.is_finished(), "after member {member}");
    }
    trying.abort();
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    wait_idle(&holder).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// H16: all members restart at once. No lock is granted before all that they forgot are over, and
/// the error says when members vote again.
#[tokio::test]
async fn no_lock_is_granted_before_the_forgotten_ones_are_over() {
    let mut quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let fence = guard.fencing_token();
    for member in 0..3 {
        quorum.server_mut(member).kill();
    }
    let forgot = Instant::now();
    for member in 0..3 {
        quorum.server_mut(member).boot();
    }
    let error = loop {
        let error = other.mutex("k").try_lock().await.unwrap_err();
        if error.to_string().contains("forgotten") {
            break error;
        }
        assert!(forgot.elapsed() < RESTART_DELAY, "{error:?}");
    };
    assert!(error.is_unavailable() && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("votes again in"), "{error}");
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(forgot.elapsed() <= TTL);

    let next = other.mutex("k").lock().await.unwrap();
    let waited = forgot.elapsed();
    assert!(waited >= RESTART_DELAY && waited < RESTART_DELAY * 2, "{waited:?}");
    assert!(next.fencing_token() > fence);
    drop(guard);
    next.release().await.unwrap();
}

/// Also without a restart: `FLUSHALL` takes the mark along with the locks.
#[tokio::test]
async fn flushed_members_do_not_vote() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    for server in quorum.servers() {
        let () = server.cli("FLUSHALL");
    }
    let flushed = Instant::now();
    let next = other.mutex("k").lock().await.unwrap();
    assert!(flushed.elapsed() >= RESTART_DELAY, "{:?}", flushed.elapsed());
    assert!(!guard.is_valid());
    next.release().await.unwrap();
}

/// One member that was flushed is no reason to lose a lease, nor to stop.
#[tokio::test]
async fn flushed_minority_is_repaired() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let guard = client.mutex("k").lock().await.unwrap();
    let () = quorum.server(1).cli("FLUSHALL");
    client.mutex("other").lock().await.unwrap().release().await.unwrap();
    eventually("it has the lock again", BOUND, || quorum.having("lock:k") == 3).await;
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
}

/// Waiters wait in vain until the lease ends, so a member that lost the lock gives it back to the
/// holder and not to them: else it stayed lost there for as long as anyone waited.
#[tokio::test]
async fn waiters_do_not_keep_a_lease_from_its_repair() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let guard = client.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    // One that does not claim again.
    let () = quorum.server(0).cli("ZADD lock:{0}:q:k 1 waiter");
    let () = quorum.server(0).cli("ZADD lock:{0}:a:k 99999999999999 waiter");
    let () = quorum.server(0).cli("DEL lock:k");
    eventually("it has the lock again", BOUND, || quorum.having("lock:k") == 3).await;
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
}

/// A server with a mark of another process was started from a snapshot or a copy of its data.
#[tokio::test]
async fn mark_of_another_process_does_not_count() {
    let quorum = Quorum::of_age(3, "lock");
    for server in quorum.servers() {
        let mark = format!("0 {:040x}", 7);
        let () = server.connect().command(&["SET", "lock:{0}:born", &mark]).unwrap();
    }
    let client = client(&quorum).await;
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("forgotten"), "{error}");
    // Where members keep their data over a restart, it does.
    let store = QuorumStore::builder(quorum.urls()).with_durable_members();
    let durable = on(store.with_restart_delay(RESTART_DELAY).connect().await.unwrap());
    for server in quorum.servers() {
        let mark = format!("0 {:040x}", 7);
        let () = server.connect().command(&["SET", "lock:{0}:born", &mark]).unwrap();
    }
    durable.mutex("k").lock().await.unwrap().release().await.unwrap();
}

/// A new installation whose servers are older than the delay need not wait, and no
/// operator needs to vouch for them.
#[tokio::test]
async fn servers_that_can_have_forgotten_nothing_vote_at_once() {
    let quorum = Quorum::start(3);
    let client = client(&quorum).await;
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("forgotten"), "they have just started: {error}");
    // Another namespace has no mark yet.
    eventually("they are older than the delay", BOUND * 2, || {
        quorum.servers().all(|server| {
            let info: String = server.cli("INFO server");
            let up = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
            up.unwrap().trim().parse::<u64>().unwrap() > RESTART_DELAY.as_secs() + 1
        })
    })
    .await;
    let store = QuorumStore::builder(quorum.urls()).with_restart_delay(RESTART_DELAY);
    let new = lock_core::LockClient::builder(store.connect().await.unwrap())
        .with_namespace("new")
        .with_defaults(lock_core::LockOptions::new().with_ttl(TTL))
        .build()
        .unwrap();
    new.mutex("k").try_lock().await.unwrap().unwrap().release().await.unwrap();
    // Not if keys were removed since: those of a namespace that is used for the first time, too.
    for server in quorum.servers() {
        let () = server.cli("FLUSHALL");
    }
    let error = new.mutex("k").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("forgotten"), "{error}");
}
