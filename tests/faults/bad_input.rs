//! Bad input gets an error that names the problem, at once, and nothing is sent.

use std::error::Error as _;
use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{ConfigError, Error, ErrorKind, Key, LockClient, LockOptions};
use lock_testkit::{Action, Op, Proxy, RedisServer, client, ms, within};

/// U10, P11: a TTL or wait of zero, of less than a millisecond, or without end. rslock 30c363c,
/// bsm.
#[tokio::test]
async fn durations_out_of_bounds_are_rejected_by_name_and_nothing_is_sent() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.reset_calls();
    let mutex = client.mutex("k");
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(500),
        Duration::from_millis(i64::MAX as u64),
        Duration::from_millis(u64::MAX),
        Duration::MAX,
    ];
    for bad in bad {
        let refused = [
            ("ttl", mutex.clone().with_ttl(bad)),
            ("wait", mutex.clone().with_wait(bad)),
            ("max_hold", mutex.clone().with_max_hold(bad)),
            ("min_hold", mutex.clone().with_min_hold(bad)),
        ];
        for (field, mutex) in refused {
            let error = mutex.lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions);
            assert!(error.to_string().contains(&format!("`{field}`")), "{error}");
            // `try_lock` does not wait, so it does not check this option.
            if field != "wait" {
                let error = mutex.try_lock().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidOptions);
            }
        }
    }
    for short in [ms(1), ms(99)] {
        let error = mutex.clone().with_ttl(short).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    }
    let twisted = mutex.clone().with_min_hold(ms(20)).with_max_hold(ms(10));
    assert!(twisted.lock().await.unwrap_err().to_string().contains("`min_hold`"));
    assert_eq!(server.script_calls(), 0);

    let guard = mutex.with_ttl(ms(86_400_000)).with_wait(ms(1)).lock().await.unwrap();
    assert_eq!(guard.extend(Duration::MAX).await.unwrap_err().kind(), ErrorKind::InvalidOptions);
    assert_eq!(guard.extend(ms(0)).await.unwrap_err().kind(), ErrorKind::InvalidOptions);
    assert!(server.pttl("lock:k") > 86_000_000);
    guard.release().await.unwrap();
}

/// P12: empty keys, and keys that break another rule. strapi-redcron#2.
#[tokio::test]
async fn bad_keys_are_rejected_and_nothing_is_sent() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.reset_calls();
    for bad in [String::new(), "{tag}".to_owned(), "{".to_owned(), "k".repeat(10_000)] {
        for outcome in [
            client.mutex(&bad).lock().await.map(drop),
            client.mutex(&bad).try_lock().await.map(drop),
            client.mutex(&bad).run(async |_| panic!("the body must not run")).await,
            client.mutex(Key::new(bad)).lock().await.map(drop),
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey, "{error:?}");
            assert!(!error.is_busy() && !error.is_retryable());
        }
    }
    assert_eq!(server.script_calls(), 0);
    assert!(server.cli::<Vec<String>>("KEYS *").is_empty());
}

#[tokio::test]
async fn errors_about_bad_settings_name_the_field() {
    let field = |error: ConfigError| error.field();
    for url in
        ["", "127.0.0.1", "http://127.0.0.1", "redis://", "redis://127.0.0.1:notaport", "redis:\0"]
    {
        let outcome = RedisStore::builder(url).connect_lazy();
        if url != "redis://" {
            assert_eq!(outcome.map_err(field).unwrap_err(), "url", "{url}");
            let error = RedisStore::connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions);
            assert_eq!(error.config_error().map(ConfigError::field), Some("url"));
            assert!(error.to_string().starts_with("`url` is not a redis URL"), "{error}");
        }
    }
    for bad in [ms(0), Duration::MAX] {
        let builder = || RedisStore::builder("redis://127.0.0.1");
        let request = builder().with_request_timeout(bad).connect_lazy();
        assert_eq!(field(request.unwrap_err()), "request_timeout");
        let connect = builder().with_connect_timeout(bad).connect_lazy();
        assert_eq!(field(connect.unwrap_err()), "connect_timeout");
    }
    let server = RedisServer::start();
    for namespace in ["", "a{b", "b}", &"n".repeat(65)] {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let outcome = LockClient::builder(store).with_namespace(namespace).build();
        assert_eq!(field(outcome.unwrap_err()), "namespace");
    }
    let store = RedisStore::connect(server.url()).await.unwrap();
    let zero = LockOptions::new().with_ttl(ms(0));
    assert_eq!(field(LockClient::builder(store).with_defaults(zero).build().unwrap_err()), "ttl");
}

