//! Claims whose answer comes late, twice or never.

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, LockOptions};
use lock_testkit::{
    Action, Experiment, Gate, Op, Proxy, RedisServer, client, client_with, eventually, ms, within,
};

/// U1: the server executes a claim after the client gave up. simstudioai/sim#6864, #7680;
/// madelson/DistributedLock#191.
#[tokio::test]
async fn a_claim_that_is_executed_after_the_client_gave_up_takes_nothing() {
    let mut experiment = Experiment::new(
        20,
        "a claim behind a pause takes nothing",
        "CLIENT PAUSE WRITE",
        &["claims executed late"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let (before, seen) = (server.script_calls(), proxy.seen(Op::Acquire));
    let paused = Instant::now();
    // The delay is longer than the client waits for the claim, but shorter than it waits for the
    // clean-up. Otherwise the client would close the connection, and the server would drop both.
    let () = server.cli("CLIENT PAUSE 950 WRITE");
    let mutex = client.mutex("k").with_ttl(ms(10_000)).without_wait();
    let (outcome, _) = within("an answer", ms(900), mutex.lock()).await;
    let error = outcome.unwrap_err();
    assert!(error.is_unknown() && !error.is_busy(), "{error:?}");
    assert!(paused.elapsed() < ms(950), "the claim was still on its way");

    let late = || server.script_calls() >= before + 2;
    eventually("claim and clean-up are executed", ms(5_000), late).await;
    assert!(!server.has("lock:k"));
    wait_idle(&client).await;
    drop(client.mutex("k").try_lock().await.unwrap().expect("free"));
    experiment.ran(1);
    // The last claim is the one that takes the lock afterwards.
    experiment.saw("claims executed late", proxy.seen(Op::Acquire) - seen - 1);
    experiment.finish();
}

/// U1, with a wait: the claim is repeated, and no copy of it takes the lock once the wait is over.
#[tokio::test]
async fn a_wait_that_ends_during_a_pause_of_the_server_takes_nothing() {
    let mut experiment = Experiment::new(
        20,
        "a wait that ends in a pause takes nothing",
        "CLIENT PAUSE WRITE",
        &["claims repeated"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    server.load_scripts();
    let (before, seen) = (server.script_calls(), proxy.seen(Op::Acquire));
    let () = server.cli("CLIENT PAUSE 2500 WRITE");
    let mutex = client.mutex("k").with_ttl(ms(60_000)).with_wait(ms(1_000));
    let (outcome, took) = within("an answer", ms(2_400), mutex.lock()).await;
    assert!(outcome.unwrap_err().is_unknown());
    assert!(took >= ms(1_000));
    assert!(proxy.seen(Op::Acquire) >= seen + 2, "the claim was repeated");
    eventually("the server goes on", ms(5_000), || server.script_calls() > before).await;
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
    experiment.ran(1);
    experiment.saw("claims repeated", proxy.seen(Op::Acquire) - seen - 1);
    experiment.finish();
}

/// P7: the reply of an executed claim is lost. simstudioai/sim#6864.
#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_cleaned_up() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let first = client(&proxy.url()).await;
    let lost = proxy.rule(Op::Acquire, Action::LoseReply).once();
    let error = first.mutex("k").with_ttl(ms(60_000)).without_wait().lock().await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    assert_eq!(lost.hits(), 1);
    // The lock is free long before its TTL, without any other client's help.
    let other = client(&server.url()).await;
    let (guard, _) = within("the next owner", ms(5_000), other.mutex("k").lock()).await;
    guard.unwrap().release().await.unwrap();
    wait_idle(&first).await;
    assert!(!server.has("lock:k"));
}

/// P7, with a wait: the same claim is sent again, and is granted once.
#[tokio::test]
async fn a_grant_whose_reply_is_lost_is_found_by_the_repeated_claim() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    for action in [Action::LoseReply, Action::CloseAfter, Action::CloseBefore, Action::LoseRequest]
    {
        let fault = proxy.rule(Op::Acquire, action).once();
        let mutex = client.mutex("k").with_wait(ms(10_000));
        let (guard, _) = within("the lock", ms(10_000), mutex.lock()).await;
        let guard = guard.unwrap();
        assert_eq!(fault.hits(), 1);
        assert!(guard.is_valid());
        guard.release().await.unwrap();
        assert!(!server.has("lock:k"));
        // The clean-up of the unanswered claims may still be under way.
        wait_idle(&client).await;
    }
}

/// The network delivers a claim after the release of its token (redis-py#3847, and the orphans that
/// a plain release leaves). The claim takes nothing.
#[tokio::test]
async fn a_claim_that_arrives_after_its_own_release_takes_nothing() {
    let mut experiment = Experiment::new(
        30,
        "a late claim takes nothing",
        "claim delivered late on another connection",
        &["late deliveries"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let gate = Gate::new();
    let stray = proxy.rule(Op::Acquire, Action::Stray(gate.clone())).once();
    let mutex = client.mutex("k").with_ttl(ms(60_000)).without_wait();
    assert!(mutex.lock().await.unwrap_err().is_unknown());
    assert_eq!(stray.hits(), 1);
    // The client has done all it can, and forgets the token.
    proxy.close_all();
    wait_idle(&client).await;
    let before = server.script_calls();
    gate.open();
    eventually("it arrives", ms(5_000), || server.script_calls() > before).await;
    assert!(!server.has("lock:k"), "it is void half a second after it was sent");
    drop(client.mutex("k").try_lock().await.unwrap().expect("free"));
    experiment.ran(1);
    experiment.saw("late deliveries", stray.hits());
    experiment.finish();
}

/// A dropped claim arrives in time, but on another connection and after its release. It is released
/// again.
#[tokio::test]
async fn a_claim_that_arrives_in_time_but_after_its_release_is_released_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(3_000));
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    let gate = Gate::new();
    let stray = proxy.rule(Op::Acquire, Action::Stray(gate.clone())).once();
    let seen = proxy.seen(Op::Release);
    let mutex = client.mutex("k").with_ttl(ms(60_000));
    let attempt = tokio::spawn(mutex.lock());
    eventually("it is sent", ms(5_000), || stray.hits() == 1).await;
    attempt.abort();
    assert!(attempt.await.unwrap_err().is_cancelled());
    // The black hole that swallowed the claim is gone, so the release takes a new connection.
    assert_eq!(proxy.close_all(), 1);
    eventually("it is released", ms(2_500), || proxy.seen(Op::Release) > seen).await;
    gate.open();
    eventually("it arrives and is granted", ms(2_500), || server.has("lock:k")).await;
    eventually("it is released again", ms(5_000), || !server.has("lock:k")).await;
    wait_idle(&client).await;
}

/// U6, P10: a lease that is over before the caller gets it. node-redlock#296, #299, #369 (F1).
#[tokio::test]
async fn a_lease_counts_from_the_claim_that_was_granted() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for (held, ttl, wait) in [(1_200, 1_000, 10_000), (900, 300, 10_000)] {
        let start = Instant::now();
        let () = server.cli(&format!("SET lock:k foreign NX PX {held}"));
        let mutex = client.mutex("k").with_ttl(ms(ttl)).with_wait(ms(wait)).without_renewal();
        let guard = mutex.lock().await.unwrap();
        let left = guard.remaining();
        let there = server.pttl("lock:k");
        assert!(start.elapsed() >= ms(held - 5), "it waited for the other holder");
        assert!(left > ms(0) && left < ms(ttl), "{left:?}");
        assert!(guard.remaining() <= ms(u64::try_from(there.max(0)).unwrap()), "{there} ms there");
        guard.release().await.unwrap();
    }
}

/// U6: the answer with the grant takes longer than the lease, so the grant is not used.
#[tokio::test]
async fn a_grant_that_arrives_after_its_lease_is_not_used() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    let mutex = client.mutex("k").with_ttl(ms(1_000));

    let slow = proxy.rule(Op::Acquire, Action::DelayReply(ms(1_100))).once();
    let error = mutex.clone().without_wait().lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert_eq!(slow.hits(), 1);

    let slow = proxy.rule(Op::Acquire, Action::DelayReply(ms(1_100))).once();
    let guard = mutex.with_wait(ms(20_000)).lock().await.unwrap();
    assert_eq!(slow.hits(), 1);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
}

