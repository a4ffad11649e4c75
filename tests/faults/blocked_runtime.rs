//! A body blocks the thread of its runtime. The runtime that was given to the
//! client or its store goes on with what they do in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lock_core::store::{self, RedisStore};
use lock_core::{ErrorKind, LockClient, LockOptions, MutexGuard, Released};
use lock_testkit::{Quorum, RedisCluster, RedisServer, client_with, eventually, ms};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = ms(900);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime that no body runs on.
fn own_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn options() -> LockOptions {
    LockOptions::new().with_ttl(TTL)
}

/// Blocks the thread for two ttl. Breaks all connections in the middle, if `server` is given.
///
/// A task of the runtime that is blocked must not have run meanwhile.
async fn block(server: Option<&RedisServer>) {
    let ticks = Arc::new(AtomicUsize::new(0));
    let ticker = Arc::clone(&ticks);
    let ticking = tokio::task::spawn(async move {
        loop {
            ticker.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(ms(1)).await;
        }
    });
    eventually("the runtime runs", ms(5_000), || ticks.load(Ordering::SeqCst) > 2).await;
    let (before, start) = (ticks.load(Ordering::SeqCst), Instant::now());
    std::thread::sleep(TTL);
    if let Some(server) = server {
        assert!(server.kill_connections() >= 1, "there was no connection to break");
    }
    std::thread::sleep(TTL);
    assert!(start.elapsed() >= TTL * 2);
    assert_eq!(ticks.load(Ordering::SeqCst), before, "the runtime was not blocked");
    ticking.abort();
}

/// Breaks the connection, so that the next call of the caller dials.
async fn redial(server: &RedisServer, client: &LockClient) {
    assert!(server.kill_connections() >= 1, "there was no connection to break");
    let guard = client.mutex("redial").with_wait(ms(5_000)).lock().await.unwrap();
    assert!(server.clients() >= 1);
    guard.release().await.unwrap();
}

/// What the server has under the key of a guard.
struct Held<'a> {
    server: &'a RedisServer,
    key: String,
    value: String,
}

impl<'a> Held<'a> {
    fn of(server: &'a RedisServer, guard: &MutexGuard) -> Self {
        let key = format!("lock:{}", guard.key().as_str());
        let value = server.get(&key).unwrap();
        Self { server, key, value }
    }

    /// The lease was kept all the time: its token is a new one after each claim.
    fn assert_kept(&self, guard: &MutexGuard) {
        assert!(guard.is_valid(), "the lease was lost");
        assert_eq!(self.server.get(&self.key).as_ref(), Some(&self.value));
        assert!(self.server.pttl(&self.key) > 0);
    }
}

/// node-redlock#309, tokio#4730: the store was connected, and is connected again, by calls on the
/// runtime that the body blocks.
#[test]
fn body_that_blocks_its_runtime_for_two_ttl_keeps_its_lease() {
    let (server, own) = (RedisServer::start(), own_runtime());
    current_thread().block_on(async {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let client = LockClient::builder(store)
            .with_defaults(options())
            .with_runtime(own.handle().clone())
            .build()
            .unwrap();
        let guard = client.mutex("k").lock().await.unwrap();
        let held = Held::of(&server, &guard);
        block(None).await;
        held.assert_kept(&guard);
        redial(&server, &client).await;
        block(Some(&server)).await;
        held.assert_kept(&guard);
        guard.release().await.unwrap();
    });
}

/// The runtime that dials is blocked, and the lease belongs to a task of another.
fn assert_neighbour_keeps_its_lease(server: &RedisServer, client: &LockClient) {
    let (locked, is_locked) = mpsc::channel();
    let (unblocked, mut is_unblocked) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            current_thread().block_on(async {
                let guard = client.mutex("neighbour").lock().await.unwrap();
                let held = Held::of(server, &guard);
                locked.send(()).unwrap();
                let mut calls = 0;
                while is_unblocked.try_recv().is_err() {
                    tokio::time::sleep(ms(50)).await;
                    let other = client.mutex("other").with_wait(TTL).lock().await;
                    calls += usize::from(other.is_ok());
                    // Nothing is asked of the server here: the other thread breaks connections.
                    assert!(guard.is_valid(), "the lease was lost");
                }
                held.assert_kept(&guard);
                assert!(calls > 10, "{calls} calls beside the blocked runtime");
                guard.release().await.unwrap();
            });
        });
        current_thread().block_on(async {
            is_locked.recv().unwrap();
            redial(server, client).await;
            let guard = client.mutex("mine").lock().await.unwrap();
            let held = Held::of(server, &guard);
            block(Some(server)).await;
            held.assert_kept(&guard);
            unblocked.send(()).unwrap();
            guard.release().await.unwrap();
        });
    });
}

