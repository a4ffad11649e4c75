//! The keys that a script touches are among those that its call declares.

use std::collections::BTreeSet;

use lock_core::testing::wait_idle;
use lock_testkit::{RedisServer, client, eventually, ms, within};

/// A cluster sends a call to the node of the keys that it declares, and looks for each of them
/// while their slot is on its way to another node. Here scripts run where they touch most.
#[tokio::test]
async fn scripts_touch_only_the_keys_that_they_are_given() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let three = client(&server.url()).await;
    let monitor = server.monitor();

    // A lock that is renewed while one waits, one gives up, and one has died.
    let guard = one.mutex("k").with_ttl(ms(600)).lock().await.unwrap();
    let waiting = tokio::spawn(two.mutex("k").with_wait(ms(10_000)).lock());
    eventually("it waits", ms(5_000), || server.queued("k") == 1).await;
    assert!(three.mutex("k").with_wait(ms(300)).lock().await.unwrap_err().is_busy());
    let dead = server.queue("k")[0].replacen(|digit: char| digit.is_ascii_digit(), "f", 1);
    for set in ["q", "a"] {
        let _: u64 = server.cli(&format!("ZADD lock:{{0}}:{set}:k 1 {dead}"));
    }
    let renewals = server.script_calls();
    eventually("a renewal", ms(5_000), || server.script_calls() > renewals + 1).await;
    guard.release().await.unwrap();
    within("a turn", ms(10_000), waiting).await.0.unwrap().unwrap().release().await.unwrap();

    // One that stays taken for a while, and one that is taken by force from under a waiter.
    let kept = one.mutex("kept").with_min_hold(ms(200)).lock().await.unwrap();
    kept.release().await.unwrap();
    let guard = one.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(two.mutex("k").with_wait(ms(10_000)).lock());
    eventually("it waits", ms(5_000), || server.queued("k") == 1).await;
    assert!(three.inspect("k").await.unwrap().owner.is_some());
    three.force_release("k").await.unwrap().unwrap();
    drop(within("a turn", ms(10_000), waiting).await.0.unwrap().unwrap());
    drop(guard);
    wait_idle(&one).await;
    wait_idle(&two).await;

    let calls = monitor.finish(&server);
    let scripts: BTreeSet<_> = calls.iter().map(|call| call.declared.len()).collect();
    let touched: BTreeSet<_> = calls.iter().flat_map(|call| &call.touched).collect();
    assert!(scripts.len() >= 3 && touched.len() >= 5, "{calls:?}");
    for call in &calls {
        let undeclared = call.touched.iter().find(|&key| !call.declared.contains(key));
        assert_eq!(undeclared, None, "{call:?}");
    }
}