/// R5: a queued waiter gets no answers until it gives up. It leaves no ticket, and no lock if it
/// was granted one. redisson#5019.
#[tokio::test]
async fn a_waiter_that_gives_up_without_answers_leaves_no_ticket_and_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    // Nothing expires during the test.
    let defaults = LockOptions::new().with_ttl(ms(60_000)).with_wait(ms(60_000));
    let holder = client_with(&server.url(), defaults).await;
    let third = client_with(&server.url(), defaults).await;
    for granted in [false, true] {
        let gone = client_with(&proxy.url(), defaults).await;
        let guard = holder.mutex("k").lock().await.unwrap();
        // All answers are lost but the first, which says that the claim is queued.
        let unheard = proxy.rule(Op::Acquire, Action::LoseReply).after(1).always();
        let untold = proxy.rule(Op::Message, Action::Vanish).always();
        let waiter = tokio::spawn(gone.mutex("k").with_wait(ms(1_200)).lock());
        eventually("it is queued", ms(1_000), || server.queued("k") == 1).await;
        let next = tokio::spawn(third.mutex("k").lock());
        eventually("the next one is, too", ms(1_000), || server.queued("k") == 2).await;
        let mut guard = Some(guard);
        if granted {
            guard.take().unwrap().release().await.unwrap();
            assert_eq!(server.queued("k"), 1, "the lock went to the waiter that gets no answers");
        }
        let error = waiter.await.unwrap().unwrap_err();
        assert!(error.is_store_failure() && !error.is_busy(), "{error:?}");
        assert!(unheard.hits() >= 1 && !next.is_finished());
        if let Some(guard) = guard {
            eventually("its ticket is gone", ms(2_000), || server.queued("k") == 1).await;
            guard.release().await.unwrap();
        }
        let (guard, took) = within("the lock", ms(10_000), next).await;
        assert!(took < ms(1_000), "{took:?}, granted: {granted}");
        guard.unwrap().unwrap().release().await.unwrap();
        unheard.end();
        untold.end();
        wait_idle(&gone).await;
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    }
}

