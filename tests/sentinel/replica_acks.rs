//! Grants and renewals that replicas have to confirm.

use lock_core::store::{RedisStore, Store, Survives};
use lock_core::testing::wait_idle;
use lock_core::{Error, LockClient, LostReason};
use lock_testkit::{
    LogCapture, RedisServer, Sentinels, alone, client, documented_user, eventually, ms, within,
};
use lock_tests::recorded;
use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;
use tokio::task::JoinSet;

/// A client that needs one replica to confirm its locks. Nothing is checked at its start: on a
/// loaded machine a replica may be late once.
fn confirmed(url: &str) -> LockClient {
    let store = RedisStore::builder(url).with_replica_acks(1).with_request_timeout(ms(2_000));
    LockClient::builder(store.connect_lazy().unwrap()).build().unwrap()
}

/// Connects, with a check.
async fn connect(url: &str, count: u32) -> Result<RedisStore, Error> {
    RedisStore::builder(url).with_replica_acks(count).connect().await
}

/// A master with a replica, and no sentinels.
async fn pair() -> (RedisServer, RedisServer) {
    let master = RedisServer::start_with(&["repl-diskless-sync-delay 0"]);
    let replica = RedisServer::start_with(&[&format!("replicaof 127.0.0.1 {}", master.port())]);
    eventually("the replica is online", ms(20_000), || {
        master.cli::<String>("INFO replication").contains("state=online")
    })
    .await;
    (master, replica)
}

/// HA5 (redisson#3994: the number of replicas was not looked at).
#[tokio::test]
async fn lock_without_its_replica_is_unavailable_and_leaves_nothing() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let missed = || recorded(&recorder)["lock_store_replica_acks_missed_total"][0];
    let client = confirmed(&master.url());
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    // It may be late once, and is counted from 0 on.
    let _late = missed();
    // So what it confirms below can only be the grant.
    let mut cli = master.connect();
    let () = cli.run("SET replicated 1").unwrap();
    let confirms = || cli.run::<usize>("WAIT 1 100").unwrap() == 1;
    eventually("the replica has all", ms(10_000), confirms).await;

    replica.pause();
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(missed() >= 1.0, "it is counted");
    assert!(error.is_unavailable() && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("0 of 1 replicas confirmed"), "{error}");
    // The last claim may have no reply when the time is over.
    let error = client.mutex("k").with_wait(ms(600)).lock().await.unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error:?}");
    wait_idle(&client).await;
    assert!(!master.has("lock:k"));

    replica.resume();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    wait_idle(&client).await;
    assert!(master.leftovers().is_empty(), "{:?}", master.leftovers());
}

/// HA7: two have to confirm, and there is one.
#[tokio::test]
async fn start_is_refused_where_there_are_too_few_replicas() {
    let _alone = alone().await;
    let (master, _replica) = pair().await;
    let error = connect(&master.url(), 2).await.unwrap_err();
    assert!(error.to_string().contains("of 2 replicas confirmed"), "{error}");
    let error = connect(&master.url(), 0).await.unwrap_err();
    assert!(error.to_string().contains("replica_acks"), "{error}");
    let store = RedisStore::builder(master.url()).with_replica_acks(1).connect_lazy().unwrap();
    assert_eq!(store.capabilities().survives, Survives::FailoverAcknowledged);
}

/// The renewals reach the master, whose expiry they lengthen, and no replica.
#[tokio::test]
async fn lease_ends_when_no_replica_confirms_its_renewals() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let client = confirmed(&master.url());
    let guard = client.mutex("k").with_ttl(ms(1_500)).lock().await.unwrap();
    replica.pause();
    let (reason, took) = within("the loss", ms(10_000), guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(took < ms(3_000), "{took:?}");
    assert!(master.pttl("lock:k") > 0, "the master renewed nothing: no test");
    replica.resume();
}

/// H13: an extension reached the master and no replica, and its connection breaks. A renewal for
/// less finds the expiry late enough. It is confirmed only if replicas have the extension: `WAIT`
/// tells who has the last write of its own connection, which from Redis 7.2 on is not the last
/// write of the server. After a failover the lease would outlast the lock by what was confirmed.
#[tokio::test]
async fn renewal_is_not_confirmed_by_what_replicas_had_before() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let client = confirmed(&master.url());
    let guard = client.mutex("k").with_ttl(ms(5_000)).lock().await.unwrap();
    replica.pause();
    guard.extend(ms(30_000)).await.unwrap_err();
    assert!(master.pttl("lock:k") > 20_000, "the master extended nothing: no test");
    let _: usize = master.kill_connections();
    // The connection to the replica is of another type, and is kept.
    assert!(master.cli::<String>("INFO replication").contains("state=online"));
    let error = guard.extend(ms(10_000)).await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas confirmed"), "{error}");
    replica.resume();
    eventually("the replica has it", ms(10_000), || replica.pttl("lock:k") > 20_000).await;
    guard.extend(ms(10_000)).await.unwrap();
    guard.release().await.unwrap();
}

