//! What is asked together, and what one part of it does to another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::testing::settled;
use lock_core::{LockClient, Released, store::RedisStore};
use lock_tests::{Action, Op, Proxy, RedisServer, client, eventually, ms, within};

/// A release writes before anything that needs memory, after which Redis refuses it nothing.
#[tokio::test]
async fn a_server_without_memory_hands_nothing_on() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for key in ["a", "b", "c"] {
        guards.push(one.mutex(key).lock().await.unwrap());
        waiters.push(tokio::spawn(two.mutex(key).lock()));
        eventually("it is queued", ms(5_000), || server.queued(key) == 1).await;
    }
    let kept = one.mutex("kept").with_min_hold(ms(300)).lock().await.unwrap();
    let () = server.cli("CONFIG SET maxmemory 1");
    let error = one.mutex("new").try_lock().await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_unknown(), "{error:?}");
    assert!(!server.has("lock:new"));
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    assert_eq!(kept.release().await.unwrap(), Released::InTime);
    assert!(server.get("lock:kept").unwrap().starts_with('='), "kept for its `min_hold`");
    for waiter in waiters {
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < ms(500), "{took:?}: not by the release");
        let guard = guard.unwrap().unwrap();
        guard.extend(ms(20_000)).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    let () = server.cli("CONFIG SET maxmemory 0");
    settled(&one).await;
    settled(&two).await;
    eventually("nothing remains", ms(5_000), || server.remains().is_empty()).await;
}

/// A runtime that is kept, but that nobody runs, sends nothing of what others ask on its connection.
#[test]
fn a_runtime_that_nobody_runs_stops_those_of_others() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stopped = runtime();
    let client = stopped.block_on(async {
        let client = client(&server.url()).await;
        drop(client.mutex("k").lock().await.unwrap());
        client
    });
    runtime().block_on(async {
        for key in ["one", "two", "three"] {
            let locked = async { client.mutex(key).try_lock().await };
            let (outcome, took) = within("an answer", ms(10_000), locked).await;
            if let Ok(guard) = outcome {
                drop(guard.unwrap());
                assert!(took < ms(5_000), "{took:?}");
                return;
            }
        }
        panic!("the connection was not replaced");
    });
    drop(stopped);
}

/// Without RESP3 a second connection listens. Where it is not to be had, waiters ask, and nobody else notices.
#[tokio::test]
async fn a_second_connection_that_is_refused_breaks_the_first() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let _old = proxy.rule(Op::Hello, Action::Refuse("NOPROTO unsupported")).always();
    let (one, two) = (client(&proxy.url()).await, client(&proxy.url()).await);
    let refused = proxy.rule(Op::Subscribe, Action::CloseBefore).always();
    let other = two.mutex("other").lock().await.unwrap();
    for _ in 0..3 {
        let guard = one.mutex("k").lock().await.unwrap();
        let waiter = tokio::spawn(two.mutex("k").lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        drop(guard);
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < ms(1_000), "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
    assert!(refused.hits() >= 1, "nobody tried to listen");
    let connections: u64 = server
        .cli::<String>("INFO stats")
        .lines()
        .find_map(|line| {
            line.strip_prefix("total_connections_received:")
                .map(|count| count.trim().parse().unwrap())
        })
        .unwrap();
    assert!(connections < 20, "{connections} connections were made");
    assert_eq!(other.release().await.unwrap(), Released::InTime);
}

/// Clients with namespaces of their own on one store: their claims cannot travel together, and need not.
#[tokio::test]
async fn claims_that_cannot_travel_together_wait_for_each_other() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = Arc::new(RedisStore::connect(proxy.url()).await.unwrap());
    let clients: Vec<_> = (0..40)
        .map(|number| {
            LockClient::builder(Arc::clone(&store))
                .with_namespace(format!("n{number}"))
                .build()
                .unwrap()
        })
        .collect();
    server.load_scripts();
    let slow = proxy.rule(Op::Acquire, Action::DelayReply(ms(50))).once();
    let start = Instant::now();
    let tasks: Vec<_> =
        clients.iter().map(|client| tokio::spawn(client.mutex("k").lock())).collect();
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    let took = start.elapsed();
    assert_eq!(slow.hits(), 1);
    assert!(took < Duration::from_millis(50 * 8), "{took:?}: one after another");
    for client in &clients {
        settled(client).await;
    }
}
