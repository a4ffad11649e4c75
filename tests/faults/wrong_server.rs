//! The name of the server leads to one that has no locks: a demoted primary, a node of a cluster, a
//! sentinel, a server without scripts.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient};
use lock_testkit::{
    Action, LogCapture, Op, Proxy, RedisServer, client, eventually, free_port, ms, redis_server,
    within,
};
use tempfile::TempDir;

/// envoyproxy/ratelimit#1191, StackExchange.Redis#2264, redis-py#460: a primary is demoted and
/// keeps its connections, while its name leads to the new primary.
#[tokio::test]
async fn client_follows_the_name_to_the_new_primary_and_keeps_its_lease() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    // By default a primary waits 5 s for more replicas before it sends its data.
    let () = old.cli("CONFIG SET repl-diskless-sync-delay 0");
    let () = new.cli(&format!("REPLICAOF 127.0.0.1 {}", old.port()));
    eventually("it has a replica", ms(30_000), || {
        old.cli::<String>("INFO replication").contains("state=online")
    })
    .await;
    let proxy = Proxy::to(&old);
    let client = client(&proxy.url()).await;
    let ttl = ms(6_000);
    let guard = client.mutex("held").with_ttl(ttl).lock().await.unwrap();
    eventually("it is replicated", ms(10_000), || new.has("lock:held")).await;

    let log = LogCapture::start();
    let () = new.cli("REPLICAOF NO ONE");
    let () = old.cli(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
    // New connections go to the new primary. The open one stays.
    proxy.lead_to(&new);
    let (first, took) = within("a lock", ms(5_000), client.mutex("k").lock()).await;
    first.unwrap().release().await.unwrap();
    assert!(took < ms(1_000), "{took:?}");
    assert!(log.text().contains("not the server that has the locks"), "{}", log.text());

    // By its renewals alone: it outlives what the old primary gave it.
    tokio::time::sleep(ttl + ms(500)).await;
    assert!(guard.is_valid() && new.pttl("lock:held") > 0);
    guard.release().await.unwrap();
    wait_idle(&client).await;
    assert!(new.leftovers().is_empty(), "{:?}", new.leftovers());
}

/// redisson#1577: a client that meets a replica again and again sent 150,000 calls in 5 s.
#[tokio::test]
async fn replica_is_refused_by_name_and_asked_at_intervals() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    let () = replica.cli(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let error = RedisStore::connect(replica.url()).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("is a replica"), "{error}");

    let proxy = Proxy::to(&replica);
    // A proxy that tells nothing of the server: the refusals of the scripts are all there is.
    let _silent = proxy.rule(Op::Info, Action::Refuse("ERR unknown command 'info'")).always();
    let store = RedisStore::builder(proxy.url()).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let begun = proxy.connections();
    let error = client.mutex("k").with_wait(ms(2_000)).lock().await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let dialled = proxy.connections() - begun;
    assert!((2..=40).contains(&dialled), "{dialled} connections in 2 s");
    let () = replica.cli("REPLICAOF NO ONE");
    let (guard, took) = within("a lock", ms(5_000), client.mutex("k").lock()).await;
    guard.unwrap().release().await.unwrap();
    assert!(took < ms(2_500), "{took:?}");
}