/// P14: the key holds a value of another type. redisson#6285, redsync#124.
#[tokio::test]
async fn a_key_of_another_type_is_an_error_at_once() {
    let mut experiment =
        Experiment::new(23, "a key of another type is an error", "foreign data", &["refusals"]);
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for (kind, create) in [
        ("list", "RPUSH lock:list precious"),
        ("hash", "HSET lock:hash name precious"),
        ("set", "SADD lock:set precious"),
        ("zset", "ZADD lock:zset 1 precious"),
        ("stream", "XADD lock:stream * name precious"),
    ] {
        drop(server.cli::<redis::Value>(create));
        let dumped: redis::Value = server.cli(&format!("DUMP lock:{kind}"));
        let mutex = client.mutex(kind).with_wait(ms(20_000));
        let (outcome, _) = within("an answer", ms(5_000), mutex.lock()).await;
        for error in [outcome.unwrap_err(), mutex.try_lock().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{kind}");
            experiment.saw("refusals", 1);
        }
        wait_idle(&client).await;
        assert_eq!(server.cli::<redis::Value>(&format!("DUMP lock:{kind}")), dumped, "{kind}");
        experiment.ran(1);
    }
    experiment.finish();
}

/// A server that forgot its scripts (restart, failover, `SCRIPT FLUSH`) gets their text at once. A
/// `SCRIPT LOAD` in between would be one more command that can fail.
#[tokio::test]
async fn forgotten_scripts_are_sent_again_at_once() {
    let mut experiment =
        Experiment::new(22, "callers notice nothing", "SCRIPT FLUSH", &["scripts sent again"]);
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for round in 0..20 {
        let () = server.cli("SCRIPT FLUSH");
        let guard = client.mutex("k").lock().await.unwrap();
        let () = server.cli("SCRIPT FLUSH");
        guard.extend(ms(20_000)).await.unwrap();
        if round % 2 == 0 {
            let () = server.cli("SCRIPT FLUSH");
        }
        guard.release().await.unwrap();
    }
    assert!(server.calls("eval") >= 50);
    assert!(!server.has("lock:k"));
    experiment.ran(20);
    experiment.saw("scripts sent again", server.calls("eval") as usize);
    experiment.finish();
}
