//! Passwords and access control.

use futures_util::FutureExt as _;
use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{ErrorKind, LockClient, LockOptions, Released};
use lock_testkit::{
    Experiment, LogCapture, Op, Proxy, RedisServer, client, documented_user, eventually, ms, within,
};

/// Every command that a client may send.
const COMMANDS: [Op; 8] =
    [Op::Acquire, Op::Renew, Op::Release, Op::Hello, Op::Time, Op::Info, Op::Subscribe, Op::Other];

async fn try_all(url: &str) -> Result<(), lock_core::Error> {
    let store = RedisStore::connect(url).await?;
    let defaults = LockOptions::new().with_wait(ms(300));
    let client = LockClient::builder(store).with_defaults(defaults).build().unwrap();
    let guard = client.mutex("k").lock().await?;
    guard.extend(ms(20_000)).await?;
    assert_eq!(guard.release().await?, Released::InTime);
    let held = client.mutex("k").with_min_hold(ms(100)).lock().await?;
    assert_eq!(held.release().await?, Released::InTime);
    assert!(client.inspect("k").await?.owner.is_some());
    assert!(client.force_release("k").await?.is_some());
    wait_idle(&client).await;
    Ok(())
}

/// Whether the server has granted `right` to `user`.
fn has(server: &RedisServer, user: &str, right: &str) -> bool {
    let users: Vec<String> = server.cli("ACL LIST");
    let start = format!("user {user} ");
    let rights = users.iter().find_map(|line| line.strip_prefix(&start)).unwrap();
    let lists = |wanted: &str| rights.split(' ').any(|granted| granted == wanted);
    // Redis 6.2 lists both EVAL and EVALSHA as most of a category.
    let by_category = right.starts_with("+eval") && lists("+@scripting");
    lists(right) || by_category && !lists(&right.replace('+', "-"))
}

#[tokio::test]
async fn the_documented_permissions_are_enough_and_each_is_needed() {
    let mut experiment = Experiment::new(
        40,
        "the documented permissions are enough",
        "user with these, and with each but one",
        &["users who may all", "users who lack one", "refusals"],
    );
    let server = RedisServer::start();
    let acl = documented_user();
    let user = acl[0];
    let set_user = |rights: &[&str]| {
        let () = server.cli(&format!("ACL SETUSER {user} reset on"));
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(rights);
        let _: () = server.connect().command(&command).unwrap();
    };
    let url = server.url_for(user, "password");
    set_user(&acl);
    try_all(&url).await.unwrap();
    // The text of the scripts is sent, too.
    let () = server.cli("SCRIPT FLUSH");
    try_all(&url).await.unwrap();
    assert_eq!(server.errors("NOPERM"), 0);
    experiment.ran(1);
    let rights: Vec<_> = acl.iter().filter(|right| right.starts_with('+')).copied().collect();
    let may_all = rights.iter().all(|right| has(&server, user, right));
    experiment.saw("users who may all", usize::from(may_all));

    for right in &rights {
        let fewer: Vec<_> = acl.iter().filter(|other| *other != right).copied().collect();
        set_user(&fewer);
        experiment.saw("users who lack one", usize::from(!has(&server, user, right)));
        let () = server.cli("SCRIPT FLUSH");
        let (outcome, _) = within("an answer", ms(5_000), try_all(&url)).await;
        // Without MGET, locks are released one by one; without ZCOUNT, waiters are not counted.
        let optional = [
            "+info",
            "+ping",
            "+hello",
            "+publish",
            "+subscribe",
            "+mget",
            "+zcount",
            "+client|setname",
        ];
        let optional = optional.contains(right);
        match outcome {
            Ok(()) => assert!(optional, "{right} is not needed"),
            Err(error) => {
                assert!(!optional, "without {right}: {error:?}");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "without {right}: {error:?}");
                assert!(error.to_string().contains("permission"), "without {right}: {error:?}");
                experiment.saw("refusals", 1);
            }
        }
        experiment.ran(1);
        let () = server.cli("DEL lock:k");
    }
    experiment.finish();
}

