//! Slots that move and nodes that are replaced, as the recorder and the log show them.

use lock_core::testing::wait_idle;
use lock_testkit::{LogCapture, RedisCluster, alone, client, ms, within};
use lock_tests::recorded;
use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;

/// A slot moves key by key: some keys are on each node, then all are on the new one, then the slot
/// is.
#[tokio::test]
async fn redirections_are_counted_by_kind() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let log = LogCapture::start();
    let (holder, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let key = cluster.key_on(0, "k");
    assert!(other.mutex(key.clone()).try_lock().await.unwrap().is_some());
    wait_idle(&other).await;
    let guard = holder.mutex(key.clone()).with_ttl(ms(30_000)).lock().await.unwrap();
    let seen = recorded(&recorder);
    for kind in ["moved", "ask", "try_again", "not_served"] {
        assert_eq!(seen[&format!("lock_store_redirections_total {kind}")], [0.0], "{seen:?}");
    }
    assert!(seen["lock_store_slot_maps_total done"][0] >= 1.0, "{seen:?}");

    let migration = cluster.migration(&format!("lock:{key}"), 1);
    let keys = migration.keys();
    assert!(keys.len() >= 2, "{keys:?}");
    migration.step(&keys[0]);
    // A wait is long enough to notice that the move takes its time.
    let error = other.mutex(key.clone()).with_wait(ms(2_500)).lock().await.unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");
    guard.extend(ms(40_000)).await.unwrap();
    keys[1..].iter().for_each(|key| migration.step(key));
    guard.extend(ms(50_000)).await.unwrap();
    migration.finish();
    guard.release().await.unwrap();
    wait_idle(&holder).await;
    let seen = recorded(&recorder);
    for kind in ["moved", "ask"] {
        let count = seen[&format!("lock_store_redirections_total {kind}")][0];
        assert!(count >= 1.0, "{kind}: {seen:?}");
    }
    assert!(seen["lock_store_redirections_total try_again"][0] >= 2.0, "{seen:?}");
    for event in ["slot.moved", "slot.asked", "slot.migrating"] {
        assert!(log.contains("DEBUG", &format!("event=\"{event}\"")), "{event}: {}", log.text());
    }
}

/// The time without a master ends when the map names another one.
#[tokio::test]
async fn time_until_a_killed_master_is_replaced_is_measured() {
    let _alone = alone().await;
    let mut cluster = RedisCluster::start().await;
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let client = client(&cluster.url()).await;
    let mutex = client.mutex(cluster.key_on(0, "k")).with_wait(ms(30_000));
    mutex.lock().await.unwrap().release().await.unwrap();
    drop(recorded(&recorder));
    cluster.server_mut(0).kill();
    let (guard, took) = within("a lock", ms(30_000), mutex.lock()).await;
    guard.unwrap().release().await.unwrap();
    wait_idle(&client).await;
    let seen = recorded(&recorder);
    let name = format!("lock_store_outage_seconds redis://127.0.0.1:{}", cluster.server(0).port());
    let [outage] = seen[&name][..] else { panic!("{:?}", seen[&name]) };
    let shortest = RedisCluster::NODE_TIMEOUT.as_secs_f64() / 2.0;
    assert!((shortest..=took.as_secs_f64() + 1.0).contains(&outage), "{outage} of {took:?}");
    assert!(seen["lock_store_slot_maps_total done"][0] >= 1.0, "{seen:?}");
}
