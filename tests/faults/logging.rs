//! What is seen from outside: spans and events that name templates, and no secret anywhere.

use lock_core::{ErrorKind, Key, LockClient, key, store::RedisStore};
use lock_testkit::{Experiment, LogCapture, RedisServer, client, eventually, ms, within};

const PASSWORD: &str = "canary-of-a-password";
const USER: &str = "canary-of-a-user";

#[tokio::test]
async fn logs_and_debug_name_the_template_and_no_value_token_or_password() {
    let mut experiment = Experiment::new(
        36,
        "no secret in logs and Debug",
        "canaries: password, token, key value",
        &["lines of log"],
    );
    let mut server = RedisServer::builder().password(PASSWORD).start();
    let log = LogCapture::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let mutex = client.mutex(key!("order:<USER>"));
    mutex.run(async |_| tracing::info!("in the body")).await.unwrap();

    let guard = mutex.lock().await.unwrap();
    let token = server.get(&format!("lock:order:{USER}")).unwrap();
    let busy = mutex.try_lock().await.unwrap();
    assert!(busy.is_none());
    let seen = format!("{client:?} {mutex:?} {guard:?} {:?}", guard.lease());
    server.kill();
    let gone = client.mutex(key!("other:<USER>")).with_wait(ms(100)).lock().await.unwrap_err();
    let lost = guard.release().await.unwrap_err();
    let wrong = RedisStore::connect(server.url()).await.unwrap_err();
    let bad = Key::new(format!("{{{USER}")).unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::InvalidKey);

    let text = log.text();
    let acquired = text.lines().find(|line| line.contains("lock acquired")).unwrap();
    for part in
        ["lock.acquire{", "order:<USER>", "waited_seconds=", "fence=", "outcome=\"acquired\""]
    {
        assert!(acquired.contains(part), "no `{part}` in {acquired}");
    }
    let body = text.lines().find(|line| line.contains("in the body")).unwrap();
    assert!(!body.contains("lock.held"), "the body's own span is hidden: {body}");
    let ended = text.lines().find(|line| line.contains("body ended")).unwrap();
    for part in ["lock.held{", "order:<USER>", "held_seconds=", "fence=", "outcome=\"done\""] {
        assert!(ended.contains(part), "no `{part}` in {ended}");
    }
    assert!(text.contains("lock released") && text.contains("lock not acquired"));

    let all = format!("{text}{seen}{gone} {gone:?}{lost} {lost:?}{wrong} {wrong:?}{bad} {bad:?}");
    for canary in [PASSWORD, USER, token.as_str()] {
        assert!(!all.contains(canary), "{canary} is shown: {all}");
    }
    experiment.ran(1);
    experiment.saw("lines of log", text.lines().count());
    experiment.finish();
}

/// O1: a key that is a literal or a `String` was `key="-"` in logs, spans, `Debug` and panics.
#[tokio::test]
async fn a_literal_is_its_own_label_and_a_key_of_run_time_text_gets_the_one_it_is_given() {
    let server = RedisServer::start();
    let log = LogCapture::start();
    let client = client(&server.url()).await;
    let given = || Key::new(format!("import-{USER}")).unwrap().with_label("import-<user>");
    let mutexes = [
        ("nightly-report", client.mutex("nightly-report")),
        ("import-<user>", client.mutex(given())),
        ("-", client.mutex(format!("other-{USER}"))),
    ];
    let mut seen = String::new();
    for (label, mutex) in mutexes {
        let from = log.text().len();
        mutex.run(async |_| ()).await.unwrap();
        let guard = mutex.lock().await.unwrap();
        let debug = format!("{mutex:?} {guard:?} {:?}", guard.key());
        assert_eq!(debug.matches(&format!("Key(\"{label}\")")).count(), 3, "{debug}");
        guard.release().await.unwrap();
        drop(mutex.lock().await.unwrap());

        let text = log.text().split_off(from);
        let said = ["lock acquired", "body ended", "lock released", "guard dropped"];
        for (line, said) in said.map(|said| (text.lines().find(|line| line.contains(said)), said)) {
            let line = line.unwrap_or_else(|| panic!("no `{said}` in {text}"));
            assert!(line.contains(&format!("key=\"{label}\"")), "{label}: {line}");
            let field = if said == "lock acquired" { "waited_seconds=" } else { "held_seconds=" };
            let seconds = line.split(field).nth(1).unwrap_or_else(|| panic!("no {field} {line}"));
            let seconds = seconds.split([' ', '}']).next().unwrap();
            assert!(seconds.parse::<f64>().unwrap() > 0.0, "{line}");
        }
        seen += &debug;
    }
    for (label, key) in
        [("nightly-report", Key::new("nightly-report").unwrap()), ("import-<user>", given())]
    {
        let panic = std::panic::catch_unwind(|| lock_core::assert_locked(key)).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(label), "{message}");
        seen += message;
    }
    let all = log.text() + &seen;
    assert!(!all.contains(USER), "a value is shown: {all}");
}

