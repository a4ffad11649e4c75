//! Faults that no other test noticed when their bugs were planted by the patches in
//! `tests/mutants`.

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, Released};
use lock_testkit::{Action, Gate, Op, Proxy, RedisServer, client, eventually, ms, within};

/// A client that waits long for the answer to a command.
async fn patient(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    LockClient::builder(store.connect().await.unwrap()).build().unwrap()
}

/// The answer to a claim is slow. Meanwhile the server forgets the lock, and another client gets
/// it. A fence that was taken after the answer would be the larger one, although its lock is gone.
#[tokio::test]
async fn a_late_grant_has_a_smaller_fence_than_the_next_one() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (slow, other) = (patient(&proxy).await, client(&server.url()).await);
    let gate = Gate::new();
    let held_up = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).once();
    let claim = tokio::spawn(slow.mutex("k").with_ttl(ms(60_000)).lock());
    eventually("the claim is executed", ms(5_000), || server.has("lock:k")).await;
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    let next = other.mutex("k").lock().await.unwrap();
    gate.open();
    let late = claim.await.unwrap().unwrap();
    assert_eq!(held_up.hits(), 1);
    assert!(late.is_valid() && next.is_valid());
    assert!(late.fencing_token() < next.fencing_token());
}

/// The message of a grant arrives late, while a claim that was sent just before is still under way.
/// A lease that is counted from the message, or from that claim, would outlast the lock.
#[tokio::test]
async fn a_lease_by_a_late_message_ends_before_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, waiter) = (client(&server.url()).await, patient(&proxy).await);
    let ttl = ms(60_000);
    let guard = holder.mutex("k").with_ttl(ttl).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").with_ttl(ttl).with_wait(ttl).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let (message, claims) = (Gate::new(), Gate::new());
    let sent = proxy.rule(Op::Message, Action::HoldReply(message.clone())).once();
    let stuck = proxy.rule(Op::Acquire, Action::HoldRequest(claims.clone())).once();
    eventually("it claims again", ms(5_000), || stuck.hits() == 1).await;
    guard.release().await.unwrap();
    let given = Instant::now();
    let given_for = ms(u64::try_from(server.pttl("lock:k")).unwrap());
    assert!(given_for < ttl / 2, "the lock is handed over for a part of the ttl");
    eventually("the message is sent", ms(5_000), || sent.hits() == 1).await;
    tokio::time::sleep(ms(600)).await;
    message.open();
    let (guard, _) = within("the lock", ms(5_000), waiting).await;
    let guard = guard.unwrap().unwrap();
    let (left, since) = (guard.remaining(), given.elapsed());
    assert!(left > ms(0) && since >= ms(600));
    // The answer took a moment, too.
    assert!(left + since <= given_for + ms(100), "{left:?} left of {given_for:?} after {since:?}");
    claims.open();
    guard.release().await.unwrap();
    wait_idle(&waiter).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The first attempt is executed and its answer lost, and the second one cannot be sent. An error
/// about the second attempt alone would say that nothing was done.
#[tokio::test]
async fn an_unanswered_release_stays_in_doubt_after_a_second_attempt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let guard = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    let cut_off = proxy.rule(Op::Release, Action::CloseAfter).once();
    proxy.turn_away(true);
    let error = guard.release().await.unwrap_err();
    assert_eq!(cut_off.hits(), 1);
    assert!(!server.has("lock:k"), "it was executed");
    assert!(error.is_unknown(), "{error:?}");
    proxy.turn_away(false);
    wait_idle(&client).await;
}

/// The same for claims and renewals.
#[tokio::test]
async fn an_unanswered_call_stays_in_doubt_after_a_second_attempt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let held = client.mutex("held").with_ttl(ms(60_000)).lock().await.unwrap();
    let tried = client.mutex("tried").with_ttl(ms(60_000));
    let waited = client.mutex("waited").with_ttl(ms(60_000)).with_wait(ms(500));
    for (op, key) in [(Op::Renew, "held"), (Op::Acquire, "tried"), (Op::Acquire, "waited")] {
        let cut_off = proxy.rule(op, Action::CloseAfter).once();
        proxy.turn_away(true);
        let error = match key {
            "held" => held.extend(ms(60_000)).await.unwrap_err(),
            "tried" => tried.try_lock().await.unwrap_err(),
            _ => waited.lock().await.unwrap_err(),
        };
        assert_eq!(cut_off.hits(), 1, "{key}");
        assert!(server.has(&format!("lock:{key}")), "it was executed");
        assert!(error.is_unknown(), "{key}: {error:?}");
        proxy.turn_away(false);
        drop(client.mutex("again").with_wait(ms(5_000)).lock().await.unwrap());
    }
    held.release().await.unwrap();
    wait_idle(&client).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The key of the queue holds a value of another type, so a release finds no waiter there. An error
/// from that key must not keep the lock.
#[tokio::test]
async fn a_lock_is_released_although_its_queue_cannot_be_read() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    assert_eq!(server.cli::<i64>("RPUSH lock:{0}:q:k precious"), 1);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(!server.has("lock:k"));
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:{0}:q:k 0 -1"), ["precious"]);
}

/// The same key makes a free lock unavailable. An error that names the key of the lock would send
/// its reader to the wrong key.
#[tokio::test]
async fn an_error_names_a_queue_of_another_type() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    assert_eq!(server.cli::<i64>("RPUSH lock:{0}:q:k precious"), 1);
    let mutex = client.mutex("k").with_ttl(ms(60_000)).with_wait(ms(20_000));
    let (outcome, _) = within("an answer", ms(5_000), mutex.lock()).await;
    for error in [outcome.unwrap_err(), mutex.try_lock().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error:?}");
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("WRONGTYPE") && why.contains("the queue"), "{why}");
    }
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:{0}:q:k 0 -1"), ["precious"]);
}
