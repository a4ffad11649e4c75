//! What those are told whose claims travelled in one call, when the call fails: each of them what is known of it, and neither
//! more nor less.

use futures_util::future::join_all;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{Error, ErrorKind, LockClient, LockOptions, MutexGuard, store::RedisStore};
use lock_testkit::{Action, Op, Proxy, RedisServer, Rule, eventually, ms, within};

/// How many claims travel together.
const MANY: usize = 6;

type Outcomes = Vec<Result<MutexGuard, Error>>;

/// A client to whom an answer that is late on a busy machine is none that never comes.
async fn patient(url: &str) -> LockClient {
    let store = RedisStore::builder(url).with_request_timeout(ms(2_000)).connect().await.unwrap();
    let defaults = LockOptions::new().with_ttl(ms(60_000));
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}

/// Has `client` claim a free lock, and at the same time those of [`keys`]. The first claim finds nobody under way and travels
/// alone, the others are collected behind it.
async fn claim(client: &LockClient, options: LockOptions) -> (Result<MutexGuard, Error>, Outcomes) {
    let lock = |key| client.mutex(key).with_options(options).lock();
    let all = std::iter::once("first".to_owned()).chain(keys()).map(lock);
    let (mut outcomes, _) = within("answers", ms(20_000), join_all(all)).await;
    (outcomes.remove(0), outcomes)
}

fn keys() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("k{number}"))
}

/// A rule for the call that carries the others.
fn on_the_call(proxy: &Proxy, action: Action) -> Rule {
    proxy.rule(Op::Acquire, action).after(1).once()
}

fn kinds(outcomes: &Outcomes) -> Vec<ErrorKind> {
    outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().kind()).collect()
}

/// Nothing is left of claims that failed, once the server is to be had again.
async fn nothing_is_left(server: &RedisServer, proxy: &Proxy, client: &LockClient) {
    proxy.turn_away(false);
    within("all is settled", ms(20_000), wait_idle(client)).await;
    assert!(ClientStats::of(client).is_idle(), "{:?}", ClientStats::of(client));
    eventually("nothing is left", ms(5_000), || server.leftovers().is_empty()).await;
}

const TRY: LockOptions = LockOptions::new().without_wait();
const WAIT: LockOptions = LockOptions::new().with_wait(ms(1_500));

/// Whether it was executed or not: whoever has sent something and hears no more cannot know.
#[tokio::test]
async fn a_call_that_is_cut_off_is_unknown_to_all_whom_it_carried() {
    for action in [Action::CloseAfter, Action::CloseBefore] {
        for options in [TRY, WAIT] {
            let server = RedisServer::start();
            let proxy = Proxy::to(&server);
            let client = patient(&proxy.url()).await;
            // Neither may a later attempt, which is certainly not sent, hide what the first one may have done.
            proxy.turn_away(true);
            let cut = on_the_call(&proxy, action.clone());
            let (first, others) = claim(&client, options).await;
            assert_eq!((cut.hits(), cut.asks()), (1, MANY), "they did not travel together");
            assert_eq!(kinds(&others), [ErrorKind::Unknown; MANY], "{action:?} {options:?}");
            // Its answer may have come before the end.
            drop(first);
            nothing_is_left(&server, &proxy, &client).await;
        }
    }
}

/// What was certainly not sent did nothing.
#[tokio::test]
async fn claims_that_are_not_sent_are_unknown() {
    for options in [TRY, WAIT] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = patient(&proxy.url()).await;
        proxy.turn_away(true);
        assert_eq!(proxy.close_all(), 1);
        // By then the client knows.
        assert!(client.mutex("before").try_lock().await.unwrap_err().is_store_failure());
        let seen = proxy.seen(Op::Acquire);
        let (first, others) = claim(&client, options).await;
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Unavailable, "{options:?}");
        assert_eq!(kinds(&others), [ErrorKind::Unavailable; MANY], "{options:?}");
        assert_eq!(proxy.seen(Op::Acquire), seen, "something was sent");
        nothing_is_left(&server, &proxy, &client).await;
    }
}

