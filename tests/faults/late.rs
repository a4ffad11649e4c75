//! Claims that arrive when nobody wants them any more: behind the release of their token.

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{LockClient, Released};
use lock_tests::{Action, Gate, Op, Proxy, RedisServer, eventually, ms, within};

/// No key of these tests expires.
const TTL: Duration = ms(60_000);
const BOUND: Duration = ms(5_000);

/// A client that does not give up a command that is held up.
async fn patient(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    LockClient::builder(store.connect().await.unwrap()).build().unwrap()
}

/// A claim is held up, its connection breaks, and the same claim on the next one is granted. The lock is released, with somebody
/// waiting for that, before the first one arrives.
#[tokio::test]
async fn a_claim_that_arrives_behind_an_awaited_release_keeps_the_lock() {
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
    // It sets the lock and the counter.
    eventually("it arrives and is granted", BOUND, || server.calls("set") == sets + 2).await;
    eventually("it is released again", BOUND, || !server.has("lock:k")).await;
}
