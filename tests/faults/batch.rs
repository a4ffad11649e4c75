//! Claims that travelled in one call when that call fails: each caller gets exactly what is known
//! about its own claim.

use futures_util::future::join_all;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{Error, ErrorKind, LockClient, LockOptions, MutexGuard, store::RedisStore};
use lock_testkit::{Action, Op, Proxy, RedisServer, Rule, eventually, ms, within};

/// How many claims travel in one call.
const MANY: usize = 6;

type Outcomes = Vec<Result<MutexGuard, Error>>;

/// A client with long timeouts, so that a late answer on a busy machine does not count as a lost
/// one.
async fn patient(url: &str) -> LockClient {
    let store = RedisStore::builder(url).with_request_timeout(ms(2_000)).connect().await.unwrap();
    let defaults = LockOptions::new().with_ttl(ms(60_000));
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}

/// Makes `client` claim a free lock, and at the same time the locks of [`keys`]. The first claim
/// finds no call under way and travels alone. The others are batched behind it.
async fn claim(client: &LockClient, options: LockOptions) -> (Result<MutexGuard, Error>, Outcomes) {
    let lock = |key| client.mutex(key).with_options(options).lock();
    let all = std::iter::once("first".to_owned()).chain(keys()).map(lock);
    let (mut outcomes, _) = within("answers", ms(20_000), join_all(all)).await;
    (outcomes.remove(0), outcomes)
}

fn keys() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("k{number}"))
}

/// A rule for the call that carries the batch.
fn on_the_call(proxy: &Proxy, action: Action) -> Rule {
    proxy.rule(Op::Acquire, action).after(1).once()
}

fn kinds(outcomes: &Outcomes) -> Vec<ErrorKind> {
    outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().kind()).collect()
}

/// The failed claims leave nothing behind once the server is reachable again.
async fn nothing_is_left(server: &RedisServer, proxy: &Proxy, client: &LockClient) {
    proxy.turn_away(false);
    within("all is settled", ms(20_000), wait_idle(client)).await;
    assert!(ClientStats::of(client).is_idle(), "{:?}", ClientStats::of(client));
    eventually("nothing is left", ms(5_000), || server.leftovers().is_empty()).await;
}

const TRY: LockOptions = LockOptions::new().without_wait();
const WAIT: LockOptions = LockOptions::new().with_wait(ms(1_500));

/// The connection breaks before or after the call is executed. The client cannot know which, so
/// every claim in it is in doubt.
#[tokio::test]
async fn a_call_that_is_cut_off_leaves_all_its_claims_in_doubt() {
    for action in [Action::CloseAfter, Action::CloseBefore] {
        for options in [TRY, WAIT] {
            let server = RedisServer::start();
            let proxy = Proxy::to(&server);
            let client = patient(&proxy.url()).await;
            // A later attempt that is certainly not sent must not hide what the first attempt may
            // have done.
            proxy.turn_away(true);
            let cut = on_the_call(&proxy, action.clone());
            let (first, others) = claim(&client, options).await;
            assert_eq!((cut.hits(), cut.locks()), (1, MANY), "they did not travel together");
            assert_eq!(kinds(&others), [ErrorKind::Unknown; MANY], "{action:?} {options:?}");
            // The answer may have come before the connection ended.
            drop(first);
            nothing_is_left(&server, &proxy, &client).await;
        }
    }
}

/// A claim that was certainly not sent did nothing.
#[tokio::test]
async fn claims_that_are_not_sent_are_not_in_doubt() {
    for options in [TRY, WAIT] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = patient(&proxy.url()).await;
        proxy.turn_away(true);
        assert_eq!(proxy.close_all(), 1);
        // By then the client knows that the connection is gone.
        assert!(client.mutex("before").try_lock().await.unwrap_err().is_store_failure());
        let seen = proxy.seen(Op::Acquire);
        let (first, others) = claim(&client, options).await;
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Unavailable, "{options:?}");
        assert_eq!(kinds(&others), [ErrorKind::Unavailable; MANY], "{options:?}");
        assert_eq!(proxy.seen(Op::Acquire), seen, "something was sent");
        nothing_is_left(&server, &proxy, &client).await;
    }
}

