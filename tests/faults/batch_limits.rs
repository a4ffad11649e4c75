//! Calls that share a batch, a connection or a runtime, and how they affect each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, Released, store::RedisStore};
use lock_testkit::{Action, Op, Proxy, RedisServer, Rule, client, eventually, ms, within};
use tokio::runtime::Runtime;

/// A release writes before it does anything that needs memory, so Redis does not refuse the rest.
#[tokio::test]
async fn locks_are_handed_on_by_a_server_without_memory() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for key in ["a", "b", "c"] {
        guards.push(one.mutex(key).lock().await.unwrap());
        waiters.push(tokio::spawn(two.mutex(key).lock()));
        eventually("it is queued", ms(5_000), || server.queued(key) == 1).await;
    }
    let kept = one.mutex("kept").with_min_hold(ms(300)).lock().await.unwrap();
    let () = server.cli("CONFIG SET maxmemory 1");
    let error = one.mutex("new").try_lock().await.unwrap_err();
    assert!(error.is_store_failure() && !error.is_unknown(), "{error:?}");
    assert!(!server.has("lock:new"));
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    assert_eq!(kept.release().await.unwrap(), Released::InTime);
    assert!(server.get("lock:kept").unwrap().starts_with('='), "kept for its `min_hold`");
    for waiter in waiters {
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < ms(500), "{took:?}: not by the release");
        let guard = guard.unwrap().unwrap();
        guard.extend(ms(20_000)).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    let () = server.cli("CONFIG SET maxmemory 0");
    wait_idle(&one).await;
    wait_idle(&two).await;
    eventually("nothing remains", ms(5_000), || server.leftovers().is_empty()).await;
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client with its connection task on the returned runtime. The runtime is kept, but no thread
/// runs it.
fn left_behind(server: &RedisServer) -> (LockClient, Runtime) {
    let stopped = runtime();
    let client = stopped.block_on(async {
        let client = client(&server.url()).await;
        drop(client.mutex("k").lock().await.unwrap());
        client
    });
    (client, stopped)
}

/// A runtime that is kept but not run sends nothing on its connection, not even the calls of other
/// runtimes. The client gives the connection up after two calls in a row without an answer.
#[test]
fn a_stopped_runtime_does_not_stop_calls_of_others() {
    let server = RedisServer::start();
    let (client, _stopped) = left_behind(&server);
    runtime().block_on(async {
        for key in ["one", "two", "three"] {
            let locked = async { client.mutex(key).try_lock().await };
            let (outcome, took) = within("an answer", ms(10_000), locked).await;
            if let Ok(guard) = outcome {
                drop(guard.unwrap());
                assert!(took < ms(5_000), "{took:?}");
                return;
            }
        }
        panic!("the connection was not replaced");
    });
}

