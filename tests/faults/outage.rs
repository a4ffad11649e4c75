//! An unreachable store: callers get the error in time, and it is never "busy".

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions};
use lock_testkit::{
    Action, Experiment, Op, Proxy, RedisServer, client, eventually, is_due, ms, within,
};

/// Extra time for a loaded machine.
const SLACK: u64 = 600;

/// R25: Redis is stopped, or answers after ten seconds. redisson#2801, #543, #5002.
#[tokio::test]
async fn a_wait_on_a_silent_store_ends_in_time_and_is_not_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    server.pause();
    let mutex = client.mutex("k");
    let attempts = [
        (mutex.clone().without_wait(), 500),
        (mutex.clone().with_wait(ms(200)), 200),
        (mutex.clone().with_wait(ms(2_000)), 2_000),
    ];
    for (mutex, limit) in attempts {
        let behind = tokio::spawn(mutex.clone().with_wait(ms(limit)).lock());
        let (outcome, _) = within("an answer", ms(limit + SLACK), mutex.lock()).await;
        let error = outcome.unwrap_err();
        assert!(error.is_store_failure() && !error.is_busy(), "{limit} ms: {error:?}");
        let (outcome, _) = within("an answer", ms(limit + SLACK), behind).await;
        let error = outcome.unwrap().unwrap_err();
        assert!(error.is_store_failure() && !error.is_busy(), "{limit} ms, behind: {error:?}");
    }
    server.resume();
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
    assert!(ClientStats::of(&client).is_idle());
}

/// R25, with a server that answers late.
#[tokio::test]
async fn a_wait_on_a_slow_store_ends_in_time_and_is_not_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let slow = proxy.rule(Op::Acquire, Action::DelayReply(ms(10_000))).always();
    for limit in [200, 2_000] {
        let mutex = client.mutex("k").with_wait(ms(limit));
        let (outcome, _) = within("an answer", ms(limit + SLACK), mutex.lock()).await;
        assert!(outcome.unwrap_err().is_unknown());
    }
    assert!(slow.hits() >= 2);
}

/// U10: the server is down. The client neither loops, panics nor opens a storm of connections.
/// rslock 30c363c, redlock-rs#11.
#[tokio::test]
async fn a_server_that_closes_all_connections_gets_few_attempts() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    proxy.turn_away(true);
    assert_eq!(proxy.close_all(), 1);
    // The command on the closed connection may have been executed, as far as the client knows.
    assert!(client.mutex("first").try_lock().await.unwrap_err().is_store_failure());
    let before = proxy.connections();
    let waiters: Vec<_> = (0..20)
        .map(|key| tokio::spawn(client.mutex(format!("k{key}")).with_wait(ms(2_000)).lock()))
        .collect();
    for waiter in waiters {
        let (outcome, _) = within("an answer", ms(2_000 + SLACK), waiter).await;
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    }
    let dialled = proxy.connections() - before;
    assert!((2..=40).contains(&dialled), "{dialled} connections in 2 s");

    proxy.turn_away(false);
    let (guard, _) = within("the lock", ms(10_000), client.mutex("k").lock()).await;
    guard.unwrap().release().await.unwrap();
}

/// A refused connection is an error: at once without a wait, within the wait otherwise. It never
/// panics.
#[tokio::test]
async fn a_refused_connection_is_unavailable() {
    let url = {
        let mut server = RedisServer::start();
        server.kill();
        server.url()
    };
    let (outcome, _) = within("an answer", ms(5_000), RedisStore::connect(&url)).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1"), "{error}");

    let store = RedisStore::builder(&url).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let (outcome, _) = within("an answer", ms(1_000), client.mutex("k").try_lock()).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    let waiting = client.mutex("k").with_wait(ms(400)).lock();
    let (outcome, took) = within("an answer", ms(400 + SLACK), waiting).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took >= ms(395));
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
}

/// The server accepts connections and never answers.
#[tokio::test]
async fn a_silent_server_is_unavailable_within_the_wait() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    proxy.ignore_new(true);
    let store = RedisStore::builder(proxy.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let waiting = client.mutex("k").with_wait(ms(300)).lock();
    let (outcome, _) = within("an answer", ms(300 + SLACK), waiting).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    let (outcome, _) = within("an answer", ms(1_500 + SLACK), client.mutex("k").try_lock()).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(proxy.connections() >= 1);

    proxy.ignore_new(false);
    let (guard, _) = within("the lock", ms(10_000), client.mutex("k").lock()).await;
    guard.unwrap().release().await.unwrap();
}

/// The server dies while a lock is held and comes back empty. The holder learns of the loss, and
/// the next number is larger.
#[tokio::test]
async fn a_server_that_restarts_empty_under_a_holder_is_a_loss() {
    let mut experiment = Experiment::new(
        24,
        "the loss is reported, the next fence is larger",
        "kill -9, restart without persistence",
        &["losses"],
    );
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let mutex = client.mutex("k").with_ttl(ms(3_000)).with_wait(ms(20_000));
    let guard = mutex.lock().await.unwrap();
    server.kill();
    server.boot();
    let (reason, _) = within("the loss", ms(5_000), guard.lost()).await;
    assert_eq!(reason, lock_core::LostReason::Gone);
    experiment.saw("losses", 1);
    let next = mutex.lock().await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
    experiment.ran(1);
    experiment.finish();
}

