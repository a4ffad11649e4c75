//! The harness itself: a fault that is not injected proves nothing.

use lock_tests::{Action, Gate, Op, Proxy, RedisServer, client, eventually, ms, within};

#[tokio::test]
async fn the_proxy_passes_counts_and_tells_operations_apart() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let seen = || [Op::Acquire, Op::Renew, Op::Release].map(|op| proxy.seen(op));
    let before = seen();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(server.has("lock:k"));
    guard.extend(ms(20_000)).await.unwrap();
    guard.release().await.unwrap();
    assert!(!server.has("lock:k"));
    assert_eq!(seen(), before.map(|count| count + 1));
    assert_eq!(proxy.connections(), 1);
    assert_eq!(server.calls("eval"), 0);
}

#[tokio::test]
async fn each_action_does_what_it_says() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let gate = Gate::new();
    let executed = [
        (Action::LoseRequest, false),
        (Action::LoseReply, true),
        (Action::CloseBefore, false),
        (Action::CloseAfter, true),
        (Action::DelayRequest(ms(600)), false),
        (Action::DelayReply(ms(600)), true),
        (Action::HoldReply(gate.clone()), true),
        (Action::Duplicate, true),
        (Action::Refuse("LOADING not yet"), false),
    ];
    for (number, (action, executed)) in executed.into_iter().enumerate() {
        let rule = proxy.rule(Op::Acquire, action.clone()).once();
        let mutex = client.mutex(format!("k{number}"));
        let attempt = tokio::spawn(mutex.without_wait().lock());
        eventually("the rule hits", ms(5_000), || rule.hits() == 1).await;
        if executed {
            let key = format!("lock:k{number}");
            eventually("it is executed", ms(5_000), || server.has(&key)).await;
        }
        let (outcome, _) = within("an answer", ms(5_000), attempt).await;
        drop(outcome.unwrap());
        gate.open();
        lock_core::testing::settled(&client).await;
    }
}
