//! Functions with the attribute on a real server: dropped in flight, refused, and released once.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions, distributed_lock};
use lock_testkit::{
    Action, LogCapture, Op, Proxy, RedisServer, client, client_with, eventually, ms, within,
};
use tokio::time::timeout;

use crate::ending::{End, OrderError, ending};

#[distributed_lock(key = "order:<user>", client = client, wait = "400ms")]
async fn order(client: &LockClient, user: &str, ran: &AtomicU32) -> Result<u32, OrderError> {
    Ok(ran.fetch_add(1, Ordering::Relaxed) + 1)
}

/// U2, with the macro: dropped while the claim is in flight, and while it waits. redisson#2714,
/// #4368; constructorfabric/gears-rust#4237; llm-d-rl-time-slicing#80.
#[tokio::test]
async fn a_locked_function_dropped_before_its_body_leaves_nothing() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let ran = AtomicU32::new(0);
    server.load_scripts();
    let before = server.script_calls();
    let () = server.cli("CLIENT PAUSE 600");
    timeout(ms(100), order(&client, "7", &ran)).await.unwrap_err();
    wait_idle(&client).await;
    assert!(server.script_calls() > before, "the claim was in flight");
    assert!(!server.has("lock:order:7"));
    assert!(ClientStats::of(&client).is_idle());

    let () = server.cli("SET lock:order:7 foreign PX 60000");
    let before = server.script_calls();
    timeout(ms(200), order(&client, "7", &ran)).await.unwrap_err();
    assert!(server.script_calls() > before, "it was waiting");
    assert_eq!(server.cli::<i64>("DEL lock:order:7"), 1);
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
    assert!(!server.has("lock:order:7"));
    assert_eq!(ran.into_inner(), 0);
}

/// U11, P6, R25: the body does not run without the lock, whatever the reason. Only a held lock is
/// reported as "busy". klock#1, wllock#1, alturkovic/distributed-lock#35; redis-py#621;
/// redisson#2801, #543, #5002.
#[tokio::test]
async fn a_body_never_runs_without_its_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let ran = AtomicU32::new(0);
    let attempt = async |client: &LockClient, user: &str| {
        let kind = match order(client, user, &ran).await.unwrap_err() {
            OrderError::Lock(error) => error.kind(),
            OrderError::SoldOut => panic!("the body ran"),
        };
        let mutex = client.mutex(lock_core::key!("run:<user>")).with_wait(ms(400));
        let error = mutex.run(async |_| ran.fetch_add(1, Ordering::Relaxed)).await.unwrap_err();
        assert_eq!(matches!(kind, ErrorKind::Busy { .. }), error.is_busy(), "{kind:?}, {error:?}");
        assert_eq!(ran.load(Ordering::Relaxed), 0, "{kind:?}");
        kind
    };

    for way in ["order", "run"] {
        let () = server.cli(&format!("SET lock:{way}:held foreign PX 60000"));
        let _: i64 = server.cli(&format!("RPUSH lock:{way}:list precious"));
    }
    assert!(matches!(attempt(&client, "held").await, ErrorKind::Busy { .. }));
    assert_eq!(attempt(&client, "list").await, ErrorKind::WrongType);
    assert_eq!(attempt(&client, "").await, ErrorKind::InvalidKey);

    let refusal = proxy.rule(Op::Acquire, Action::Refuse("NOPERM no permission")).always();
    assert_eq!(attempt(&client, "7").await, ErrorKind::Unavailable);
    assert!(refusal.hits() >= 2);
    refusal.end();
    let lost = proxy.rule(Op::Acquire, Action::LoseReply).always();
    assert_eq!(attempt(&client, "8").await, ErrorKind::Unknown);
    assert!(lost.hits() >= 2, "each was granted, and no answer arrived");
    lost.end();

    let unreachable = RedisStore::builder("redis://127.0.0.1:1/").connect_lazy().unwrap();
    let unreachable = LockClient::builder(unreachable).build().unwrap();
    assert_eq!(attempt(&unreachable, "7").await, ErrorKind::Unavailable);
    server.pause();
    let kind = attempt(&client, "9").await;
    assert!(matches!(kind, ErrorKind::Unknown | ErrorKind::Unavailable), "{kind:?}");
    server.resume();

    wait_idle(&client).await;
    let left = || server.cli::<Vec<String>>("KEYS lock:*:[789]");
    eventually("nothing is left", ms(5_000), || left().is_empty()).await;
    // The counter works.
    assert_eq!(order(&client, "7", &ran).await.unwrap(), 1);
}

/// U12: the lock is released once, before the caller continues. lock4j#28, klock#13.
#[tokio::test]
async fn a_locked_function_releases_exactly_once_however_it_ends() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let before = proxy.seen(Op::Release);
    for (done, end) in End::RETURNS.into_iter().enumerate() {
        let result = client.scope(ending(7, end)).await;
        assert!(!server.has("lock:order:7"), "{end:?}");
        assert_eq!(proxy.seen(Op::Release) - before, done + 1, "{end:?}");
        end.check(result);
    }
    let task = tokio::spawn(client.scope(ending(7, End::Panic)));
    assert!(task.await.unwrap_err().is_panic());
    wait_idle(&client).await;
    assert!(!server.has("lock:order:7"));
    assert_eq!(proxy.seen(Op::Release) - before, 5);
    assert!(ClientStats::of(&client).is_idle());
}

#[distributed_lock(key = "k", client = client)]
async fn killing(
    client: &LockClient,
    server: &mut RedisServer,
    sold: bool,
) -> Result<u32, OrderError> {
    server.kill();
    if sold { Ok(42) } else { Err(OrderError::SoldOut) }
}

/// U8, with the macro: Redis dies before the release. node-redlock#369 (F7), `lock_across` of
/// redis-lock, getlago/lago-api#3413.
#[tokio::test]
async fn a_locked_function_keeps_its_result_when_the_release_fails() {
    for sold in [true, false] {
        let log = LogCapture::start();
        let mut server = RedisServer::start();
        let client = client(&server.url()).await;
        let killing = killing(&client, &mut server, sold);
        let (result, _) = within("the result", ms(10_000), killing).await;
        match result {
            Ok(42) => assert!(sold),
            Err(OrderError::SoldOut) => assert!(!sold),
            other => panic!("{other:?}"),
        }
        assert!(log.contains("WARN", "release not confirmed"), "{}", log.text());
    }
}