/// O6: `anyhow`'s `{:#}` and every other printer of a chain of errors repeats the cause.
#[tokio::test]
async fn no_message_in_a_chain_of_errors_repeats_another() {
    /// The messages, from the error to its last cause.
    fn chain(error: &Error) -> Vec<String> {
        let mut messages = vec![error.to_string()];
        let mut next = error.source();
        while let Some(error) = next {
            messages.push(error.to_string());
            next = error.source();
        }
        messages
    }

    let mut server = RedisServer::builder().password("correct").start();
    let proxy = Proxy::to(&server);
    let url = proxy.url().replace("redis://", "redis://:correct@");
    let hasty = RedisStore::builder(url).with_request_timeout(ms(50)).connect_lazy().unwrap();
    let client = LockClient::builder(hasty).build().unwrap();
    let lock = async |mutex: lock_core::Mutex| mutex.with_wait(ms(100)).lock().await.unwrap_err();
    let mut errors = vec![
        ("URL", RedisStore::connect("http://127.0.0.1").await.unwrap_err()),
        ("URL", RedisStore::connect("redis://127.0.0.1:none").await.unwrap_err()),
        ("password", RedisStore::connect(server.url().replace("correct", "no")).await.unwrap_err()),
        ("option", lock(client.mutex("k").with_ttl(ms(1))).await),
        ("key", lock(client.mutex("")).await),
    ];
    let () = server.cli("RPUSH lock:list item");
    errors.push(("type", lock(client.mutex("list")).await));
    let guard = client.mutex("held").lock().await.unwrap();
    errors.push(("busy", lock(client.mutex("held")).await));
    guard.release().await.unwrap();
    for (what, action) in [
        ("silence", Action::LoseReply),
        ("refusal", Action::Refuse("LOADING Redis is loading the dataset in memory")),
        ("refusal", Action::Refuse("OOM command not allowed")),
        (
            "refusal",
            Action::Refuse("NOPERM this user has no permissions to run the 'evalsha' command"),
        ),
    ] {
        let rule = proxy.rule(Op::Acquire, action).always();
        errors.push((what, lock(client.mutex("k")).await));
        assert!(rule.hits() > 0, "{what}: no claim met the fault");
        proxy.reset();
        // After a refusal that tells of a wrong server, the next dial comes after a pause.
        drop(client.mutex("k").with_wait(ms(10_000)).lock().await.unwrap());
    }
    let url = server.url();
    server.kill();
    errors.push(("refused connection", RedisStore::connect(url).await.unwrap_err()));

    for (what, error) in errors {
        let messages = chain(&error);
        for (at, message) in messages.iter().enumerate() {
            let repeated = messages[..at].iter().find(|above| above.contains(message.as_str()));
            assert_eq!(repeated, None, "{what}: {}", messages.join(": "));
        }
    }
}

/// No client installed. (No test of this binary installs one.)
#[tokio::test]
async fn a_missing_default_client_is_an_error() {
    use lock_core::private;
    let client = private::installed();
    let entered = private::acquire(client, Key::new("k"), private::options()).await;
    assert_eq!(entered.unwrap_err().kind(), ErrorKind::NoClient);
}

/// The server is not a primary.
#[tokio::test]
async fn a_replica_is_rejected_at_the_start_and_by_each_lock() {
    let server = RedisServer::start();
    let used = client(&server.url()).await;
    let held = used.mutex("held").with_ttl(ms(1_000)).lock().await.unwrap();
    let () = server.cli("REPLICAOF 127.0.0.1 1");

    let error = RedisStore::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");

    let waiting = used.mutex("k").with_wait(ms(300)).lock();
    let (outcome, _) = within("an answer", ms(1_500), waiting).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");
    let error = used.mutex("k").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let (reason, _) = within("the loss", ms(5_000), held.lost()).await;
    assert_eq!(reason, lock_core::LostReason::Expired);

    let () = server.cli("REPLICAOF NO ONE");
    used.mutex("k").lock().await.unwrap().release().await.unwrap();
}
