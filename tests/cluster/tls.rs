//! `rediss+cluster://`: every node, and what a redirection names, by TLS.

use std::time::{Duration, Instant};

use lock_core::store::{RedisStore, RedisStoreBuilder};
use lock_core::testing::wait_idle;
use lock_core::{Error, ErrorKind, LockClient};
use lock_testkit::{
    Certificates, Experiment, FailOver, RedisCluster, eventually, ms, with_causes, within,
};

/// A handshake takes its time on a loaded machine. A refusal by it is no matter of this limit.
const PATIENCE: Duration = ms(10_000);
const BOUND: Duration = ms(20_000);

/// A cluster whose nodes have a certificate, and who signed it.
async fn start() -> (RedisCluster, Certificates) {
    let certificates = Certificates::make("127.0.0.1", Certificates::YEAR);
    let config = certificates.config("no");
    let config: Vec<_> = config.iter().map(String::as_str).collect();
    (RedisCluster::start_by_tls(&config).await, certificates)
}

fn trusting(url: &str, certificates: &Certificates) -> RedisStoreBuilder {
    RedisStore::builder(url).with_root_certificates(certificates.read("authority.pem"))
}

async fn client(url: &str, certificates: &Certificates) -> LockClient {
    let store = trusting(url, certificates).with_connect_timeout(PATIENCE);
    let store = store.connect().await.unwrap();
    LockClient::builder(store).build().unwrap()
}

/// Whether a client has connections to a server, all of them by TLS.
fn is_on_by_tls(client: &LockClient, cluster: &RedisCluster, index: usize) -> bool {
    let (id, port) = (client.id().to_string(), cluster.node_port(index));
    let list: String = cluster.server(index).cli("CLIENT LIST");
    let mut own = list.lines().filter(|line| line.contains(&id)).peekable();
    own.peek().is_some() && own.all(|line| line.contains(&format!("laddr=127.0.0.1:{port} ")))
}

/// HA13: locks on three nodes at once; one of them moves to another node while a task waits for it,
/// and the master of another one is replaced. Each redirection names a port for TLS.
#[tokio::test]
async fn locks_follow_their_slots_and_masters_by_tls() {
    let (cluster, certificates) = start().await;
    let url = cluster.url();
    assert!(url.starts_with("rediss+cluster://"), "{url}");
    let (holder, waiter) = (client(&url, &certificates).await, client(&url, &certificates).await);
    let keys = [0, 1, 2].map(|home| cluster.key_on(home, "k"));
    let mut guards = Vec::new();
    for (home, key) in keys.iter().enumerate() {
        let guard = holder.mutex(key.clone()).with_ttl(ms(30_000)).lock().await.unwrap();
        assert!(cluster.server(home).has(&format!("lock:{key}")));
        assert!(is_on_by_tls(&holder, &cluster, home));
        guards.push(guard);
    }

    let moved = &keys[0];
    let waiting = tokio::spawn(waiter.mutex(moved.clone()).with_wait(ms(30_000)).lock());
    cluster.queue_of(moved, 1).await;
    let migration = cluster.migration(&format!("lock:{moved}"), 1);
    for key in migration.keys() {
        migration.step(&key);
    }
    guards[0].extend(ms(30_000)).await.unwrap();
    let met = |code| cluster.server(0).errors(code);
    assert!(met("ASK") > 0, "it was not on its way");
    migration.finish();
    guards[0].extend(ms(30_000)).await.unwrap();
    assert!(met("MOVED") > 0, "it has not moved");
    let heard = || !cluster.server(1).cli::<Vec<String>>("PUBSUB SHARDCHANNELS").is_empty();
    eventually("the waiter listens there", ms(10_000), heard).await;
    eventually("the waiter has its place", ms(10_000), || cluster.queued(moved) == 1).await;
    let released = guards.remove(0);
    let fence = released.fencing_token();
    released.release().await.unwrap();
    let (next, _) = within("the waiter's turn", ms(10_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > fence);
    assert!(is_on_by_tls(&waiter, &cluster, 1));
    next.release().await.unwrap();

    let replica = cluster.fail_over(2, FailOver::Graceful).await;
    let other = cluster.key_on(2, "other");
    let other = holder.mutex(other).with_wait(ms(10_000)).lock().await.unwrap();
    other.release().await.unwrap();
    guards[1].extend(ms(30_000)).await.unwrap();
    assert!(is_on_by_tls(&holder, &cluster, replica));
    for guard in guards {
        guard.release().await.unwrap();
    }
    wait_idle(&holder).await;
    wait_idle(&waiter).await;
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// The errors of a store that connects, and of a lock that is wanted of one that has not.
async fn refusals(store: impl Fn() -> RedisStoreBuilder) -> [Error; 2] {
    let (connected, _) = within("an answer", BOUND, store().connect()).await;
    let client = LockClient::builder(store().connect_lazy().unwrap()).build().unwrap();
    let mutex = client.mutex("k").with_wait(ms(2_000));
    let body = mutex.run(async |_| panic!("the body must not run"));
    let (ran, _): (Result<(), _>, _) = within("an answer", BOUND, body).await;
    [connected.unwrap_err(), ran.unwrap_err()]
}

/// Nodes whose certificates another authority signed, and a port without TLS.
#[tokio::test]
async fn cluster_without_a_trusted_certificate_is_refused() {
    let mut experiment = Experiment::new(
        40,
        "a clean error that is not called busy, no lock",
        "TLS to a cluster: an unknown authority, a port without TLS",
        &["clusters refused"],
    );
    let (cluster, certificates) = start().await;
    let (url, other) = (cluster.url(), Certificates::make("127.0.0.1", Certificates::YEAR));
    let begun = Instant::now();
    let unknown = refusals(|| trusting(&url, &other).with_connect_timeout(PATIENCE)).await;
    assert!(begun.elapsed() < PATIENCE, "it was no refusal: {:?}", begun.elapsed());
    for error in &unknown {
        let says = with_causes(error);
        assert!(says.to_lowercase().contains("certificate"), "{says}");
        assert!(says.contains("rediss://127.0.0.1:"), "{says}");
    }
    let plain = format!("rediss+cluster://127.0.0.1:{}", cluster.server(0).port());
    let silent = refusals(|| trusting(&plain, &certificates)).await;
    for error in &silent {
        let says = with_causes(error);
        // The handshake of the one node has failed, or takes too long yet.
        let is_named = says.contains(&format!("no node of {plain} answers"));
        assert!(is_named || says.contains("timed out"), "{says}");
    }
    for error in unknown.iter().chain(&silent) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        experiment.ran(1);
        experiment.saw("clusters refused", 1);
    }
    assert!(cluster.leftovers().is_empty(), "{:?}", cluster.leftovers());
    experiment.finish();
}