/// Without RESP3 a second connection listens. If it cannot be opened, waiters poll. Nothing else is
/// affected.
#[tokio::test]
async fn the_first_connection_works_although_the_second_is_refused() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let _old = proxy.rule(Op::Hello, Action::Refuse("NOPROTO unsupported")).always();
    let (one, two) = (client(&proxy.url()).await, client(&proxy.url()).await);
    let refused = proxy.rule(Op::Subscribe, Action::CloseBefore).always();
    let other = two.mutex("other").lock().await.unwrap();
    for _ in 0..3 {
        let guard = one.mutex("k").lock().await.unwrap();
        let waiter = tokio::spawn(two.mutex("k").lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        drop(guard);
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        assert!(took < ms(1_000), "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
    assert!(refused.hits() >= 1, "no client tried to listen");
    let connections: u64 = server
        .cli::<String>("INFO stats")
        .lines()
        .find_map(|line| {
            line.strip_prefix("total_connections_received:")
                .map(|count| count.trim().parse().unwrap())
        })
        .unwrap();
    assert!(connections < 20, "{connections} connections were made");
    assert_eq!(other.release().await.unwrap(), Released::InTime);
}

/// Clients with different namespaces share a store. Their claims cannot travel in one call, and
/// need not wait for each other.
#[tokio::test]
async fn claims_of_different_namespaces_do_not_wait_for_each_other() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = Arc::new(RedisStore::connect(proxy.url()).await.unwrap());
    let clients: Vec<_> = (0..40)
        .map(|number| {
            LockClient::builder(Arc::clone(&store))
                .with_namespace(format!("n{number}"))
                .build()
                .unwrap()
        })
        .collect();
    server.load_scripts();
    let slow = proxy.rule(Op::Acquire, Action::DelayReply(ms(50))).once();
    let start = Instant::now();
    let tasks: Vec<_> =
        clients.iter().map(|client| tokio::spawn(client.mutex("k").lock())).collect();
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    let took = start.elapsed();
    assert_eq!(slow.hits(), 1);
    assert!(took < Duration::from_millis(50 * 8), "{took:?}: one after another");
    for client in &clients {
        wait_idle(client).await;
    }
}

/// An overloaded server that still answers: calls of claims take `each`, one after another.
fn slow(proxy: &Proxy, each: Duration) -> Rule {
    proxy.rule(Op::Acquire, Action::DelayRequest(each)).always()
}

/// Holds `count` locks, as other processes do.
fn held_by_others(server: &RedisServer, count: usize) {
    let mut cli = server.connect();
    for number in 0..count {
        let token = format!("{number:08x}-0000-4000-8000-000000000000");
        let () = cli.run(&format!("SET lock:held-{number} {token} PX 600000")).unwrap();
    }
}

/// A claim may queue behind others of its process for longer than the server has to answer one. It
/// is not void for that reason, and its wait does not end early. At the end the last claim may be
/// on its way, or may just have been answered.
#[tokio::test]
async fn claims_that_queue_in_the_batcher_for_long_stay_valid() {
    const CLAIMS: usize = 2_000;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    server.load_scripts();
    held_by_others(&server, CLAIMS);
    let slow = slow(&proxy, ms(40));
    let start = Instant::now();
    let tasks: Vec<_> = (0..CLAIMS)
        .map(|number| {
            let spread = number as u64;
            let mutex = client.mutex(format!("held-{number}")).with_ttl(ms(1_000 + spread));
            let wait = ms(5_000 + spread % 1_500);
            tokio::spawn(async move {
                let outcome = mutex.with_wait(wait).lock().await;
                let took = start.elapsed();
                (outcome, took.saturating_sub(wait), wait.saturating_sub(took + ms(20)))
            })
        })
        .collect();
    // Longer than an answer may take.
    tokio::time::sleep(ms(700)).await;
    assert!(slow.hits() * 64 < CLAIMS, "all of them have left by now");
    for (number, task) in tasks.into_iter().enumerate() {
        let (outcome, late, early) = task.await.unwrap();
        let error = outcome.unwrap_err();
        assert!(error.is_busy() || error.is_unknown(), "{number}: {error:?}");
        assert!(late < ms(1_000), "{number}: {late:?}");
        assert!(early.is_zero(), "{number}: {early:?} before its time");
    }
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
}

/// Renewals overtake the claims of their process. Otherwise many waiters would cost the
/// holders their leases.
#[tokio::test]
async fn renewals_overtake_the_claims_of_many_waiters() {
    const CLAIMS: usize = 2_000;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    server.load_scripts();
    held_by_others(&server, CLAIMS);
    let mut leases = Vec::new();
    for number in 0..300 {
        let mutex = client.mutex(format!("leased-{number}")).with_ttl(ms(2_000));
        leases.push(mutex.lock().await.unwrap());
    }
    // Each claim is behind two and a half seconds of others.
    let (slow, renewed) = (slow(&proxy, ms(80)), proxy.seen(Op::Renew));
    let claims: Vec<_> = (0..CLAIMS)
        .map(|number| {
            let mutex = client.mutex(format!("held-{number}")).with_ttl(ms(1_000 + number as u64));
            tokio::spawn(mutex.with_wait(ms(6_000)).lock())
        })
        .collect();
    for _ in 0..50 {
        tokio::time::sleep(ms(100)).await;
        let lost = leases.iter().filter(|lease| !lease.is_valid()).count();
        assert_eq!(lost, 0, "leases are lost");
    }
    assert!(claims.iter().all(|task| !task.is_finished()), "they do not wait any more");
    assert!(slow.hits() >= 30, "{}: the claims were not in the way", slow.hits());
    assert!(proxy.seen(Op::Renew) - renewed >= 4, "nothing was renewed");
    for lease in leases {
        assert_eq!(lease.release().await.unwrap(), Released::InTime);
    }
    for task in claims {
        task.abort();
    }
}

/// Calls that queue in the batcher of such a runtime are not answered. None of them is sent, so
/// they tell nothing about the connection.
#[test]
fn calls_queued_behind_a_stopped_runtime_are_served() {
    let server = RedisServer::start();
    let (client, _stopped) = left_behind(&server);
    runtime().block_on(async {
        // A single call is sent by its own caller. It is the only call that finds the connection
        // silent.
        let first = client.mutex("first").try_lock();
        let behind = client.mutex("behind").with_wait(ms(20_000)).lock();
        let both = async { tokio::join!(first, behind) };
        let ((first, behind), took) = within("the lock", ms(10_000), both).await;
        assert!(first.unwrap_err().is_store_failure());
        drop(behind.unwrap());
        assert!(took >= ms(1_000), "{took:?}: it was not in the batcher");
    });
}

/// Small calls are sent at once, and a dead connection that only listens is noticed.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_send_at_once_and_detect_dead_peers() {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle, tcp_keepintvl, tcp_nodelay};
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let _old = proxy.rule(Op::Hello, Action::Refuse("NOPROTO unsupported")).always();
    let client = client(&proxy.url()).await;
    let () = server.cli("SET lock:k foreign NX PX 60000");
    let waiter = tokio::spawn(client.mutex("k").lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let port: u16 = proxy.url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let mut sockets = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // Other tests open and close their connections meanwhile.
        let Ok(socket) = pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) else { continue };
        let peer = rustix::net::getpeername(&socket).ok().flatten();
        let Some(Ok(peer)) = peer.map(std::net::SocketAddr::try_from) else { continue };
        if peer.port() != port {
            continue;
        }
        sockets += 1;
        assert!(tcp_nodelay(&socket).unwrap(), "small calls wait");
        assert!(socket_keepalive(&socket).unwrap(), "the connection does not probe the server");
        assert_eq!(tcp_keepidle(&socket).unwrap(), Duration::from_secs(15));
        assert_eq!(tcp_keepintvl(&socket).unwrap(), Duration::from_secs(5));
    }
    assert_eq!(sockets, 2, "one for commands, one that listens");
    waiter.abort();
}