/// A replica that does not tell what it is: only its refusals of renewals and claims do.
#[tokio::test]
async fn dials_of_a_wrong_server_back_off() {
    let (server, primary) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(&server);
    let _silent = proxy.rule(Op::Info, Action::Refuse("ERR unknown command 'info'")).always();
    let client = client(&proxy.url()).await;
    let guard = client.mutex("held").with_ttl(ms(60_000)).lock().await.unwrap();
    let () = server.cli(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let (begun, start) = (proxy.connections(), Instant::now());
    let mut refused = 0;
    while start.elapsed() < ms(3_000) {
        refused += usize::from(guard.extend(ms(70_000)).await.is_err());
        refused += usize::from(client.mutex("k").try_lock().await.is_err());
        tokio::task::yield_now().await;
    }
    assert!(refused > 10, "{refused}");
    let dialled = proxy.connections() - begun;
    assert!((2..=20).contains(&dialled), "{dialled} connections in 3 s");
}

/// redisson#2225, #2734: `connect` succeeds on a node of a cluster, and no key can be locked.
#[tokio::test]
async fn node_of_a_cluster_is_refused_at_once_by_connect_and_by_a_lazy_store() {
    let node = RedisServer::start_with(&["cluster-enabled yes"]);
    assert_is_refused_at_once(&node.url(), "is a node of a cluster").await;
}

/// A cluster before 7.0 has no sharded channels. A newer server is made to say that it is as old.
#[tokio::test]
async fn node_before_7_0_is_refused_at_once_by_connect_and_by_a_lazy_store() {
    let node = RedisServer::start_with(&["cluster-enabled yes"]);
    let info: String = node.cli("INFO");
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
    let proxy = Proxy::to(&node);
    let is_old = version.starts_with("6.");
    let old = info.replace(&format!("\nredis_version:{version}"), "\nredis_version:6.2.5");
    let old = format!("${}\r\n{old}\r\n", old.len());
    let told = proxy.rule(Op::Info, Action::Replace(old.into_bytes().into()));
    let told = told.times(if is_old { 0 } else { usize::MAX });
    let url = proxy.url().replace("redis://", "redis+cluster://");
    assert_is_refused_at_once(&url, "locks need Redis 7.0 or later").await;
    assert_eq!(told.hits() == 0, is_old);
}

#[tokio::test]
async fn sentinel_is_refused_at_once_by_connect_and_by_a_lazy_store() {
    let sentinel = Sentinel::start().await;
    assert_is_refused_at_once(&sentinel.url, "is a sentinel").await;
}

/// A server whose scripts are switched off, as `rename-command EVALSHA ""` does.
#[tokio::test]
async fn server_without_scripts_is_refused_at_once_by_connect_and_by_a_lazy_store() {
    let renamed = ["rename-command EVALSHA no-evalsha", "rename-command EVAL no-eval"];
    let server = RedisServer::start_with(&renamed);
    assert_is_refused_at_once(&server.url(), "are scripts switched off").await;
}

async fn assert_is_refused_at_once(url: &str, part: &str) {
    assert_is_refused(&RedisStore::connect(url).await.unwrap_err(), part);
    let store = RedisStore::builder(url).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let (locked, took) =
        within("an answer", ms(5_000), client.mutex("k").wait_forever().lock()).await;
    assert_is_refused(&locked.unwrap_err(), part);
    assert!(took < ms(1_000), "{took:?}");
}

/// A sentinel that watches nothing.
struct Sentinel {
    url: String,
    process: Child,
    _dir: TempDir,
}

impl Sentinel {
    async fn start() -> Self {
        let dir = lock_testkit::temp_dir("sentinel");
        let config = dir.path().join("sentinel.conf");
        std::fs::write(&config, "").unwrap();
        let port = free_port();
        let process = Command::new(redis_server())
            .arg(&config)
            .args(["--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it listens", ms(10_000), || TcpStream::connect(("127.0.0.1", port)).is_ok())
            .await;
        Self { url: format!("redis://127.0.0.1:{port}/"), process, _dir: dir }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A counter without numbers stays so until an operator deletes it.
#[tokio::test]
async fn exhausted_counter_ends_a_wait_at_once() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let () = server.cli("SET lock:{0}:fence 9007199254740991");
    let (locked, took) =
        within("an answer", ms(5_000), client.mutex("k").wait_forever().lock()).await;
    assert_is_refused(&locked.unwrap_err(), "fence counter");
    assert!(took < ms(1_000), "{took:?}");
    assert!(!server.has("lock:k"));
}

fn assert_is_refused(error: &lock_core::Error, part: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
}

/// go-redis#2616, envoy#17571: a server that closes the connection when RESP3 is requested, and
/// a URL that names the older protocol.
#[tokio::test]
async fn older_protocol_is_spoken_where_the_url_or_the_server_demands_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let closes = proxy.rule(Op::Hello, Action::CloseBefore).always();
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    assert_eq!(closes.hits(), 1);
    let client = LockClient::builder(store).build().unwrap();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    closes.end();

    let seen = proxy.seen(Op::Hello);
    for query in ["?protocol=resp2", "?protocol=2"] {
        let store = RedisStore::connect(format!("{}{query}", proxy.url())).await.unwrap();
        let client = LockClient::builder(store).build().unwrap();
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(proxy.seen(Op::Hello), seen, "RESP3 was requested");
    let _three = RedisStore::connect(format!("{}?protocol=resp3", proxy.url())).await.unwrap();
    assert_eq!(proxy.seen(Op::Hello), seen + 1);
}

/// go-redis#2616, envoy#17571: after two connections that were closed at the request for RESP3, no
/// third one requests it.
#[tokio::test]
async fn newer_protocol_is_not_requested_again_from_a_server_that_closes_on_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let closes = proxy.rule(Op::Hello, Action::CloseBefore).always();
    let client = client(&proxy.url()).await;
    for _ in 0..4 {
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
        assert!(server.kill_connections() > 0);
        let gone = || server.clients() == 0;
        eventually("they are gone", ms(5_000), gone).await;
    }
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert_eq!(closes.hits(), 2);
}

/// go-redis#2616: a server without a free connection says so, and the client passes it on, whether
/// or not the server refuses RESP3 by closing the connection.
#[tokio::test]
async fn server_with_too_many_clients_is_named_in_the_error() {
    let server = RedisServer::start();
    let mut others = server.connect();
    let () = others.run("CONFIG SET maxclients 1").unwrap();
    for query in ["", "?protocol=resp2"] {
        let url = format!("{}{query}", server.url());
        let error = RedisStore::connect(url.clone()).await.unwrap_err();
        assert_is_refused(&error, "cannot connect");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let causes = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(causes.contains("max number of clients"), "{query}: {causes}");
        let store = RedisStore::builder(url).connect_lazy().unwrap();
        let client = LockClient::builder(store).build().unwrap();
        let error = client.mutex("k").try_lock().await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
        let () = others.run("CONFIG SET maxclients 10").unwrap();
        let lock = || client.mutex("k").with_wait(ms(5_000)).lock();
        lock().await.unwrap().release().await.unwrap();
        let list: String = others.run("CLIENT LIST").unwrap();
        // Redis 6.2 does not list the protocol.
        assert!(!list.contains("resp=") || list.contains("resp=3") == query.is_empty(), "{list}");
        drop(client);
        eventually("it is closed", ms(5_000), || server.clients() == 1).await;
        let () = others.run("CONFIG SET maxclients 1").unwrap();
    }
}

/// An outage of the store is logged once, and its end once.
#[tokio::test]
async fn outage_is_one_warning_and_its_end_one_line() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let log = LogCapture::start();
    server.kill();
    let mut failures = 0;
    let down = Duration::from_secs(2);
    let _error = client.mutex("k").with_wait(down).lock().await.unwrap_err();
    while failures < 3 {
        failures += usize::from(client.mutex("k").try_lock().await.is_err());
    }
    let count = |part: &str| log.text().lines().filter(|line| line.contains(part)).count();
    assert_eq!(count("cannot be reached"), 1, "{}", log.text());
    assert!(log.text().contains("refused"), "no reason: {}", log.text());
    server.boot();
    let (guard, _) = within("a lock", ms(5_000), client.mutex("k").lock()).await;
    guard.unwrap().release().await.unwrap();
    assert_eq!((count("cannot be reached"), count("connected again")), (1, 1), "{}", log.text());
}
