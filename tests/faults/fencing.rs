//! Fencing numbers grow as long as the server keeps its counter or its clock.

use lock_core::fencing::StaleFence;
use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, FencingToken, LockClient};
use lock_testkit::{Experiment, RedisServer, client, ms, set_if_newer, within};

const COUNTER: &str = "lock:{0}:fence";

/// The server's clock is an hour behind its counter, as after a step back or a failover to a slow
/// host.
#[tokio::test]
async fn fencing_numbers_grow_although_the_clock_goes_back() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let first = one.mutex("a").lock().await.unwrap().fencing_token();
    let counter: u64 = server.get(COUNTER).unwrap().parse().unwrap();
    let ahead = counter + 3_600_000_000;
    let () = server.cli(&format!("SET {COUNTER} {ahead}"));
    let mut last = first;
    for (round, client) in [&one, &two, &one, &two].into_iter().enumerate() {
        let guard = client.mutex(format!("b{round}")).lock().await.unwrap();
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        guard.release().await.unwrap();
    }
    assert_eq!(server.get(COUNTER).unwrap(), (ahead + 4).to_string());
}

/// The counter is lost, and the clock is right.
#[tokio::test]
async fn fencing_numbers_grow_although_the_counter_is_lost() {
    let mut experiment = Experiment::new(24, "fences grow", "counter lost", &["counters lost"]);
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let grant = async || {
        let guard = client.mutex("k").lock().await.unwrap();
        let number = guard.fencing_token();
        guard.release().await.unwrap();
        number
    };
    let mut last = grant().await;
    for (foreign, left) in [("DEL", None), ("SET", Some("junk")), ("DEL", None)] {
        assert!(server.get(COUNTER).is_some_and(|counter| counter.parse::<u64>().is_ok()));
        let command = format!("{foreign} {COUNTER} {}", left.unwrap_or_default());
        drop(server.cli::<redis::Value>(command.trim_end()));
        assert_eq!(server.get(COUNTER).as_deref(), left, "it is lost");
        experiment.saw("counters lost", 1);
        let next = grant().await;
        assert!(next > last, "{next:?} after {last:?}");
        last = next;
        experiment.ran(1);
    }
    experiment.finish();
}

/// The check at the start counts, too. It leaves nothing behind, even if it is refused half-way.
#[tokio::test]
async fn a_rejected_check_at_the_start_leaves_no_counter() {
    let server = RedisServer::start();
    let rights = "on >password ~lock:* +eval +evalsha +get +set +del +pttl +time +info";
    let () = server.cli(&format!("ACL SETUSER locker {rights}"));
    for _ in 0..3 {
        let error = RedisStore::connect(server.url_for("locker", "password")).await.unwrap_err();
        assert!(error.to_string().contains("permission"), "PEXPIRE is missing: {error}");
    }
    drop(RedisStore::connect(server.url()).await.unwrap());
    let lasting = || {
        let keys: Vec<String> = server.cli("KEYS *");
        keys.into_iter().filter(|key| server.pttl(key) == -1).collect::<Vec<_>>()
    };
    assert!(server.script_calls() > 3, "it was checked");
    assert_eq!(lasting(), Vec::<String>::new());
}

/// A grant without a number is no grant: the lock stays free, and the error is not "busy".
#[tokio::test]
async fn a_broken_counter_leaves_no_lock_behind() {
    let server = RedisServer::start();
    // A timeout long enough that a late answer on a busy machine does not count as a lost one.
    let store = RedisStore::builder(server.url()).with_request_timeout(ms(10_000));
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    for (command, value) in [
        ("RPUSH lock:{0}:fence precious", None),
        // The last number that a double holds exactly.
        ("SET lock:{0}:fence 9007199254740991", Some("9007199254740991")),
    ] {
        drop(server.cli::<redis::Value>(command));
        for waits in [false, true] {
            let mutex = client.mutex("k").with_ttl(ms(60_000));
            let mutex = if waits { mutex.with_wait(ms(300)) } else { mutex.without_wait() };
            let (outcome, _) = within("an answer", ms(15_000), mutex.lock()).await;
            let error = outcome.unwrap_err();
            assert!(error.is_store_failure(), "{command}: {error:?}");
            // The wait may end between its last claim and the answer.
            if !waits {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{command}: {error:?}");
                assert!(error.to_string().contains("fencing token"), "{command}: {error}");
            }
            wait_idle(&client).await;
            assert!(!server.has("lock:k"), "{command}");
            if let Some(value) = value {
                assert_eq!(server.get(COUNTER).as_deref(), Some(value), "numbers given out count");
            }
        }
        let _: i64 = server.cli("DEL lock:{0}:fence");
    }
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(ClientStats::of(&client).is_idle());
}

/// A paused holder writes after its successor has written, as in every account of fencing.
#[tokio::test]
async fn a_fenced_value_is_not_overwritten_by_a_late_holder() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let redis = redis::Client::open(server.url()).unwrap();
    let mut redis = redis.get_multiplexed_async_connection().await.unwrap();
    let mutex = client.mutex("account").with_ttl(ms(200)).without_renewal();
    let late = mutex.lock().await.unwrap();
    late.lost().await;
    let next = mutex.lock().await.unwrap();
    let mut write = async |value: u32, token| {
        set_if_newer(&mut redis, "balance", "balance:fence", value, token).await.unwrap()
    };
    assert_eq!(write(100, next.fencing_token()).await, Ok(()));
    assert_eq!(write(50, late.fencing_token()).await, Err(StaleFence));
    assert_eq!(write(120, next.fencing_token()).await, Ok(()));
    assert_eq!(server.get("balance").unwrap(), "120");
    // These numbers differ beyond the precision of Lua's numbers, and one has one digit more.
    let beyond = |raw| FencingToken::from_raw(raw);
    assert_eq!(write(1, beyond(1 << 60)).await, Ok(()));
    assert_eq!(write(2, beyond((1 << 60) + 1)).await, Ok(()));
    assert_eq!(write(3, beyond(1 << 60)).await, Err(StaleFence));
    assert_eq!(write(4, beyond(10_000_000_000_000_000_000)).await, Ok(()));
    assert_eq!(write(5, beyond(9_999_999_999_999_999_999)).await, Err(StaleFence));
    assert_eq!(server.get("balance").unwrap(), "4");
}

/// Nothing is written if there is no number to compare.
#[tokio::test]
async fn a_write_without_a_fence_is_rejected() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let redis = redis::Client::open(server.url()).unwrap();
    let mut redis = redis.get_multiplexed_async_connection().await.unwrap();
    let guard = client.mutex("account").lock().await.unwrap();
    let unfenced = client.mutex("other").without_fencing().lock().await.unwrap();
    for (fence, token, why) in [
        ("balance", guard.fencing_token(), "another key"),
        ("balance:fence", unfenced.fencing_token(), "without fencing"),
    ] {
        let error = set_if_newer(&mut redis, "balance", fence, 1, token).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(!server.has("balance") && !server.has("balance:fence"));
}