/// If the server says that it did nothing, all callers believe it and no release is sent.
#[tokio::test]
async fn claims_of_a_rejected_call_are_not_in_doubt() {
    for (options, why) in [
        (TRY, "MISCONF Redis is configured to save RDB snapshots, but is unable to persist"),
        // No client sends a claim again after this error.
        (WAIT, "NOPERM this user has no permissions to run the 'evalsha' command"),
    ] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = patient(&proxy.url()).await;
        let refused = proxy.rule(Op::Acquire, Action::Refuse(why)).after(1).always();
        let released = proxy.seen(Op::Release);
        let (first, others) = claim(&client, options).await;
        assert_eq!((refused.hits(), refused.locks()), (1, MANY), "they did not travel together");
        assert_eq!(kinds(&others), [ErrorKind::Unavailable; MANY], "{why}");
        first.unwrap().release().await.unwrap();
        refused.end();
        nothing_is_left(&server, &proxy, &client).await;
        assert_eq!(
            proxy.seen(Op::Release),
            released + 1,
            "only the first one had something to release"
        );
    }
}

/// One claim of the batch names a key that is no lock. Only its caller gets the error.
#[tokio::test]
async fn a_key_of_another_type_does_not_affect_the_rest_of_its_batch() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy.url()).await;
    let _: i64 = server.cli("RPUSH lock:k2 precious");
    let together = on_the_call(&proxy, Action::Slice);
    let (first, others) = claim(&client, TRY).await;
    assert_eq!((together.hits(), together.locks()), (1, MANY), "they did not travel together");
    let (wrong, right): (Vec<_>, Vec<_>) = others.into_iter().partition(Result::is_err);
    assert_eq!(kinds(&wrong), [ErrorKind::WrongType]);
    assert_eq!(right.len(), MANY - 1);
    for guard in std::iter::once(first).chain(right) {
        guard.unwrap().release().await.unwrap();
    }
    let _: i64 = server.cli("DEL lock:k2");
    nothing_is_left(&server, &proxy, &client).await;
}

/// Claims that enter a queue are batched, too. That the lock was taken at the first attempt does
/// not answer a later call that was cut off: the lock may have been granted since.
#[tokio::test]
async fn queued_claims_that_are_cut_off_are_in_doubt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, client) = (patient(&server.url()).await, patient(&proxy.url()).await);
    let mut held = Vec::new();
    for key in keys().chain(["first".to_owned()]) {
        held.push(holder.mutex(key).lock().await.unwrap());
    }
    // A claim that finds the lock taken enters the queue at once.
    let look = LockOptions::new().with_wait(ms(1_000));
    let (first, others) = claim(&client, look).await;
    for outcome in others.into_iter().chain([first]) {
        assert!(outcome.unwrap_err().is_busy());
    }
    wait_idle(&client).await;

    proxy.turn_away(true);
    let cut = on_the_call(&proxy, Action::CloseAfter);
    let (first, others) = claim(&client, WAIT).await;
    assert_eq!((cut.hits(), cut.locks()), (1, MANY), "they did not travel together");
    assert_eq!(kinds(&others), [ErrorKind::Unknown; MANY]);
    // Even if the answer came in time, the client has a ticket by then.
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Unknown);
    for guard in held {
        guard.release().await.unwrap();
    }
    nothing_is_left(&server, &proxy, &client).await;
}

/// The answer to claims that were void on arrival, at the server's current time.
fn void(server: &RedisServer, claims: usize) -> Action {
    let (seconds, micros): (u64, u64) = server.cli("TIME");
    let answers = ":-1\r\n".repeat(claims);
    Action::Answer(
        format!("*{}\r\n:{seconds}{micros:06}\r\n{answers}", claims + 1).into_bytes().into(),
    )
}

/// Void claims did nothing. They are repeated once. The first claim of the batch travels alone
/// again.
#[tokio::test]
async fn void_claims_are_not_in_doubt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy.url()).await;
    let void = [MANY, 1, MANY - 1].map(|claims| on_the_call(&proxy, void(&server, claims)));
    let (first, others) = claim(&client, TRY).await;
    assert_eq!(void.map(|rule| rule.locks()), [MANY, 1, MANY - 1], "they travelled otherwise");
    assert_eq!(kinds(&others), [ErrorKind::Unavailable; MANY]);
    first.unwrap().release().await.unwrap();
    nothing_is_left(&server, &proxy, &client).await;
}

/// An earlier claim of the same wait was cut off and stays in doubt, even if the last claims were
/// void.
#[tokio::test]
async fn void_claims_do_not_hide_an_earlier_claim_in_doubt() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy.url()).await;
    // The claim, and its repetition on a new connection.
    let cut = proxy.rule(Op::Acquire, Action::CloseBefore).times(2);
    let void = proxy.rule(Op::Acquire, void(&server, 1)).always();
    let waiting = client.mutex("k").with_wait(ms(2_000)).lock();
    let (outcome, _) = within("an answer", ms(10_000), waiting).await;
    assert!(cut.hits() == 2 && void.hits() >= 2, "{} cut off, {} void", cut.hits(), void.hits());
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unknown);
    void.end();
    nothing_is_left(&server, &proxy, &client).await;
}
