//! Two processes on one Redis and one database.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use lock_testkit::{ChildProcess, RedisServer, Signal, eventually};
use seckill::db::Database;
use seckill::server::DRAIN_LIMIT;
use tempfile::TempDir;

use crate::support::{Browser, LIMIT, audit, instance, sqlite_url};

struct TwoInstances {
    addresses: [String; 2],
    db: Database,
    // Dropped before Redis, so that they can release their locks.
    _instances: [ChildProcess; 2],
    redis: RedisServer,
    _directory: TempDir,
}

impl TwoInstances {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let database = sqlite_url(&directory);
        let redis = RedisServer::start();
        let url = redis.url();
        let (one, first) = instance("one", &url, &database, &[]).await;
        let (two, second) = instance("two", &url, &database, &[]).await;
        Self {
            addresses: [first, second],
            db: Database::connect(&database).await.unwrap(),
            _instances: [one, two],
            redis,
            _directory: directory,
        }
    }

    /// All at once, in turn to one instance and the other.
    async fn press(&self, times: usize, mode: &str, voucher: &str, user: u32) -> Vec<StatusCode> {
        let browser = Browser::new();
        let presses = self.addresses.iter().cycle().take(times);
        join_all(presses.map(|address| browser.order(address, mode, voucher, user)))
            .await
            .into_iter()
            .map(|(status, _)| status)
            .collect()
    }
}

fn count(statuses: &[StatusCode], wanted: StatusCode) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

// mastodon#37879, square1-io/laravel-idempotency#1, adorsys/status-list-server#216
#[tokio::test]
async fn a_hundred_posts_of_one_user_to_two_instances_make_one_order() {
    let shop = TwoInstances::start().await;

    let statuses = shop.press(100, "macro", "page-macro", 7).await;
    assert_eq!(count(&statuses, StatusCode::CREATED), 1, "{statuses:?}");
    assert_eq!(count(&statuses, StatusCode::OK), 99, "{statuses:?}");
    assert_eq!(audit(&shop.db, "page-macro").await.orders, 1);

    // The requests of a user may arrive one after another, and then none is refused.
    for user in 1..=10 {
        let statuses = shop.press(100, "layer", "page-layer", user).await;
        assert_eq!(count(&statuses, StatusCode::CREATED), 1, "{statuses:?}");
        let seen = count(&statuses, StatusCode::OK);
        let busy = count(&statuses, StatusCode::CONFLICT);
        assert_eq!(seen + busy, 99, "{statuses:?}");
        assert_eq!(audit(&shop.db, "page-layer").await.orders, i64::from(user));
        if busy > 0 {
            return;
        }
    }
    panic!("the layer refused no request");
}

#[tokio::test]
async fn a_request_that_follows_the_answer_at_once_meets_no_stale_lock() {
    let shop = TwoInstances::start().await;
    let [one, two] = &shop.addresses;
    let browser = Browser::new();
    for user in 1..=50 {
        let (status, _) = browser.order(one, "layer", "page-layer", user).await;
        assert_eq!(status, StatusCode::CREATED, "user {user}");
        let (status, body) = browser.order(two, "layer", "page-layer", user).await;
        assert_eq!(status, StatusCode::OK, "user {user}: {body}");
        assert_eq!(body["outcome"], "already_ordered");
    }
}

#[tokio::test]
async fn without_redis_nothing_is_ordered_and_no_user_gets_busy() {
    let mut shop = TwoInstances::start().await;
    shop.redis.kill();
    for mode in ["macro", "layer"] {
        // One press for each instance: of two in one process, the second may meet the first.
        let statuses = shop.press(2, mode, &format!("page-{mode}"), 7).await;
        assert_eq!(statuses, [StatusCode::SERVICE_UNAVAILABLE; 2], "{mode}");
        assert_eq!(audit(&shop.db, &format!("page-{mode}")).await.orders, 0, "{mode}");
    }
}

/// What became of an instance that got SIGTERM.
struct Terminated {
    /// What those that waited were answered, and how long after the signal.
    waiters: Vec<(StatusCode, Duration)>,
    holder: StatusCode,
    /// From the signal until it had ended.
    took: Duration,
    /// By how much a thread of this process woke too late, until the waiters had their answers.
    late: Duration,
}

