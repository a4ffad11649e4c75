//! Faults that no other suite would notice: found when the bugs of the zoo were brought back one by one.
// Tests fail by panicking, and count in real time.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

// The list of the bugs.
#[path = "../../lock-core/src/zoo/mutants.rs"]
mod mutants;

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, Released};
use lock_testkit::{Action, Gate, Op, Proxy, RedisServer, client, eventually, ms, within};

/// Mutants of the scripts replace a piece of them, which must be there when the scripts have changed.
#[test]
fn a_mutant_finds_no_place_in_the_scripts() {
    mutants::MUTANTS.iter().for_each(mutants::Mutant::check);
    let scripted = mutants::MUTANTS.iter().filter(|mutant| !mutant.script.is_empty());
    assert!(scripted.count() > 10);
}

/// A client that does not give up a command that is held up.
async fn patient(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    LockClient::builder(store.connect().await.unwrap()).build().unwrap()
}

/// The answer to a claim is slow, the server forgets the lock meanwhile, and another client gets it. The first one believes in
/// its lease, so its number must be the smaller one.
#[tokio::test]
async fn a_number_is_drawn_when_its_lock_is_not_ours_any_more() {
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

/// A grant is told late, while a claim that was sent just before it is still on its way: neither the message nor that claim is
/// where the lease begins.
#[tokio::test]
async fn a_lease_counts_from_the_arrival_of_its_grant() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, waiter) = (client(&server.url()).await, patient(&proxy).await);
    let ttl = ms(60_000);
    let guard = holder.mutex("k").with_ttl(ttl).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").with_ttl(ttl).with_wait(ttl).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let (message, claims) = (Gate::new(), Gate::new());
    let told = proxy.rule(Op::Message, Action::HoldReply(message.clone())).once();
    let stuck = proxy.rule(Op::Acquire, Action::HoldRequest(claims.clone())).once();
    eventually("it claims again", ms(5_000), || stuck.hits() == 1).await;
    guard.release().await.unwrap();
    let given = Instant::now();
    let given_for = ms(u64::try_from(server.pttl("lock:k")).unwrap());
    assert!(given_for < ttl / 2, "the lock is handed over for a part of the ttl");
    eventually("it is told", ms(5_000), || told.hits() == 1).await;
    tokio::time::sleep(ms(600)).await;
    message.open();
    let (guard, _) = within("the lock", ms(5_000), waiting).await;
    let guard = guard.unwrap().unwrap();
    let (left, since) = (guard.remaining(), given.elapsed());
    assert!(left > ms(0) && since >= ms(600));
    // The answer about it took a moment, too.
    assert!(left + since <= given_for + ms(100), "{left:?} left of {given_for:?} after {since:?}");
    claims.open();
    guard.release().await.unwrap();
    wait_idle(&waiter).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The first attempt is executed and its answer lost, and the second one cannot be sent: that is not "nothing was done".
#[tokio::test]
async fn a_release_whose_second_attempt_is_not_sent_is_said_to_have_done_nothing() {
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

/// The same for claims and renewals: what the last attempt did does not tell what the first one did.
#[tokio::test]
async fn a_call_whose_second_attempt_is_not_sent_is_said_to_have_done_nothing() {
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

/// The key of the queue holds something else: that is nobody who waits.
#[tokio::test]
async fn a_queue_that_cannot_be_read_keeps_the_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    assert_eq!(server.cli::<i64>("RPUSH lock:{0}:q:k precious"), 1);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(!server.has("lock:k"));
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:{0}:q:k 0 -1"), ["precious"]);
}

/// The same key makes a free lock one that cannot be had: it is not the name of the lock alone that is to be looked at.
#[tokio::test]
async fn a_foreign_queue_is_said_to_be_a_foreign_lock() {
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
