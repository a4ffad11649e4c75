//! An attempt without a reply stays in doubt, whatever a later attempt ends with.

use lock_core::testing::wait_idle;
use lock_testkit::{Action, Op, Proxy, RedisServer, client, ms};

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
