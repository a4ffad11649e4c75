//! What a recorder is given by a client on a real server.

use std::collections::HashMap;

use lock_core::LockClient;
use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_testkit::{RedisServer, eventually, ms, within};
use metrics::set_default_local_recorder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// A lock that one client hands to another, on one thread, so that its recorder gets all of it.
#[tokio::test]
async fn a_hand_off_between_clients_and_the_calls_for_it_are_counted() {
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let server = RedisServer::start();
    let client = async || {
        LockClient::builder(RedisStore::connect(server.url()).await.unwrap()).build().unwrap()
    };
    let (one, other) = (client().await, client().await);
    let guard = one.mutex("report").lock().await.unwrap();
    let waiter = tokio::spawn(other.mutex("report").wait_forever().lock());
    eventually("it is queued", ms(5_000), || server.queued("report") == 1).await;
    guard.release().await.unwrap();
    within("the lock", ms(5_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
    wait_idle(&one).await;
    wait_idle(&other).await;

    let recorded = recorder.snapshotter().snapshot().into_vec().into_iter();
    let mut seen = HashMap::new();
    let (mut calls, mut is_up) = (0, None);
    for (key, _, _, value) in recorded {
        let (name, labels) = key.key().clone().into_parts();
        match value {
            DebugValue::Counter(count) => {
                let labels: Vec<_> = labels.iter().map(metrics::Label::value).collect();
                seen.insert(format!("{} {}", name.as_str(), labels.join(" ")), count);
            }
            DebugValue::Histogram(samples) if name.as_str() == "lock_store_request_seconds" => {
                calls = samples.len();
                assert!(samples.iter().all(|took| (0.0..5.0).contains(&took.into_inner())));
            }
            DebugValue::Histogram(samples) if name.as_str() == "lock_store_request_commands" => {
                assert!(samples.iter().all(|commands| commands.into_inner() >= 1.0));
            }
            DebugValue::Gauge(up) if name.as_str() == "lock_store_up" => {
                assert_eq!(labels[0].value(), server.url().trim_end_matches('/'));
                is_up = Some(up.into_inner());
            }
            DebugValue::Gauge(level) => assert_eq!(level.into_inner(), 0.0, "{name:?}"),
            DebugValue::Histogram(_) => {}
        }
    }
    assert_eq!(seen["lock_hand_offs_total report store"], 1, "{seen:?}");
    assert_eq!(seen["lock_acquisitions_total report acquired"], 2, "{seen:?}");
    assert_eq!(seen["lock_store_connections_total "], 2, "{seen:?}");
    assert_eq!(is_up, Some(1.0));
    // At least two claims of the waiter, one of the holder, and two releases.
    assert!(calls >= 5, "{calls} calls");
}

/// O2: an outage is seen in the metrics.
#[tokio::test]
async fn gauge_tells_whether_the_last_dial_succeeded() {
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let is_up = || {
        let all = recorder.snapshotter().snapshot().into_vec().into_iter();
        let mut ups = all.filter_map(|(key, _, _, value)| match value {
            DebugValue::Gauge(up) if key.key().name() == "lock_store_up" => Some(up.into_inner()),
            _ => None,
        });
        ups.next()
    };
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    assert_eq!(is_up(), None);
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert_eq!(is_up(), Some(1.0));
    server.kill();
    let waiter = tokio::spawn(client.mutex("k").with_wait(ms(20_000)).lock());
    eventually("a dial fails", ms(5_000), || is_up() == Some(0.0)).await;
    server.boot();
    within("the lock", ms(20_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
    assert_eq!(is_up(), Some(1.0));
}