/// A server that says that it did nothing is believed, by all of them and without a release.
#[tokio::test]
async fn a_call_that_is_refused_is_unknown() {
    for (options, why) in [
        (TRY, "LOADING Redis is loading the dataset in memory"),
        // After which nobody asks again.
        (WAIT, "NOPERM this user has no permissions to run the 'evalsha' command"),
    ] {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = patient(&proxy.url()).await;
        let refused = proxy.rule(Op::Acquire, Action::Refuse(why)).after(1).always();
        let released = proxy.seen(Op::Release);
        let (first, others) = claim(&client, options).await;
        assert_eq!((refused.hits(), refused.asks()), (1, MANY), "they did not travel together");
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

/// One of them asks for what is no lock: that is told to this one alone.
#[tokio::test]
async fn a_key_of_another_type_spoils_the_claims_beside_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy.url()).await;
    let _: i64 = server.cli("RPUSH lock:k2 precious");
    let together = on_the_call(&proxy, Action::Slice);
    let (first, others) = claim(&client, TRY).await;
    assert_eq!((together.hits(), together.asks()), (1, MANY), "they did not travel together");
    let (wrong, right): (Vec<_>, Vec<_>) = others.into_iter().partition(Result::is_err);
    assert_eq!(kinds(&wrong), [ErrorKind::WrongType]);
    assert_eq!(right.len(), MANY - 1);
    for guard in std::iter::once(first).chain(right) {
        guard.unwrap().release().await.unwrap();
    }
    let _: i64 = server.cli("DEL lock:k2");
    nothing_is_left(&server, &proxy, &client).await;
}

/// Places in queues are asked for together as well. To have found the lock taken before is no answer to a call that was cut
/// off: it may be one's own by now.
#[tokio::test]
async fn a_call_for_places_that_is_cut_off_is_called_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, client) = (patient(&server.url()).await, patient(&proxy.url()).await);
    let mut held = Vec::new();
    for key in keys().chain(["first".to_owned()]) {
        held.push(holder.mutex(key).lock().await.unwrap());
    }
    // Who has found it taken asks for a place at once.
    let look = LockOptions::new().with_wait(ms(1_000));
    let (first, others) = claim(&client, look).await;
    for outcome in others.into_iter().chain([first]) {
        assert!(outcome.unwrap_err().is_busy());
    }
    wait_idle(&client).await;

    proxy.turn_away(true);
    let cut = on_the_call(&proxy, Action::CloseAfter);
    let (first, others) = claim(&client, WAIT).await;
    assert_eq!((cut.hits(), cut.asks()), (1, MANY), "they did not travel together");
    assert_eq!(kinds(&others), [ErrorKind::Unknown; MANY]);
    // Even if its answer came in time: then it has a place.
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Unknown);
    for guard in held {
        guard.release().await.unwrap();
    }
    nothing_is_left(&server, &proxy, &client).await;
}

/// The answer to claims that were void when they arrived, at the server's time of now.
fn void(server: &RedisServer, claims: usize) -> Action {
    let (seconds, micros): (u64, u64) = server.cli("TIME");
    let answers = ":-1\r\n".repeat(claims);
    Action::Answer(
        format!("*{}\r\n:{seconds}{micros:06}\r\n{answers}", claims + 1).into_bytes().into(),
    )
}

/// Void claims did nothing. They are repeated once; the first of those that were told together travels alone again.
#[tokio::test]
async fn claims_that_are_void_are_unknown() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = patient(&proxy.url()).await;
    let void = [MANY, 1, MANY - 1].map(|claims| on_the_call(&proxy, void(&server, claims)));
    let (first, others) = claim(&client, TRY).await;
    assert_eq!(void.map(|rule| rule.asks()), [MANY, 1, MANY - 1], "they travelled otherwise");
    assert_eq!(kinds(&others), [ErrorKind::Unavailable; MANY]);
    first.unwrap().release().await.unwrap();
    nothing_is_left(&server, &proxy, &client).await;
}

/// That the last claims of a wait were void does not tell what became of one that was cut off before.
#[tokio::test]
async fn void_claims_after_one_that_was_cut_off_hide_it() {
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
