//! Futures that are dropped after each number of polls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::LockClient;
use lock_core::store::RedisStore;
use lock_testkit::{
    Action, Cli, Experiment, Op, Proxy, RedisServer, client, eventually, ms, scale, set_if_newer,
};
use lock_tests::cancellation::{Moment, Operation, Rival, Trial, cut};

/// No future here needs more polls than this to end.
const MOST_POLLS: usize = 100;
/// How long a rival keeps the lock. A waiter is queued and subscribed long before that.
const PAUSE: Duration = ms(20);
/// The client's timeouts are long, so each future succeeds unless it is dropped.
const REQUEST: Duration = ms(4_000);
/// How soon everything is cleaned up, even on a busy machine.
const SOON: Duration = ms(5_000);

/// The servers and clients that a sweep uses.
struct Place {
    key: String,
    url: String,
    cli: Mutex<Cli>,
    other: LockClient,
}

/// What was seen during a sweep.
#[derive(Default)]
struct Seen {
    what: String,
    /// The largest number of polls that a future needed to end.
    polls: usize,
    dropped: usize,
    woken: usize,
    ended: usize,
}

/// rueidis#1010, redisson#7272: a future that is dropped at some await leaves a lock, a ticket or a
/// renewal behind.
#[tokio::test]
async fn a_future_dropped_after_any_number_of_polls_leaves_nothing_on_the_server() {
    let mut experiment = Experiment::new(
        9,
        "a dropped future leaves nothing behind, on a real server",
        "all that is public and async dropped after each number of polls",
        &["dropped", "dropped when woken", "ended by itself"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    // With this delay no answer arrives in the poll that sent its request.
    let _late: Vec<_> = [Op::Acquire, Op::Renew, Op::Release, Op::Message]
        .map(|op| proxy.rule(op, Action::DelayReply(ms(1))).always())
        .into();
    let other = client(&server.url()).await;
    // Each sweep has a key of its own. They run side by side, since they mostly wait.
    let mut sweeps = Vec::new();
    for operation in Operation::all().into_iter().map(Arc::new) {
        for &rival in operation.rivals() {
            let place = Place {
                key: format!("k{}", sweeps.len()),
                url: proxy.url(),
                cli: Mutex::new(server.connect()),
                other: other.clone(),
            };
            sweeps.push(tokio::spawn(sweep(Arc::clone(&operation), rival, place)));
        }
    }
    for sweep in sweeps {
        let Seen { what, polls, dropped, woken, ended } = sweep.await.unwrap();
        println!("{what}: {polls} polls");
        experiment.ran(dropped + ended);
        experiment.saw("dropped", dropped);
        experiment.saw("dropped when woken", woken);
        experiment.saw("ended by itself", ended);
    }
    eventually("nothing is left", SOON, || server.leftovers().is_empty()).await;
    assert!(!server.has("lock:{0}:check:{0}:fence"), "a check at the start is ended, too");
    drop(other);
    eventually("no connection is left", SOON, || server.clients() == 0).await;
    experiment.finish();
}

/// The value is written or it is not. Either way the same holder can write it again.
#[tokio::test]
async fn a_fenced_write_dropped_after_any_number_of_polls_can_be_repeated() {
    let mut experiment = Experiment::new(
        9,
        "a fenced write that was dropped can be repeated",
        "set_if_newer dropped after each number of polls",
        &["dropped", "ended by itself"],
    );
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").lock().await.unwrap();
    let redis = redis::Client::open(server.url()).unwrap();
    let redis = redis.get_multiplexed_async_connection().await.unwrap();
    for moment in [Moment::AfterItsPoll, Moment::InPlaceOfAPoll] {
        let mut polls = 0;
        loop {
            let write = async || {
                let (mut redis, token) = (redis.clone(), guard.fencing_token());
                let written = set_if_newer(&mut redis, "value", "value:fence", polls, token).await;
                written.unwrap().unwrap();
            };
            let ended = cut(write(), polls, moment).await;
            write().await;
            assert_eq!(server.get("value"), Some(polls.to_string()));
            experiment.ran(1);
            experiment.saw(if ended { "ended by itself" } else { "dropped" }, 1);
            if ended {
                break;
            }
            polls += 1;
        }
        println!("set_if_newer: {polls} polls");
        assert!(polls > 1, "{polls}");
    }
    experiment.finish();
}

async fn sweep(operation: Arc<Operation>, rival: Rival, place: Place) -> Seen {
    let Place { key, url, cli, other } = place;
    let own = format!(":{key}");
    let trial = Trial {
        store: Arc::new(move || {
            let store = RedisStore::builder(&*url);
            store.with_request_timeout(REQUEST).with_connect_timeout(REQUEST)
        }),
        other: &other,
        key,
        pause: PAUSE,
        at_drop: None,
        leftovers: &|| {
            let keys: Vec<String> = cli.lock().unwrap().run("KEYS lock:*").unwrap();
            keys.into_iter().filter(|key| key.ends_with(&own)).collect()
        },
        bound: SOON,
    };
    let mut seen = Seen { what: format!("{operation:?}, {rival:?}"), ..Seen::default() };
    for _ in 0..scale(1) {
        for moment in [Moment::AfterItsPoll, Moment::InPlaceOfAPoll] {
            let mut polls = 0;
            loop {
                let case = format!("{}, {polls} polls, {moment:?}", seen.what);
                assert!(polls < MOST_POLLS, "{case}");
                if trial.drop_after(&operation, rival, polls, moment, &case).await {
                    break;
                }
                seen.dropped += 1;
                seen.woken += usize::from(moment == Moment::InPlaceOfAPoll);
                polls += 1;
            }
            assert!(polls > usize::from(operation.waits(rival)), "{}: {polls} polls", seen.what);
            seen.ended += 1;
            seen.polls = seen.polls.max(polls);
        }
    }
    seen
}
