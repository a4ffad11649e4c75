//! Thousands of waiters and keys: memory grows only with the current waiters and is freed later.
//!
//! The tests measure the memory of their process, so they have a process of their own and run one
//! at a time. With `LOCK_TESTS_SCALE=10` they use 20,000 waiters on one key and 100,000 keys, and
//! 10,000 requests and 100,000 keys with the layer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::{Experiment, RedisServer, client_with, eventually, ms, scale, within};
use lock_tower::LockLayer;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _, service_fn};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
/// Memory that the server may keep for each client, because its buffers have grown.
const PER_CLIENT: u64 = 200_000;

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

async fn clients(server: &RedisServer, count: usize) -> Vec<LockClient> {
    let defaults = LockOptions::new().with_ttl(ms(30_000)).with_wait(ms(300_000));
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(client_with(&server.url(), defaults).await);
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_waiters_on_one_key_are_all_served_and_leave_no_memory() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut experiment = Experiment::new(
        38,
        "all are served, memory is bounded",
        "waiters on one key",
        &["waiters served"],
    );
    let waiting = scale(2_000);
    let server = RedisServer::start();
    let clients = clients(&server, 4).await;
    let foreign_memory = server.used_memory();
    let guard = clients[0].mutex("k").lock().await.unwrap();
    let (served, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let waiters: Vec<_> = (0..waiting)
        .map(|number| {
            let mutex = clients[number % clients.len()].mutex("k");
            let (served, inside) = (Arc::clone(&served), Arc::clone(&inside));
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two holders at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::AcqRel);
                guard.release().await.unwrap();
                served.fetch_add(1, Ordering::AcqRel);
            })
        })
        .collect();
    // Each client has one place in the queue on the server; its other waiters queue in its process.
    eventually("all clients are queued", ms(10_000), || server.queued("k") >= 3).await;
    tokio::time::sleep(ms(200)).await;
    assert!(server.queued("k") <= 4 && server.inboxes().len() <= 4, "{:?}", server.queue("k"));
    let grown = server.used_memory().saturating_sub(foreign_memory);
    assert!(grown < 4 * PER_CLIENT, "{grown} bytes on the server for {waiting} waiters");
    server.reset_calls();
    let start = Instant::now();
    guard.release().await.unwrap();
    for waiter in waiters {
        within("its turn", ms(120_000), waiter).await.0.unwrap();
    }
    let served = served.load(Ordering::Acquire);
    assert_eq!(served, waiting);
    let calls = server.script_calls();
    println!("{waiting} turns in {:?} with {calls} commands", start.elapsed());
    assert!(calls < waiting as u64, "{calls} commands for {waiting} turns");
    baseline(&server, &clients, foreign_memory).await;
    experiment.ran(1);
    experiment.saw("waiters served", served);
    experiment.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_keys_leave_nothing_behind() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut experiment = Experiment::new(
        38,
        "memory is bounded, nothing is left",
        "distinct keys",
        &["keys locked"],
    );
    const TASKS: usize = 64;
    let keys = scale(10_000);
    let server = RedisServer::start();
    let clients = clients(&server, 2).await;
    let memory = server.used_memory();
    // A warm-up allocates what stays allocated.
    lock_keys(&clients, TASKS, keys / 4).await;
    let before = resident();
    let locked = lock_keys(&clients, TASKS, keys).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 16_000_000, "{grown} bytes for {keys} keys");
    baseline(&server, &clients, memory).await;
    assert!(server.cli::<u64>("DBSIZE") <= 1, "the counter");
    experiment.ran(1);
    experiment.saw("keys locked", locked);
    experiment.finish();
}

type Service = BoxCloneSyncService<Request<String>, StatusCode, Infallible>;