/// StackExchange.Redis#3175, conductor#665: what a client sends of its own accord is denied, and
/// the operator's log fills with it.
#[tokio::test]
async fn the_documented_permissions_leave_nothing_in_the_acl_log() {
    let server = RedisServer::start();
    let acl = documented_user();
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(&acl);
    let () = server.connect().command(&command).unwrap();
    let url = server.url_for(acl[0], "password");
    for protocol in ["resp3", "resp2"] {
        let url = format!("{url}?protocol={protocol}");
        let (one, two) = (client(&url).await, client(&url).await);
        server.reset_calls();
        let guard = one.mutex("k").with_ttl(ms(600)).lock().await.unwrap();
        eventually("it is renewed", ms(5_000), || server.calls("pexpire") > 0).await;
        let waiter = tokio::spawn(two.mutex("k").wait_forever().lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        assert_eq!(one.inspect("k").await.unwrap().waiting, Some(1));
        let problems = one.health().await.unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
        let guard = waiter.await.unwrap().unwrap();
        guard.extend(ms(20_000)).await.unwrap();
        assert!(one.force_release("k").await.unwrap().is_some());
        drop(guard);
        wait_idle(&one).await;
        wait_idle(&two).await;
    }
    // A list and a database with a number need more, as the documentation says.
    let () = server.cli(&format!("ACL SETUSER {} +scan +select", acl[0]));
    assert!(client(&format!("{url}1")).await.list(10).await.unwrap().entries.is_empty());
    let denied: Vec<Vec<String>> = server.cli("ACL LOG");
    assert!(denied.is_empty(), "{denied:?}");
}

/// The account's permissions predate the queues, and the client does not check at its start: claims
/// are refused, and nothing stays locked.
#[tokio::test]
async fn a_missing_permission_leaves_no_lock_behind() {
    let mut experiment = Experiment::new(
        40,
        "nothing is left locked",
        "permission missing within a script",
        &["refusals"],
    );
    let server = RedisServer::start();
    let acl = documented_user();
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(acl.iter().filter(|right| **right != "+exists"));
    let () = server.connect().command(&command).unwrap();
    let store = RedisStore::builder(server.url_for(acl[0], "password")).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let () = server.cli("SET lock:{0}:fence 1999999999000000");
    server.reset_calls();
    let error = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert!(error.to_string().contains("permission"), "{error:?}");
    assert_eq!(server.calls("set"), 0, "nothing was counted, or locked even for a moment");
    assert!(!server.has("lock:k"));
    assert_eq!(server.get("lock:{0}:fence").as_deref(), Some("1999999999000000"), "set back");
    wait_idle(&client).await;
    // Redis joins equal entries.
    let refusals: Vec<redis::Value> = server.cli("ACL LOG");
    experiment.ran(1);
    experiment.saw("refusals", refusals.len());
    experiment.finish();
}

/// Each version words its refusals in its own way.
#[tokio::test]
async fn missing_permissions_are_named_whatever_the_words_of_the_server() {
    let mut experiment = Experiment::new(
        40,
        "what is missing is named",
        "user without a command, the keys, the channels; renamed command",
        &["refusals", "unknown commands"],
    );
    let server = RedisServer::builder().config("rename-command ZPOPMIN hidden").start();
    let lazy = |url: &str| {
        let store = RedisStore::builder(url).connect_lazy().unwrap();
        LockClient::builder(store).with_namespace("shop").build().unwrap()
    };
    let client = lazy(&server.url().replace("redis://", "redis://jo:pw@"));
    let cases: [(&str, &[&str]); 6] = [
        ("~shop:* resetchannels &shop:* +@all", &[]),
        ("~shop:* resetchannels &shop:* +@all -zadd -zcount", &["+zadd", "+zcount"]),
        ("~lock:* resetchannels &shop:* +@all", &["~shop:*"]),
        ("~shop:* resetchannels &lock:* +@all", &["&shop:*"]),
        ("~lock:* resetchannels &lock:* +@all -mget", &["~shop:*", "+mget", "&shop:*"]),
        ("~shop:* resetchannels &shop:* +@all -evalsha -publish", &["+evalsha", "+publish"]),
    ];
    for (rights, rules) in cases {
        let () = server.cli(&format!("ACL SETUSER jo reset on >pw {rights}"));
        server.reset_calls();
        let missing = client.missing_permissions().await.unwrap();
        assert_eq!(missing.rules, rules, "with {rights}");
        assert_eq!(missing.unknown_commands, ["zpopmin"], "with {rights}");
        experiment.saw("refusals", usize::try_from(server.errors("NOPERM")).unwrap());
        experiment.saw("unknown commands", missing.unknown_commands.len());
        experiment.ran(1);
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    experiment.finish();
}

/// NOPERM on the keys: the user has another namespace.
#[tokio::test]
async fn a_namespace_without_permission_is_an_error_at_once() {
    let mut experiment = Experiment::new(
        40,
        "an error of the right kind, at once",
        "a namespace that the user has no permission for",
        &["refusals"],
    );
    let server = RedisServer::start();
    let mut command = vec!["ACL", "SETUSER"];
    let acl = documented_user();
    command.extend(&acl);
    let () = server.connect().command(&command).unwrap();
    let store = RedisStore::connect(server.url_for(acl[0], "password")).await.unwrap();
    let client = LockClient::builder(store).with_namespace("shop").build().unwrap();
    server.reset_calls();
    let mutex = client.mutex("k").with_wait(ms(20_000));
    let (outcome, _) = within("an answer", ms(3_000), mutex.lock()).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("permission"), "{error:?}");
    assert!(server.cli::<Vec<String>>("KEYS shop:*").is_empty());
    let refusals = server.errors("NOPERM");
    assert!(refusals < 5, "asked {refusals} times");
    experiment.ran(1);
    experiment.saw("refusals", usize::try_from(refusals).unwrap());
    experiment.finish();
}

/// NOPERM on the calls themselves: a refused claim did nothing, so no clean-up follows.
#[tokio::test]
async fn a_call_that_is_not_permitted_needs_no_release() {
    let server = RedisServer::start();
    let acl = documented_user();
    for lacking in [&["+evalsha"][..], &["+eval"], &["+evalsha", "+eval"]] {
        let () = server.cli(&format!("ACL SETUSER {} reset on", acl[0]));
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(acl.iter().filter(|right| !lacking.contains(right)));
        let () = server.connect().command(&command).unwrap();
        let proxy = Proxy::to(&server);
        // This makes the server require the text, too.
        let () = server.cli("SCRIPT FLUSH");
        let user = format!("redis://{}:password@", acl[0]);
        let store = RedisStore::builder(proxy.url().replace("redis://", &user));
        let client = LockClient::builder(store.connect_lazy().unwrap()).build().unwrap();
        let () = server.cli("ACL LOG RESET");
        server.reset_calls();
        let mutex = client.mutex("k").with_ttl(ms(60_000)).with_wait(ms(20_000));
        let sent = || COMMANDS.map(|op| proxy.seen(op)).iter().sum::<usize>();
        for _ in 0..2 {
            let (outcome, _) = within("an answer", ms(3_000), mutex.lock()).await;
            let (at_once, _) = within("an answer", ms(3_000), mutex.try_lock()).await;
            for error in [outcome.unwrap_err(), at_once.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "without {lacking:?}: {error:?}");
                assert!(error.to_string().contains("permission"), "without {lacking:?}: {error:?}");
            }
            assert!(ClientStats::of(&client).is_idle(), "{:?}", ClientStats::of(&client));
            assert!(
                wait_idle(&client).now_or_never().is_some(),
                "without {lacking:?}: it cleans up"
            );
        }
        let (before, refused) = (sent(), server.errors("NOPERM"));
        assert_eq!(refused, 4, "each claim is sent once");
        assert_eq!(proxy.seen(Op::Release), 0);
        // Longer than the client takes to repeat a release.
        tokio::time::sleep(ms(700)).await;
        assert_eq!((sent(), server.errors("NOPERM")), (before, refused), "something is sent still");
        let refusals: Vec<redis::Value> = server.cli("ACL LOG");
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    }
}