/// How many wait.
const WAITERS: usize = 9;
/// A waiter has its answer within this time, on a machine on which threads wake when they should.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);
/// Other tests may take the processors once.
const MOST_ATTEMPTS: usize = 3;

/// A thread that looks how late it wakes.
struct WakeUps {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl WakeUps {
    fn watch() -> Self {
        const NAP: Duration = Duration::from_millis(2);
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut latest = Duration::ZERO;
            while !seen.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                latest = latest.max(begun.elapsed().saturating_sub(NAP));
            }
            latest
        });
        Self { is_over, thread }
    }

    fn latest(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Starts an instance, sends requests of one user, of which one has the lock and the others wait,
/// and terminates it.
async fn terminate(payment: &str) -> Terminated {
    let directory = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let database = sqlite_url(&directory);
    let arguments = ["--payment-ms", payment];
    let (instance, address) = instance("one", &redis.url(), &database, &arguments).await;
    let (browser, signalled) = (Browser::new(), Arc::new(OnceLock::<Instant>::new()));
    let press = || {
        let (browser, address) = (browser.clone(), address.clone());
        let signalled = Arc::clone(&signalled);
        tokio::spawn(async move {
            let (status, _) = browser.order(&address, "macro", "page-macro", 7).await;
            (status, signalled.get().map_or(Duration::ZERO, Instant::elapsed))
        })
    };
    let holder = press();
    let is_held = || redis.get("seckill:order:page-macro:7").is_some();
    eventually("one of them has the lock", LIMIT, is_held).await;
    let waiters: Vec<_> = (0..WAITERS).map(|_| press()).collect();
    let all = format!("lock_waiting{{key=\"order:<voucher>:<user>\"}} {WAITERS}");
    let begun = Instant::now();
    while !browser.metrics(&address).await.lines().any(|line| line == all) {
        assert!(begun.elapsed() < LIMIT, "not all wait");
    }
    let wake_ups = WakeUps::watch();
    signalled.set(Instant::now()).unwrap();
    instance.signal(Signal::TERM);
    let exited = tokio::task::spawn_blocking(|| instance.wait());
    let waiters = join_all(waiters).await.into_iter().map(Result::unwrap).collect();
    let late = wake_ups.latest();
    let (holder, _) = holder.await.unwrap();
    assert!(exited.await.unwrap().success());
    let took = signalled.get().unwrap().elapsed();
    assert_eq!(redis.get("seckill:order:page-macro:7"), None);
    Terminated { waiters, holder, took, late }
}

// gnmic#944, ShedLock#1932
#[tokio::test]
async fn a_terminated_instance_refuses_waiters_at_once_and_lets_the_holder_finish() {
    for attempt in 1..=MOST_ATTEMPTS {
        let Terminated { waiters, holder, took, late } = terminate("3000").await;
        let all = waiters.iter().all(|(status, _)| *status == StatusCode::SERVICE_UNAVAILABLE);
        assert!(all, "{waiters:?}");
        assert_eq!(holder, StatusCode::CREATED);
        assert!(took < DRAIN_LIMIT, "{took:?}");
        let mut after: Vec<_> = waiters.iter().map(|(_, after)| *after).collect();
        after.sort_unstable();
        if after[WAITERS / 2] <= ANSWERED_WITHIN + late {
            return;
        }
        assert!(attempt < MOST_ATTEMPTS, "answered after {after:?}; a thread woke {late:?} late");
    }
}

#[tokio::test]
async fn a_terminated_instance_cuts_a_holder_off_and_ends_within_the_limit() {
    let Terminated { waiters, holder, took, .. } = terminate("60000").await;
    assert!(waiters.iter().all(|(status, _)| *status == StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(holder, StatusCode::SERVICE_UNAVAILABLE);
    assert!(DRAIN_LIMIT / 5 * 4 <= took && took < DRAIN_LIMIT + Duration::from_secs(1), "{took:?}");
}
