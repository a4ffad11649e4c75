//! Members that refuse: their users lack permissions, or they have no memory.

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LostReason, Released};
use lock_testkit::{Quorum, documented_user, eventually, ms, within};

use crate::{BOUND, RESTART_DELAY, TTL, client, on};

/// Gives each member a user with these permissions, and the URLs by which it is that user's.
fn with_user(quorum: &Quorum, acl: &[&str]) -> Vec<String> {
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(acl);
    for server in quorum.servers() {
        let () = server.connect().command(&command).unwrap();
    }
    let user = format!("redis://{}:password@", acl[0]);
    quorum.urls().iter().map(|url| url.replace("redis://", &user)).collect()
}

/// The permissions of a single server are those of a member, as the documentation says.
#[tokio::test]
async fn documented_permissions_are_enough_on_members_and_leave_nothing_in_the_acl_log() {
    let quorum = Quorum::of_age(3, "lock");
    let urls = with_user(&quorum, &documented_user());
    for protocol in ["resp3", "resp2"] {
        let urls: Vec<_> = urls.iter().map(|url| format!("{url}?protocol={protocol}")).collect();
        let connect = async || {
            let store = QuorumStore::builder(urls.clone()).with_restart_delay(RESTART_DELAY);
            on(store.connect().await.unwrap())
        };
        let (one, two) = (connect().await, connect().await);
        for server in quorum.servers() {
            let () = server.cli("SCRIPT FLUSH");
        }
        let guard = one.mutex("k").lock().await.unwrap();
        let waiting = tokio::spawn(two.mutex("k").lock());
        eventually("it waits", BOUND, || quorum.servers().any(|it| it.queued("k") == 1)).await;
        guard.extend(RESTART_DELAY).await.unwrap();
        assert!(two.mutex("k").try_lock().await.unwrap().is_none());
        assert_eq!(one.inspect("k").await.unwrap().waiting, Some(1));
        assert_eq!(one.health().await.unwrap().problems, Vec::<String>::new());
        assert!(one.missing_permissions().await.unwrap().is_empty());
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
        let next = within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap();
        assert!(one.force_release("k").await.unwrap().is_some());
        drop(next);
        let held = one.mutex("held").with_min_hold(ms(100)).lock().await.unwrap();
        assert_eq!(held.release().await.unwrap(), Released::InTime);
        // A member without its mark looks at what it knows of itself.
        let () = quorum.server(1).cli("FLUSHALL");
        one.mutex("other").without_fencing().lock().await.unwrap().release().await.unwrap();
        eventually("it has a mark", BOUND, || quorum.server(1).has("lock:{0}:born")).await;
        wait_idle(&one).await;
        wait_idle(&two).await;
        quorum.vouch(1, "lock");
    }
    for server in quorum.servers() {
        let denied: Vec<redis::Value> = server.cli("ACL LOG");
        assert!(denied.is_empty(), "{denied:?}");
    }
}

/// A user that may vote and not queue is refused by one conductor after the other. The waiter asked
/// all members again and again, without a pause.
#[tokio::test]
async fn waiter_that_may_not_queue_pauses_before_it_asks_again() {
    let quorum = Quorum::of_age(3, "lock");
    let acl: Vec<_> = documented_user().into_iter().filter(|right| *right != "+zadd").collect();
    let urls = with_user(&quorum, &acl);
    let store = QuorumStore::builder(urls).with_restart_delay(RESTART_DELAY);
    let client = on(store.connect_lazy().unwrap());
    for server in quorum.servers() {
        let () = server.cli("SET lock:k foreign PX 60000");
        server.reset_calls();
    }
    let mutex = client.mutex("k").with_wait(ms(1_000));
    let (outcome, _) = within("an error", BOUND, mutex.lock()).await;
    outcome.unwrap_err();
    let calls: u64 = quorum.servers().map(|server| server.script_calls()).sum();
    assert!((3..150).contains(&calls), "{calls} calls");
}

/// Members without memory refuse what is new. A lease is no news: it is renewed, and may be taken
/// from its holder. Renewals began with a SET, which is refused, so full members lost all leases.
#[tokio::test]
async fn leases_outlive_the_memory_of_the_members() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    for server in quorum.servers() {
        let () = server.cli("CONFIG SET maxmemory 1");
    }
    let error = other.mutex("new").with_wait(ms(300)).lock().await.unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_valid(), "renewed");
    guard.extend(RESTART_DELAY).await.unwrap();
    assert!(other.force_release("k").await.unwrap().is_some());
    let (lost, _) = within("the loss", BOUND, guard.lost()).await;
    assert_eq!(lost, LostReason::TakenByOther);
    for server in quorum.servers() {
        let () = server.cli("CONFIG SET maxmemory 0");
    }
    drop(guard);
    wait_idle(&holder).await;
    wait_idle(&other).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}