/// A service behind the layer with the path as its key, and the number of requests so far. The
/// handler of `/hot` panics if two requests overlap.
fn layered(client: &LockClient, most: usize) -> (Service, Arc<AtomicUsize>) {
    let (arrived, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&arrived);
    let to_key = move |parts: &Parts| {
        counted.fetch_add(1, Ordering::AcqRel);
        Some(parts.uri.path().trim_start_matches('/').to_owned())
    };
    let handler = service_fn(move |request: Request<String>| {
        let inside = (request.uri().path() == "/hot").then(|| Arc::clone(&inside));
        async move {
            if let Some(inside) = &inside {
                assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "two holders at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::AcqRel);
            }
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let layer = LockLayer::from_fn(client.clone(), to_key).with_wait(ms(300_000));
    let service = layer.max_waiters_per_key(most).layer(handler);
    (BoxCloneSyncService::new(service.map_response(|response| response.status())), arrived)
}

async fn send(service: &Service, path: String) -> StatusCode {
    service.clone().oneshot(Request::post(path).body(String::new()).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_requests_to_the_layer_are_served_and_leave_nothing_behind() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut experiment = Experiment::new(
        38,
        "all requests within the bound are served, memory is bounded, nothing is left",
        "requests with one key and with distinct keys",
        &["requests served", "requests rejected", "keys locked"],
    );
    const TASKS: usize = 64;
    let (waiting, keys) = (scale(1_000), scale(10_000));
    let server = RedisServer::start();
    let clients = clients(&server, 1).await;
    let memory = server.used_memory();
    let (service, arrived) = layered(&clients[0], waiting);
    let guard = clients[0].mutex("hot").lock().await.unwrap();
    let request = |path: String| {
        let service = service.clone();
        async move { send(&service, path).await }
    };
    let waiters: Vec<_> = (0..waiting).map(|_| tokio::spawn(request("/hot".into()))).collect();
    eventually("all have arrived", ms(60_000), || arrived.load(Ordering::Acquire) == waiting).await;
    // Some requests have arrived but are not counted as waiters yet. A request that takes one of
    // their places is dropped, and the next attempt is made.
    let rejected = async |patience| {
        let more = timeout(patience, request("/hot".into())).await;
        more.is_ok_and(|status| status == StatusCode::SERVICE_UNAVAILABLE)
    };
    while !rejected(ms(100)).await {}
    for _ in 0..10 {
        assert!(rejected(ms(10_000)).await, "more waiters than `max_waiters_per_key`");
        experiment.saw("requests rejected", 1);
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        assert_eq!(within("its turn", ms(120_000), waiter).await.0.unwrap(), StatusCode::OK);
        experiment.saw("requests served", 1);
    }
    // All places are free again.
    assert_eq!(request("/hot".into()).await, StatusCode::OK);

    let lock = async |from: usize, keys: usize| {
        let tasks = (0..TASKS).map(|task| {
            let service = service.clone();
            tokio::spawn(async move {
                for key in (from + task..from + keys).step_by(TASKS) {
                    assert_eq!(send(&service, format!("/many-{key}")).await, StatusCode::OK);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            within("all keys", ms(300_000), task).await.0.unwrap();
        }
        arrived.load(Ordering::Acquire)
    };
    // A warm-up allocates what stays allocated.
    let before = lock(0, keys / 4).await;
    let resident_before = resident();
    let locked = lock(keys, keys).await - before;
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 16_000_000, "{grown} bytes for {keys} keys");
    experiment.saw("keys locked", locked);
    baseline(&server, &clients, memory).await;
    experiment.ran(2);
    experiment.finish();
}

/// Locks each key twice, from two clients at about the same time. Returns the number of locks.
async fn lock_keys(clients: &[LockClient], tasks: usize, keys: usize) -> usize {
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let client = clients[task % clients.len()].clone();
            tokio::spawn(async move {
                let (pairs, mut locked) = (tasks / 2, 0);
                for key in (task / 2..keys).step_by(pairs) {
                    let guard = client.mutex(format!("many-{key}")).lock().await.unwrap();
                    guard.release().await.unwrap();
                    locked += 1;
                }
                locked
            })
        })
        .collect();
    let mut locked = 0;
    for task in running {
        locked += within("all keys", ms(300_000), task).await.0.unwrap();
    }
    locked
}

/// Checks that only connections and the fence counter are left.
async fn baseline(server: &RedisServer, clients: &[LockClient], memory: u64) {
    for client in clients {
        wait_idle(client).await;
        assert!(ClientStats::of(client).is_idle(), "{:?}", ClientStats::of(client));
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    let grown = || server.used_memory().saturating_sub(memory);
    let allowed = PER_CLIENT * clients.len() as u64;
    eventually("the server's memory is back", ms(20_000), || grown() < allowed).await;
}