/// A release that could not be sent is sent when the server is back, long before the TTL.
#[tokio::test]
async fn a_release_during_an_outage_is_sent_afterwards() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let awaited = client.mutex("awaited").with_ttl(ms(60_000)).lock().await.unwrap();
    let dropped = client.mutex("dropped").with_ttl(ms(60_000)).lock().await.unwrap();
    proxy.cut();
    let start = Instant::now();
    drop(dropped);
    let (outcome, _) = within("an answer", ms(5_000), awaited.release()).await;
    assert!(outcome.unwrap_err().is_store_failure());
    assert_eq!(ClientStats::of(&client).pending, 2);
    assert!(server.has("lock:awaited") && server.has("lock:dropped"));
    proxy.heal();
    let gone = || !server.has("lock:awaited") && !server.has("lock:dropped");
    eventually("both are free", ms(10_000), gone).await;
    wait_idle(&client).await;
    assert!(start.elapsed() < ms(30_000));
}

/// The lock is granted to a waiter that is cut off. The waiter does not know whether it got the
/// lock, and releases it.
#[tokio::test]
async fn a_claim_of_a_waiter_that_is_cut_off_is_in_doubt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, client) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let mutex = client.mutex("k").with_ttl(ms(60_000)).with_wait(ms(600));
    let waiter = tokio::spawn(mutex.lock());
    eventually("it has a place", ms(2_000), || server.queued("k") == 1).await;
    // The client has noticed.
    tokio::time::sleep(ms(100)).await;

    // The server takes the connection for alive, so it grants the lock.
    proxy.cut();
    proxy.turn_away(true);
    guard.release().await.unwrap();
    assert!(server.has("lock:k") && server.queued("k") == 0, "it was not handed on");
    assert!(proxy.close_all() > 0);
    let (outcome, _) = within("an answer", ms(600 + SLACK), waiter).await;
    assert_eq!(outcome.unwrap().unwrap_err().kind(), ErrorKind::Unknown);

    proxy.turn_away(false);
    proxy.heal();
    within("all is settled", ms(10_000), wait_idle(&client)).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// A server that is loading executed nothing, neither for the first waiter nor for the next one,
/// which continues with the first one's token.
#[tokio::test]
async fn a_rejected_claim_is_not_in_doubt_for_the_next_waiter() {
    let mut rounds = Vec::new();
    let are_known = |rounds: &[([ErrorKind; 2], usize)]| {
        rounds.iter().any(|(kinds, refused)| *kinds == [ErrorKind::Unavailable; 2] && *refused > 2)
    };
    // One more round if the last claim of a waiter was under way when its wait ended.
    while rounds.len() < 2 && !are_known(&rounds) {
        rounds.push(refused_to_two_waiters().await);
    }
    assert!(are_known(&rounds), "{rounds:?}");
}

/// The errors of two waiters, one behind the other, whose claims are refused, and the number of
/// refused calls. The last claim of a waiter may be under way when the wait ends. Then its outcome
/// is unknown.
async fn refused_to_two_waiters() -> ([ErrorKind; 2], usize) {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, client) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    // A claim that finds the lock taken enters the queue at once.
    let mut looks = 0;
    while !client.mutex("k").with_wait(ms(200)).lock().await.unwrap_err().is_busy() {
        looks += 1;
        assert!(is_due(looks, 1, false), "it is taken");
    }
    wait_idle(&client).await;
    guard.release().await.unwrap();

    let loading = Action::Refuse("LOADING Redis is loading the dataset in memory");
    let refused = proxy.rule(Op::Acquire, loading).always();
    let waiters = [300, 600].map(|wait| tokio::spawn(client.mutex("k").with_wait(ms(wait)).lock()));
    let mut kinds = [ErrorKind::Unavailable; 2];
    for (waiter, kind) in waiters.into_iter().zip(&mut kinds) {
        let (outcome, _) = within("an answer", ms(600 + SLACK), waiter).await;
        let error = outcome.unwrap().unwrap_err();
        assert!(error.is_store_failure(), "{error:?}");
        *kind = error.kind();
    }
    let calls = refused.hits();
    refused.end();
    wait_idle(&client).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    (kinds, calls)
}

/// `drain` during a renewal, with a store that does not answer.
#[tokio::test]
async fn a_drain_ends_in_time_whatever_the_store_does() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let defaults = LockOptions::new().with_ttl(ms(3_000));
    let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
    let slow = proxy.rule(Op::Renew, Action::DelayReply(ms(450))).once();
    let mutex = client.mutex("k");
    let body = tokio::spawn(async move { mutex.run(|_| std::future::pending::<()>()).await });
    eventually("a renewal is under way", ms(5_000), || slow.hits() == 1).await;
    let (drained, _) = within("the drain", ms(2_000), client.drain(ms(300))).await;
    let (outcome, _) = within("the body's end", ms(2_000), body).await;
    let error = outcome.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(drained.held, 0);
    assert_eq!(client.mutex("k").lock().await.unwrap_err().kind(), ErrorKind::Draining);
}

/// A handshake takes longer than the callers wait. Each of them gives up, but the connection is
/// completed.
#[tokio::test]
async fn a_slow_handshake_is_shared_by_its_callers() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let slow = proxy.rule(Op::Hello, Action::DelayReply(ms(120))).always();
    let store = RedisStore::builder(proxy.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let mutex = client.mutex("k").with_wait(ms(60));
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let start = Instant::now();
    let guard = loop {
        match mutex.lock().await {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_store_failure(), "{error}"),
        }
        assert!(start.elapsed() < ms(10_000), "never connected");
    };
    assert!(slow.hits() > 0);
    assert_eq!(proxy.connections(), 1, "one connection served them all");
    guard.release().await.unwrap();
}