/// H13: before Redis 7.2, `WAIT` is about the last write of the server, so the fault of the test
/// above does not show. A renewal that finds the expiry late enough is a write all the same.
#[tokio::test]
async fn renewal_that_lengthens_nothing_is_written_to_replicas() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let client = confirmed(&master.url());
    let guard = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    let before = replica.calls("pexpireat");
    guard.extend(ms(10_000)).await.unwrap();
    assert!(master.pttl("lock:k") > 50_000, "it was shortened");
    let is_written = || replica.calls("pexpireat") > before;
    eventually("the replica receives a write", ms(5_000), is_written).await;
    guard.release().await.unwrap();
}

/// The grant of a lock that is handed on is written by the release of another client, and `WAIT`
/// says nothing about that.
#[tokio::test]
async fn waiter_enters_only_when_replicas_confirm_its_own_claim() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let holder = confirmed(&master.url());
    let waiter = confirmed(&master.url());
    let guard = holder.mutex("k").lock().await.unwrap();
    let mut waiting = tokio::spawn(waiter.mutex("k").with_wait(ms(20_000)).lock());
    eventually("it has a place", ms(5_000), || master.queued("k") == 1).await;
    let before = master.get("lock:k");
    replica.pause();
    guard.release().await.unwrap();
    eventually("it is handed on", ms(5_000), || {
        let value = master.get("lock:k");
        value.is_some() && value != before
    })
    .await;
    let early = tokio::time::timeout(ms(1_000), &mut waiting).await;
    assert!(early.is_err(), "entered without a replica");
    replica.resume();
    let (next, _) = within("the waiter's turn", ms(10_000), waiting).await;
    next.unwrap().unwrap().release().await.unwrap();
}

/// The renewals are no write that needs memory, and neither is what replicas confirm.
#[tokio::test]
async fn full_master_keeps_held_locks() {
    let _alone = alone().await;
    let (master, _replica) = pair().await;
    let client = confirmed(&master.url());
    let guard = client.mutex("k").with_ttl(ms(2_000)).lock().await.unwrap();
    let () = master.cli("CONFIG SET maxmemory 1");
    let renewals = master.script_calls();
    let (lost, _) = within("nothing", ms(5_000), async {
        tokio::select! {
            reason = guard.lost() => Some(reason),
            () = tokio::time::sleep(ms(4_000)) => None,
        }
    })
    .await;
    assert_eq!(lost, None);
    assert!(master.script_calls() > renewals + 3, "no renewals: no test");
    assert!(client.mutex("other").try_lock().await.unwrap_err().is_unavailable());
    guard.release().await.unwrap();
}

/// While `WAIT` lasts the server executes nothing else of the connection.
#[tokio::test]
async fn many_claims_without_a_replica_do_not_cost_the_connection() {
    let _alone = alone().await;
    let (master, replica) = pair().await;
    let client = confirmed(&master.url());
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    let log = LogCapture::start();
    replica.pause();
    let mut tries = JoinSet::new();
    for key in 0..300 {
        tries.spawn(client.mutex(format!("k{key}")).try_lock());
    }
    let (outcomes, _) = within("their outcomes", ms(30_000), tries.join_all()).await;
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(!error.is_busy(), "{error:?}");
    }
    assert!(!log.contains("WARN", "no replies on this connection"), "{}", log.text());
    replica.resume();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    wait_idle(&client).await;
    assert!(master.leftovers().is_empty(), "{:?}", master.leftovers());
}

/// H13: the replica does not receive a grant, and is promoted. Without acknowledgement two clients
/// have the lock.
#[tokio::test]
async fn lost_grant_is_shared_by_two_clients_unless_replicas_confirm_grants() {
    let _alone = alone().await;
    for with_acks in [false, true] {
        let mut group = Sentinels::start(1).await;
        let url = group.url();
        let first = if with_acks { confirmed(&url) } else { client(&url).await };
        first.mutex("before").lock().await.unwrap().release().await.unwrap();
        group.replicated(0).await;
        group.server(1).cut_off_from(group.server(0)).await;
        let granted = first.mutex("k").with_ttl(ms(120_000)).try_lock().await;
        group.server_mut(0).kill();
        group.switched_from(0).await;

        // The promoted one has no replica, so without acknowledgement.
        let second = client(&url).await;
        let other = second.mutex("k").try_lock().await.unwrap().expect("the grant was replicated");
        if with_acks {
            assert!(granted.unwrap_err().is_unavailable());
        } else {
            assert!(granted.unwrap().unwrap().is_valid(), "no two holders: no test");
        }
        other.release().await.unwrap();
    }
}

#[tokio::test]
async fn permission_to_wait_is_all_that_is_needed_in_addition() {
    let _alone = alone().await;
    let (master, _replica) = pair().await;
    let user = documented_user();
    let () = master.cli(&format!("ACL SETUSER {}", user.join(" ")));
    let url = master.url_for(user[0], "password");
    let error = connect(&url, 1).await.unwrap_err();
    assert!(error.to_string().contains("permission"), "{error}");
    // Also where the start was not checked, and by a wait without a limit.
    let client = confirmed(&url);
    let locking = client.mutex("k").wait_forever().lock();
    let (refused, _) = within("a refusal", ms(10_000), locking).await;
    assert!(refused.unwrap_err().to_string().contains("permission"));
    wait_idle(&client).await;
    assert!(!master.has("lock:k"));
    let () = master.cli(&format!("ACL SETUSER {} +wait", user[0]));
    let () = master.cli("ACL LOG RESET");
    let client = confirmed(&url);
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(master.cli::<Vec<redis::Value>>("ACL LOG").is_empty());
}
