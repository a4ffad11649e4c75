//! Sentinels that do not answer, or that are behind.

use lock_core::LockClient;
use lock_core::store::RedisStore;
use lock_testkit::{Action, LogCapture, Op, Sentinels, alone, client, eventually, ms, within};

use crate::is_on;

/// A sentinel that missed a failover names the old master, with an older epoch (H11; redis-rs's own
/// client takes the first answer).
#[tokio::test]
async fn sentinel_that_missed_a_failover_is_outvoted() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let old = group.server(0);
    group.fail_over().await;
    let new = group.switched_from(0).await;
    let port = old.port().to_string();
    let fields = ["ip", "127.0.0.1", "port", &port, "flags", "master", "config-epoch", "0"]
        .map(String::from);
    let mut stale = format!("*{}\r\n", fields.len());
    for field in fields {
        stale += &format!("${}\r\n{field}\r\n", field.len());
    }
    let stale = group.proxy(0).rule(Op::Other, Action::Answer(stale.into_bytes().into())).always();
    for _ in 0..5 {
        let client = client(&group.url()).await;
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
        assert!(is_on(&client, new) && !is_on(&client, old));
    }
    assert!(stale.hits() >= 5);
}

/// One of three sentinels is cut off: all goes on. Two: a client that is connected goes on, and
/// finds the same server again; a new client finds none, and its error says why.
#[tokio::test]
async fn majority_of_the_sentinels_is_needed_for_another_server_only() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    group.proxy(0).cut();
    let (connected, took) = within("a client", ms(5_000), client(&group.url())).await;
    assert!(took < ms(1_500), "{took:?}");
    connected.mutex("k").lock().await.unwrap().release().await.unwrap();

    let log = LogCapture::start();
    group.proxy(1).cut();
    connected.mutex("k").lock().await.unwrap().release().await.unwrap();
    group.server(0).kill_connections();
    let locking = connected.mutex("k").with_wait(ms(10_000)).lock();
    let (guard, _) = within("a lock by the last sentinel", ms(12_000), locking).await;
    guard.unwrap().release().await.unwrap();

    let error = RedisStore::connect(group.url()).await.unwrap_err();
    assert!(error.is_unavailable() && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("2 of 3 sentinels do not answer"), "{error}");
    eventually("the log tells that a failover would go unnoticed", ms(10_000), || {
        log.contains("WARN", "cannot tell whether the master is still the same")
    })
    .await;
    group.proxy(1).heal();
    client(&group.url()).await.mutex("k").lock().await.unwrap().release().await.unwrap();
}

/// Without sentinels a client that is connected goes on. One that is not gets an error that says
/// so, and connects when they are back.
#[tokio::test]
async fn client_without_sentinels_keeps_its_connection_and_connects_when_they_are_back() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let connected = client(&group.url()).await;
    (0..3).for_each(|sentinel| group.proxy(sentinel).turn_away(true));
    assert!((0..3).map(|sentinel| group.proxy(sentinel).close_all()).sum::<usize>() > 0);
    connected.mutex("k").lock().await.unwrap().release().await.unwrap();
    let store = RedisStore::builder(group.url()).connect_lazy().unwrap();
    let late = LockClient::builder(store).build().unwrap();
    let error = late.mutex("k").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("3 of 3 sentinels do not answer"), "{error}");
    let locking = tokio::spawn(late.mutex("k").with_wait(ms(10_000)).lock());
    (0..3).for_each(|sentinel| group.proxy(sentinel).turn_away(false));
    let (guard, took) = within("a lock", ms(10_000), locking).await;
    guard.unwrap().unwrap().release().await.unwrap();
    assert!(took < ms(3_000), "{took:?}");
}

/// What watches the sentinels ends with the client.
#[tokio::test]
async fn connections_to_sentinels_end_with_the_client() {
    let _alone = alone().await;
    let group = Sentinels::start(1).await;
    let clients = |sentinel| {
        let list: String = group.ask(sentinel, "CLIENT LIST").unwrap();
        list.lines().filter(|line| line.contains("cmd=subscribe")).count()
    };
    let others = clients(0);
    let client = client(&group.url()).await;
    eventually("each is subscribed", ms(5_000), || {
        (0..3).all(|sentinel| clients(sentinel) == others + 1)
    })
    .await;
    drop(client);
    eventually("none is", ms(5_000), || (0..3).all(|sentinel| clients(sentinel) == others)).await;
}
