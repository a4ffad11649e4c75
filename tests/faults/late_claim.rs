//! Claims that arrive late, after the release of their token.

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{LockClient, Released};
use lock_testkit::{Action, Gate, Op, Proxy, RedisServer, eventually, ms, within};
use tokio::time::timeout;

/// No key of these tests expires.
const TTL: Duration = ms(60_000);
const BOUND: Duration = ms(5_000);

/// A client with timeouts long enough for a delayed command.
async fn patient(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    LockClient::builder(store.connect().await.unwrap()).build().unwrap()
}

/// A claim is delayed, its connection breaks, and the same claim is granted on the next one. The
/// caller releases the lock and awaits that before the first claim arrives.
#[tokio::test]
async fn a_claim_that_arrives_after_an_awaited_release_takes_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy).await;
    let gate = Gate::new();
    let stray = proxy.rule(Op::Acquire, Action::Stray(gate.clone())).once();
    let attempt = tokio::spawn(client.mutex("k").with_ttl(TTL).with_wait(TTL).lock());
    eventually("it is sent", BOUND, || stray.hits() == 1).await;
    assert_eq!(proxy.close_all(), 1);
    let (guard, _) = within("the lock", BOUND, attempt).await;
    assert_eq!(guard.unwrap().unwrap().release().await.unwrap(), Released::InTime);
    assert!(!server.has("lock:k"));
    let sets = server.calls("set");
    gate.open();
    // The script sets the lock and the counter.
    eventually("it arrives and is granted", BOUND, || server.calls("set") == sets + 2).await;
    eventually("it is released again", BOUND, || !server.has("lock:k")).await;
}

/// The server has forgotten the script, and the caller drops the claim before the server says so.
/// The release must come last: the claim is not sent again with the script's text.
#[tokio::test]
async fn a_cancelled_claim_of_a_forgotten_script_is_not_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy).await;
    let gate = Gate::new();
    let held_up = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).once();
    let first = tokio::spawn(client.mutex("first").with_ttl(TTL).lock());
    eventually("the first is sent", BOUND, || held_up.hits() == 1).await;
    // This is answered after the first command.
    let forgotten = proxy.rule(Op::Acquire, Action::Refuse("NOSCRIPT No matching script")).once();
    let (claims, releases) = (proxy.seen(Op::Acquire), proxy.seen(Op::Release));
    let second = tokio::spawn(client.mutex("second").with_ttl(TTL).lock());
    eventually("the second is sent", BOUND, || forgotten.hits() == 1).await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    eventually("it is released", BOUND, || proxy.seen(Op::Release) > releases).await;
    gate.open();
    drop(first.await.unwrap().unwrap());
    wait_idle(&client).await;
    // This comes after any command that is sent again.
    drop(client.mutex("third").lock().await.unwrap());
    wait_idle(&client).await;
    assert!(!server.has("lock:second"), "it came behind its release");
    assert_eq!(proxy.seen(Op::Acquire), claims + 2, "the second and the third");
}

/// So many calls are under way that a claim waits for its turn, and is dropped. Releases go before
/// claims.
#[tokio::test]
async fn a_claim_that_is_cancelled_before_its_turn_is_not_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy).await;
    let gate = Gate::new();
    let held_up = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).once();
    let (claims, releases) = (proxy.seen(Op::Acquire), proxy.seen(Op::Release));
    let mut others = Vec::new();
    for number in 1..=4 {
        others.push(tokio::spawn(client.mutex(format!("other-{number}")).with_ttl(TTL).lock()));
        eventually("it is sent", BOUND, || proxy.seen(Op::Acquire) == claims + number).await;
    }
    assert_eq!(held_up.hits(), 1);
    let late = client.mutex("k").with_ttl(TTL).lock();
    timeout(ms(50), late).await.unwrap_err();
    assert_eq!(proxy.seen(Op::Acquire), claims + 4, "it was sent at once");
    assert_eq!(proxy.seen(Op::Release), releases, "its release passes the others");
    gate.open();
    for other in others {
        drop(other.await.unwrap().unwrap());
    }
    wait_idle(&client).await;
    drop(client.mutex("last").lock().await.unwrap());
    wait_idle(&client).await;
    assert!(!server.has("lock:k"), "it came behind its release");
    assert_eq!(proxy.seen(Op::Acquire), claims + 5, "the others and the last");
}
