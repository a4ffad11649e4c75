//! The states in which a release finds its key, and what it must leave alone.

use lock_core::testing::wait_idle;
use lock_core::{LockOptions, LostReason, Released};
use lock_testkit::{
    Action, LogCapture, Op, Proxy, RedisServer, client, client_with, eventually, ms, within,
};

/// U5: a stale holder releases the lock of its successor. Seen in distkit and
/// distributed-lock-redis.
#[tokio::test]
async fn a_stale_guard_of_the_same_mutex_leaves_the_next_one_alone() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(1_500))).await;
    let mutex = client.mutex("k").with_wait(ms(20_000));
    for awaited in [true, false] {
        let stale = mutex.lock().await.unwrap();
        assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
        let next = mutex.lock().await.unwrap();
        let token = server.get("lock:k").unwrap();
        assert_eq!(stale.lost().await, LostReason::Gone);
        assert!(next.fencing_token() > stale.fencing_token());
        if awaited {
            assert_eq!(stale.release().await.unwrap(), Released::TakenByOther);
        } else {
            drop(stale);
            wait_idle(&client).await;
        }
        assert_eq!(server.get("lock:k"), Some(token));
        assert!(next.is_valid());
        assert_eq!(next.release().await.unwrap(), Released::InTime);
    }
}

/// U8: the failure of a release replaces the body's result. node-redlock#369 (F7), `lock_across` of
/// redis-lock, getlago/lago-api#3413.
#[tokio::test]
async fn a_body_keeps_its_result_when_the_release_fails() {
    #[derive(Debug, PartialEq)]
    struct Biz;
    for fails in [false, true] {
        let log = LogCapture::start();
        let mut server = RedisServer::start();
        let client = client(&server.url()).await;
        let mutex = client.mutex("k");
        let body = mutex.run(async |lease| {
            assert!(lease.is_valid());
            server.kill();
            if fails { Err(Biz) } else { Ok(42) }
        });
        let (result, _) = within("the result", ms(10_000), body).await;
        assert_eq!(result.unwrap(), if fails { Err(Biz) } else { Ok(42) });
        assert!(log.contains("WARN", "release not confirmed"), "{}", log.text());
    }
}

/// U9: the release of a lock that expired, or that another client holds. redsync#81, #107, #125,
/// #143; spring-integration#2894, #2661; node-redlock#153.
#[tokio::test]
async fn a_release_tells_expired_from_taken_and_harms_neither() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mutex = client.mutex("k");

    let guard = mutex.lock().await.unwrap();
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    assert_eq!(guard.release().await.unwrap(), Released::Expired);

    for awaited in [true, false] {
        let guard = mutex.lock().await.unwrap();
        let () = server.cli("SET lock:k other PX 30000");
        if awaited {
            assert_eq!(guard.release().await.unwrap(), Released::TakenByOther);
        } else {
            drop(guard);
            wait_idle(&client).await;
        }
        assert_eq!(server.get("lock:k").as_deref(), Some("other"));
        assert!(server.pttl("lock:k") > 20_000);
        assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    }
}

/// The key now holds something that is no lock. The lease is over, and the value stays.
#[tokio::test]
async fn a_release_of_a_key_of_another_type_leaves_it_alone() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(3_000))).await;
    let guard = client.mutex("k").lock().await.unwrap();
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    assert_eq!(server.cli::<i64>("RPUSH lock:k precious"), 1);
    let (reason, _) = within("the loss", ms(2_500), guard.lost()).await;
    assert_eq!(reason, LostReason::TakenByOther);
    assert_eq!(guard.release().await.unwrap(), Released::TakenByOther);
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:k 0 -1"), ["precious"]);
}

/// P1: held past the ttl, then released. node-redlock#313.
#[tokio::test]
async fn a_release_after_the_ttl_is_one_round_trip_and_says_expired() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.load_scripts();
    let mutex = client.mutex("k").with_ttl(ms(200)).without_renewal();
    let guard = mutex.lock().await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Expired);
    eventually("the key expires", ms(5_000), || !server.has("lock:k")).await;
    let before = server.script_calls();
    assert_eq!(guard.release().await.unwrap(), Released::Expired);
    assert_eq!(server.script_calls(), before + 1);
}

/// P2: A's TTL ends, B acquires, A releases. ShedLock#2583.
#[tokio::test]
async fn a_release_after_another_client_took_over_changes_nothing() {
    let server = RedisServer::start();
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    server.load_scripts();
    let old = a.mutex("k").with_ttl(ms(200)).without_renewal().lock().await.unwrap();
    let new = b.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    assert!(new.fencing_token() > old.fencing_token());
    let (token, left) = (server.get("lock:k"), server.pttl("lock:k"));
    let before = server.script_calls();
    assert_eq!(old.release().await.unwrap(), Released::TakenByOther);
    assert_eq!(server.script_calls(), before + 1);
    assert_eq!(server.get("lock:k"), token);
    assert!((left - 10_000..=left).contains(&server.pttl("lock:k")));
    assert_eq!(new.release().await.unwrap(), Released::InTime);
}

/// P5: the body returns after the lease was lost. node-redlock#369 (F7), pottery.
#[tokio::test]
async fn a_body_that_ends_in_the_poll_that_outlives_the_lease_keeps_its_result() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for value in [Ok(7), Err("no stock")] {
        let log = LogCapture::start();
        let mutex = client.mutex("k").with_ttl(ms(200)).without_renewal();
        let result = mutex.run(async |lease| {
            std::thread::sleep(ms(300));
            assert!(!lease.is_valid(), "the lease is over");
            value
        });
        assert_eq!(result.await.unwrap(), value);
        assert!(log.contains("WARN", "released=Expired"), "{}", log.text());
    }
}

/// R3: the reply of a release is lost, and it is sent again. redisson#4871, #6651.
#[tokio::test]
async fn a_repeated_release_reports_what_the_first_one_did() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let faults = [
        Action::DelayReply(ms(650)),
        Action::DelayRequest(ms(650)),
        Action::CloseAfter,
        Action::CloseBefore,
        Action::Duplicate,
    ];
    for action in faults {
        let fault = proxy.rule(Op::Release, action.clone()).once();
        let guard = client.mutex("k").lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime, "{action:?}");
        assert_eq!(fault.hits(), 1);
        assert!(!server.has("lock:k"));
    }
}

/// R3, the variant of etcd#22082: a third party takes the lock between the two releases.
#[tokio::test]
async fn a_repeated_release_leaves_a_third_party_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let slow = proxy.rule(Op::Release, Action::DelayReply(ms(700))).once();
    let seen = proxy.seen(Op::Release);
    let guard = client.mutex("k").lock().await.unwrap();
    let release = tokio::spawn(guard.release());
    eventually("the release is executed", ms(450), || !server.has("lock:k")).await;
    let () = server.cli("SET lock:k third NX PX 30000");
    assert_eq!(release.await.unwrap().unwrap(), Released::InTime);
    assert_eq!(slow.hits(), 1);
    assert_eq!(proxy.seen(Op::Release) - seen, 2);
    assert_eq!(server.get("lock:k").as_deref(), Some("third"));
}
