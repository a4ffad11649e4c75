//! Several stores of one process, on the same servers.

use lock_core::LockClient;
use lock_testkit::{Quorum, RedisServer, client_with, eventually, ms, within};

use crate::{BOUND, TTL, defaults, patient_client};

/// Stores of one process share nothing: each excludes the other, serves its waiters after it, and
/// keeps its leases, waiters and renewals when the other is drained.
async fn exclude_each_other_and_drain_alone(
    [one, two]: [LockClient; 2],
    queued: impl Fn() -> bool + Send + Sync,
    leftovers: impl Fn() -> Vec<String> + Send + Sync,
) {
    let first = one.mutex("k").lock().await.unwrap();
    assert!(two.mutex("k").try_lock().await.unwrap().is_none());
    let fence = first.fencing_token();
    let held = two.mutex("held").lock().await.unwrap();
    let waiting = tokio::spawn(two.mutex("k").with_wait(BOUND).lock());
    eventually("it waits", BOUND, queued).await;

    drop(first);
    let (drained, took) = within("a drain", BOUND, one.drain(BOUND)).await;
    assert!(drained.is_clean() && took < ms(3_000), "{drained:?} after {took:?}");
    let (next, _) = within("the waiter's turn", BOUND, waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence);
    tokio::time::sleep(TTL * 2).await;
    assert!(held.is_valid() && next.is_valid(), "both are renewed");
    two.mutex("new").lock().await.unwrap().release().await.unwrap();
    assert!(one.mutex("new").try_lock().await.is_err(), "it is drained");

    drop((held, next));
    let (drained, _) = within("a drain", BOUND, two.drain(BOUND)).await;
    assert!(drained.is_clean(), "{drained:?}");
    eventually("nothing is left", BOUND, || leftovers().is_empty()).await;
}

#[tokio::test]
async fn stores_on_one_quorum_exclude_each_other_and_drain_alone() {
    let quorum = Quorum::of_age(3, "lock");
    let clients = [patient_client(&quorum).await, patient_client(&quorum).await];
    let queued = || quorum.servers().any(|server| server.queued("k") == 1);
    exclude_each_other_and_drain_alone(clients, queued, || quorum.leftovers()).await;
}

#[tokio::test]
async fn stores_on_one_server_exclude_each_other_and_drain_alone() {
    let server = RedisServer::start();
    let clients = [
        client_with(&server.url(), defaults()).await,
        client_with(&server.url(), defaults()).await,
    ];
    let queued = || server.queued("k") == 1;
    exclude_each_other_and_drain_alone(clients, queued, || server.leftovers()).await;
}
