//! A name with several addresses, of which some are no good, and look-ups that fail.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lock_core::store::{RedisStore, RedisStoreBuilder};
use lock_core::{Error, LockClient};
use lock_testkit::{Action, Op, Proxy, RedisServer, eventually, ms, within};
use tokio::net::TcpListener;

/// A name that no system knows.
const NAME: &str = "redis.test";

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A store whose server has these addresses, in this order.
fn store(addresses: &[SocketAddr]) -> RedisStoreBuilder {
    let addresses = addresses.to_vec();
    RedisStore::builder(format!("redis://{NAME}:6379/")).with_look_up(move || {
        let addresses = addresses.clone();
        async move { Ok(addresses) }
    })
}

/// Accepts and never speaks. Counts the connections.
async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    (address, accepted)
}

/// Takes locks, breaks the connection, and takes locks again.
async fn assert_locks(server: &RedisServer, store: RedisStore) {
    let client = LockClient::builder(store).build().unwrap();
    for _ in 0..3 {
        let lock = client.mutex("k").with_wait(ms(5_000)).lock();
        within("a lock", ms(5_000), lock).await.0.unwrap().release().await.unwrap();
        server.kill_connections();
    }
}

// eventmachine/eventmachine#885
#[tokio::test]
async fn an_address_that_never_speaks_does_not_hide_the_next() {
    let server = RedisServer::start();
    let (silent, accepted) = silent().await;
    let addresses = [silent, address(server.port())];
    let (connected, took) = within("the store", ms(3_000), store(&addresses).connect()).await;
    assert!(took < ms(1_500), "a dial takes a second at most: {took:?}");
    assert_locks(&server, connected.unwrap()).await;
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "it is tried last after it failed");
}

#[tokio::test]
async fn an_address_that_refuses_or_is_a_replica_does_not_hide_the_next() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_with(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let addresses = [closed, address(replica.port()), address(primary.port())];
    let connected = store(&addresses).connect().await.unwrap();
    assert_locks(&primary, connected).await;
}

/// A server that loads its data answers, and cannot have locks yet.
#[tokio::test]
async fn an_address_that_loads_its_data_does_not_hide_the_next() {
    let primary = RedisServer::start();
    let loading = RedisServer::start_with(&["enable-debug-command local"]);
    let is_loading = || loading.cli::<String>("INFO persistence").contains("loading:1\r");
    let mut cli = loading.connect();
    for key in 0..700 {
        let () = cli.command(&["SET", &format!("fill:{key}"), &"x".repeat(1_024)]).unwrap();
    }
    // It looks at its connections after each kilobyte, and takes 20 ms for each key.
    let () = cli.run("CONFIG SET loading-process-events-interval-bytes 1024").unwrap();
    let () = cli.run("CONFIG SET key-load-delay 20000").unwrap();
    // It ends with the server.
    std::thread::spawn(move || drop(cli.run::<()>("DEBUG RELOAD")));
    eventually("it loads", ms(10_000), is_loading).await;
    let addresses = [address(loading.port()), address(primary.port())];
    let patient = |addresses: &[_]| store(addresses).with_connect_timeout(ms(5_000));
    let alone = patient(&addresses[..1]).connect().await.unwrap_err();
    assert!(alone.to_string().contains("is loading its data"), "{alone}");
    assert_locks(&primary, patient(&addresses).connect().await.unwrap()).await;
    assert!(is_loading(), "it ended too soon for the test");
}

/// By RESP2, messages come on a second connection. It leads to the same server as the first.
#[tokio::test]
async fn the_connection_that_listens_has_the_address_of_the_other() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(&server);
    let refused = proxy.rule(Op::Hello, Action::Refuse("NOPROTO no")).always();
    let proxied: u16 =
        proxy.url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    // Where the system would go first, from the second look-up on.
    let first = Arc::new(Mutex::new(address(proxied)));
    let found = Arc::clone(&first);
    let store = RedisStore::builder(format!("redis://{NAME}:6379/")).with_look_up(move || {
        let found = *found.lock().unwrap();
        async move { Ok(vec![found]) }
    });
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    *first.lock().unwrap() = address(other.port());
    let () = server.cli("SET lock:k other PX 60000");
    let waiter = tokio::spawn(client.mutex("k").with_wait(ms(20_000)).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    assert!(refused.hits() >= 1, "it speaks RESP3");
    assert_eq!(server.inboxes().len(), 1);
    assert!(other.inboxes().is_empty());
    let () = server.cli("DEL lock:k");
    within("the lock", ms(5_000), waiter).await.0.unwrap().unwrap().release().await.unwrap();
}

/// What a look-up that fails is reported as: by name, and in time.
#[tokio::test]
async fn a_look_up_that_fails_is_named() {
    let failed = |says: &'static str| {
        move |error: Error| {
            assert!(error.is_unavailable(), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(NAME) && text.contains("look-up") && text.contains(says),
                "{text}"
            );
        }
    };
    let url = format!("redis://{NAME}:6379/");
    let never = RedisStore::builder(&url).with_look_up(pending);
    let (connected, _) = within("an answer", ms(3_000), never.connect()).await;
    failed("no answer in time")(connected.unwrap_err());
    let none = RedisStore::builder(&url).with_look_up(async || Ok(Vec::new()));
    failed("no address")(none.connect().await.unwrap_err());
    let broken = RedisStore::builder(&url).with_look_up(async || Err(io::Error::other("SERVFAIL")));
    failed("failed")(broken.connect().await.unwrap_err());
    // The system's own look-up of a name that cannot exist.
    let unknown = RedisStore::builder("redis://redis.invalid/").with_connect_timeout(ms(5_000));
    let error = unknown.connect().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("`redis.invalid`"), "{error}");
}

/// What a server says is not hidden by an address at which there is none.
#[tokio::test]
async fn the_words_of_a_server_are_reported_before_a_closed_address() {
    let server = RedisServer::builder().password("secret").start();
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    for addresses in [[address(server.port()), closed], [closed, address(server.port())]] {
        let error = store(&addresses).connect().await.unwrap_err();
        assert!(error.to_string().contains("user name or password"), "{error}");
        let client = store(&addresses).connect_lazy().unwrap();
        let client = LockClient::builder(client).build().unwrap();
        let lock = client.mutex("k").wait_forever().lock();
        let (refused, _) = within("an answer", ms(5_000), lock).await;
        assert!(refused.unwrap_err().is_unavailable());
    }
}