/// The same on several servers, each of which has a connection that was made before.
#[test]
fn body_that_blocks_its_runtime_keeps_its_lease_on_a_cluster_and_on_a_quorum() {
    let own = own_runtime();
    let cluster = own.block_on(RedisCluster::start());
    let quorum = Quorum::of_age(3, "lock");
    for url in [cluster.url(), quorum.urls().join(" ")] {
        current_thread().block_on(async {
            let store = store::connect(&url).await.unwrap();
            let client = LockClient::builder(store)
                .with_defaults(options())
                .with_runtime(own.handle().clone())
                .build()
                .unwrap();
            let guard = client.mutex("k").with_wait(ms(10_000)).lock().await.unwrap();
            block(None).await;
            assert!(guard.is_valid(), "{url}: the lease was lost");
            assert_eq!(guard.release().await.unwrap(), Released::InTime, "{url}");
        });
    }
}

/// Two `current_thread` runtimes share a client, which has a runtime of its own.
#[test]
fn runtime_that_blocks_costs_another_runtime_no_lease() {
    let (server, own) = (RedisServer::start(), own_runtime());
    let store = current_thread().block_on(RedisStore::connect(server.url())).unwrap();
    let client = LockClient::builder(store)
        .with_defaults(options())
        .with_runtime(own.handle().clone())
        .build()
        .unwrap();
    assert_neighbour_keeps_its_lease(&server, &client);
}

/// No runtime was given. A caller on a `current_thread` runtime finds no connection, and does not
/// take it away from the `multi_thread` runtime that had it.
#[test]
fn connection_stays_on_the_runtime_with_several_threads() {
    let (server, main) = (RedisServer::start(), own_runtime());
    let client = main.block_on(client_with(&server.url(), options()));
    let guard = main.block_on(client.mutex("k").lock()).unwrap();
    let held = Held::of(&server, &guard);
    current_thread().block_on(async {
        redial(&server, &client).await;
        block(None).await;
        held.assert_kept(&guard);
    });
    main.block_on(guard.release()).unwrap();

    // It is gone, and the caller's runtime is as good as any.
    drop(main);
    current_thread().block_on(async {
        let guard = client.mutex("k").with_wait(ms(5_000)).lock().await.unwrap();
        guard.release().await.unwrap();
    });
}

/// The store alone has a runtime of its own. The client's tasks run where it is first used, which
/// is not the runtime that is blocked.
#[test]
fn connection_runs_on_the_runtime_of_the_store_from_the_first_dial() {
    let (server, own) = (RedisServer::start(), own_runtime());
    let store = RedisStore::builder(server.url()).with_runtime(own.handle().clone());
    let store = current_thread().block_on(store.connect()).unwrap();
    // The runtime of the dial is gone, and the connection is not.
    let dialled = server.cli::<String>("CLIENT LIST TYPE normal");
    assert_eq!(server.clients(), 1, "{dialled}");
    let client = LockClient::builder(store).with_defaults(options()).build().unwrap();
    assert_neighbour_keeps_its_lease(&server, &client);
}

/// A connection that was opened before the client was given a runtime, with RESP3 and without.
#[test]
fn connection_moves_to_the_runtime_of_the_client() {
    for protocol in ["resp3", "resp2"] {
        let (server, own) = (RedisServer::start(), own_runtime());
        let url = format!("{}?protocol={protocol}", server.url());
        let client = current_thread().block_on(async {
            let store = RedisStore::connect(url).await.unwrap();
            let first = server.cli::<String>("CLIENT LIST TYPE normal");
            let client =
                LockClient::builder(store).with_runtime(own.handle().clone()).build().unwrap();
            let closed = || !server.cli::<String>("CLIENT LIST").contains(id(&first));
            eventually("the first connection is closed", ms(5_000), closed).await;
            // A waiter needs a second connection there as well, if RESP3 is not spoken.
            let () = server.cli("SET lock:k other PX 60000");
            let waiter = tokio::task::spawn(client.mutex("k").lock());
            eventually("it waits", ms(5_000), || server.queued("k") == 1).await;
            let () = server.cli("DEL lock:k");
            waiter.await.unwrap().unwrap().release().await.unwrap();
            client
        });
        // The first runtime is gone, and no connection went with it.
        let connections = if protocol == "resp3" { 1 } else { 2 };
        assert_eq!(server.clients(), connections, "{protocol}");
        drop(client);
    }
}

/// `id=7 ` of the first line of a list of clients.
fn id(list: &str) -> &str {
    &list[..=list.find(' ').unwrap()]
}

/// A runtime that was given and has shut down is named at once, by all that need it.
#[test]
fn runtime_that_was_given_and_is_gone_is_named_at_once() {
    let server = RedisServer::start();
    let gone = own_runtime();
    let handle = gone.handle().clone();
    drop(gone);
    current_thread().block_on(async {
        let store = || RedisStore::builder(server.url()).with_runtime(handle.clone());
        let start = Instant::now();
        let refused = store().connect().await.unwrap_err();
        let client = LockClient::builder(store().connect_lazy().unwrap()).build().unwrap();
        let locked = client.mutex("k").wait_forever().lock().await.unwrap_err();
        let tried = client.mutex("k").try_lock().await.unwrap_err();
        for error in [refused, locked, tried] {
            assert_eq!(error.kind(), ErrorKind::NoRuntime, "{error}");
            assert!(error.to_string().contains("is gone"), "{error}");
        }
        assert!(start.elapsed() < ms(500), "{:?}", start.elapsed());
    });
}