/// O11: a key without an expiry was "busy" for ever, and nothing said why.
#[tokio::test]
async fn a_lock_without_an_expiry_is_logged_once_with_the_remedy() {
    let server = RedisServer::start();
    let log = LogCapture::start();
    let client = client(&server.url()).await;
    let () = server.cli("SET lock:nightly-report by-hand");
    let mutex = client.mutex("nightly-report");
    assert!(mutex.try_lock().await.unwrap().is_none());
    for wait in [ms(100), ms(150)] {
        let error = mutex.clone().with_wait(wait).lock().await.unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("give it an expiry"), "{error:?}");
    }
    let waiter = tokio::spawn(mutex.wait_forever().lock());
    eventually("it is queued", ms(5_000), || server.queued("nightly-report") == 1).await;
    let text = log.text();
    let warnings = text.lines().filter(|line| line.contains("WARN"));
    let lines: Vec<_> = warnings.filter(|line| line.contains("without an expiry")).collect();
    let [line] = *lines else { panic!("{text}") };
    assert!(line.contains("PEXPIRE") && line.contains("key=\"nightly-report\""), "{line}");
    let _: i64 = server.cli("PEXPIRE lock:nightly-report 1");
    within("the lock", ms(5_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
}

/// One warning for each wait and each hold beyond the limits, while the lock is held if it is
/// renewed, else at its release; none below.
#[tokio::test]
async fn long_waits_and_holds_are_one_warning_each() {
    let server = RedisServer::start();
    let client = async |wait, hold| {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let builder = LockClient::builder(store).with_wait_warning(wait).with_hold_warning(hold);
        builder.build().unwrap()
    };
    let log = LogCapture::start();
    let seconds = |part: &str, field: &str| -> Vec<f64> {
        let text = log.text();
        let warnings = text.lines().filter(|line| line.contains("WARN") && line.contains(part));
        let field = format!("{field}=");
        let values = warnings.filter_map(|line| line.split(&field).nth(1)?.split(' ').next());
        values.map(|value| value.parse().unwrap()).collect()
    };
    let waits = || seconds("waited for longer", "waited_seconds");
    let holds = || seconds("held for longer", "held_seconds");

    let patient = client(ms(60_000), ms(60_000)).await;
    patient.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(waits().is_empty() && holds().is_empty(), "{}", log.text());

    let watched = client(ms(60_000), ms(150)).await;
    let guard = watched.mutex("k").with_ttl(ms(1_000)).lock().await.unwrap();
    let impatient = client(ms(100), ms(60_000)).await;
    let waiter = tokio::spawn(impatient.mutex("k").with_wait(ms(20_000)).lock());
    let cancelled = tokio::time::timeout(ms(150), impatient.mutex("k").lock()).await;
    cancelled.unwrap_err();
    assert!(log.text().contains("outcome=\"cancelled\""), "{}", log.text());
    eventually("a renewal tells of the hold", ms(5_000), || holds().len() == 1).await;
    guard.release().await.unwrap();
    within("the lock", ms(20_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
    assert!(waits().len() == 2 && waits().iter().all(|waited| *waited > 0.1), "{}", log.text());
    assert!(holds().len() == 1 && holds()[0] > 0.15, "{}", log.text());

    let guard = watched.mutex("k").without_renewal().lock().await.unwrap();
    tokio::time::sleep(ms(160)).await;
    assert_eq!(holds().len(), 1);
    drop(guard);
    assert!(holds().len() == 2 && holds()[1] > 0.15, "{}", log.text());
}

/// The guard may be the first to notice: the renewer had no time while the runtime was blocked.
#[tokio::test]
async fn a_loss_that_the_guard_notices_itself_is_one_warning() {
    let server = RedisServer::start();
    let log = LogCapture::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").with_ttl(ms(150)).lock().await.unwrap();
    // What a body does that must not.
    std::thread::sleep(ms(300));
    guard.release().await.unwrap();
    let text = log.text();
    let lost = text.lines().filter(|line| line.contains("WARN") && line.contains("lock lost"));
    assert_eq!(lost.count(), 1, "{text}");
}