#[tokio::test]
async fn a_wrong_password_is_an_error_that_does_not_show_it() {
    let mut experiment = Experiment::new(
        40,
        "a clean error that does not show it",
        "wrong password, no password",
        &["refusals"],
    );
    let log = LogCapture::start();
    let server = RedisServer::builder().password("hunter2").start();
    let wrong = server.url().replace("hunter2", "swordfish");
    let missing = server.url().replace(":hunter2@", "");
    for (url, code) in [(wrong, "WRONGPASS"), (missing, "NOAUTH")] {
        let before = server.errors(code);
        let (outcome, _) = within("an answer", ms(5_000), RedisStore::connect(&url)).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("password"), "{error}");
        let store = RedisStore::builder(&url).connect_lazy().unwrap();
        let client = LockClient::builder(store).build().unwrap();
        let (outcome, _) = within("an answer", ms(1_000), client.mutex("k").try_lock()).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let refusals = server.errors(code) - before;
        assert!(refusals >= 2, "{refusals} {code}");
        experiment.saw("refusals", usize::try_from(refusals).unwrap());
        experiment.ran(1);
        for text in [format!("{error:?} {error}"), format!("{client:?}"), log.text()] {
            assert!(!text.contains("swordfish") && !text.contains("hunter2"), "{text}");
        }
    }
    let store = RedisStore::connect(server.url()).await.unwrap();
    let client = LockClient::builder(store).build().unwrap();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(!log.text().contains("hunter2"));
    experiment.finish();
}
