//! URLs that lead to another kind of server, and permissions.

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, LockConfig};
use lock_testkit::{
    Action, LogCapture, Op, Proxy, RedisCluster, RedisServer, alone, client,
    documented_cluster_user, eventually, ms, refusal, within,
};

use crate::shared;

/// The URL of a single server for a node, and that of a cluster for a single server: refused at
/// once, with the right one in the error.
#[tokio::test]
async fn node_and_single_server_are_not_taken_for_each_other() {
    let cluster = shared().await;
    let (node, server) = (cluster.server(0), RedisServer::start());
    for (port, wrong, right) in
        [(node.port(), "redis", "redis+cluster"), (server.port(), "redis+cluster", "redis")]
    {
        let (wrong, right) =
            (format!("{wrong}://127.0.0.1:{port}"), format!("`{right}://127.0.0.1:{port}`"));
        for error in [RedisStore::connect(wrong.clone()).await.unwrap_err(), refusal(&wrong).await]
        {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(!error.is_retryable(), "{error:?}");
            assert!(error.to_string().contains(&right), "{wrong}: {error}");
        }
    }
}

/// A cluster has one database.
#[tokio::test]
async fn database_is_refused_before_anything_is_sent() {
    let error = RedisStore::connect("redis+cluster://127.0.0.1:1/3").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    assert!(error.to_string().contains("none but 0"), "{error}");
}

#[tokio::test]
async fn configuration_leads_to_the_cluster() {
    let cluster = shared().await;
    let config = format!(r#"{{ "url": "{}", "namespace": "shop" }}"#, cluster.url());
    let config: LockConfig = serde_json::from_str(&config).unwrap();
    let client = config.connect().await.unwrap().build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    let home = cluster.home("shop:k");
    assert!(cluster.server(home).has("shop:k"));
    guard.release().await.unwrap();
}

/// Operators see the locks of all nodes, and take one away wherever it is.
#[tokio::test]
async fn operators_see_and_take_locks_on_all_nodes() {
    let cluster = shared().await;
    let store = RedisStore::connect(cluster.url()).await.unwrap();
    let client = LockClient::builder(store).with_namespace("ops").build().unwrap();
    let (mut guards, mut keys) = (Vec::new(), Vec::new());
    for number in 0..12 {
        keys.push(format!("k{number:02}"));
        guards.push(client.mutex(keys[number].clone()).lock().await.unwrap());
    }
    let homes: std::collections::HashSet<_> =
        keys.iter().map(|key| cluster.home(&format!("ops:{key}"))).collect();
    assert_eq!(homes.len(), 3, "the keys are on all nodes");
    let list = client.list(100).await.unwrap();
    let mut listed: Vec<_> = list.entries.iter().map(|lock| lock.key.to_string()).collect();
    listed.sort();
    assert_eq!(listed, keys);
    assert!(client.inspect(keys[3].clone()).await.unwrap().owner.is_some());
    assert!(client.force_release(keys[3].clone()).await.unwrap().is_some());
    assert!(client.inspect(keys[3].clone()).await.unwrap().owner.is_none());
    let health = client.health().await.unwrap();
    let is_named = ["redis ", "valkey "].iter().any(|name| health.server.starts_with(name));
    assert!(health.problems.is_empty() && is_named, "{health:?}");
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// A user who may not subscribe is warned about once, and waits by asking again.
#[tokio::test]
async fn waiter_without_messages_polls() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    for server in cluster.servers() {
        let user = "ACL SETUSER mute on >password allkeys allchannels allcommands -ssubscribe";
        let () = server.cli(user);
    }
    let url = cluster.url().replace("://", "://mute:password@");
    let log = LogCapture::start();
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").with_wait(ms(20_000)).lock());
    cluster.queue_of("k", 1).await;
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    assert!(took < ms(1_000), "{took:?}");
    next.unwrap().unwrap().release().await.unwrap();
    let told = log.text().matches("no sharded pub/sub notifications").count();
    assert_eq!(told, 1, "{}", log.text());
}

/// What answers for a node takes no subscription: packets to the listener vanish, or the connection
/// closes. Waiters there poll, those of other nodes do not, and when the node can be heard again,
/// its waiters listen to it.
async fn waiter_polls_at_the_node_whose_subscriptions_fail(action: Action) {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let proxy = Proxy::to(cluster.server(0));
    let rule = proxy.rule(Op::Subscribe, action).always();
    let (own, mapped) = (cluster.server(0).port(), proxy.port());
    let store = RedisStore::builder(cluster.url()).with_address_map(move |host, port| {
        (host.to_owned(), if port == own { mapped } else { port })
    });
    let waiter = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    let holder = client(&cluster.url()).await;
    let heard =
        |node: usize| !cluster.server(node).cli::<Vec<String>>("PUBSUB SHARDCHANNELS").is_empty();

    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(20_000)).lock());
    let queued = || cluster.queued(&key) == 1;
    eventually("the waiter has its place", ms(8_000), queued).await;
    assert!(rule.hits() >= 2 && !heard(0), "{} attempts: no test", rule.hits());
    let other = cluster.key_on(1, "other");
    let held = holder.mutex(other.clone()).lock().await.unwrap();
    let behind = tokio::spawn(waiter.mutex(other.clone()).with_wait(ms(20_000)).lock());
    eventually("the waiter listens to the other node", ms(5_000), || heard(1)).await;
    for (guard, waiting) in [(guard, waiting), (held, behind)] {
        guard.release().await.unwrap();
        let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
        assert!(took < ms(3_000), "{took:?}");
        next.unwrap().unwrap().release().await.unwrap();
    }

    rule.end();
    let guard = holder.mutex(key.clone()).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(40_000)).lock());
    eventually("the waiter listens to the node", ms(30_000), || heard(0)).await;
    guard.release().await.unwrap();
    let (next, _) = within("the waiter's turn", ms(5_000), waiting).await;
    next.unwrap().unwrap().release().await.unwrap();
    wait_idle(&waiter).await;
}

#[tokio::test]
async fn waiter_polls_at_a_node_that_answers_no_subscription() {
    waiter_polls_at_the_node_whose_subscriptions_fail(Action::LoseRequest).await;
}

#[tokio::test]
async fn waiter_polls_at_a_node_that_closes_at_a_subscription() {
    waiter_polls_at_the_node_whose_subscriptions_fail(Action::CloseBefore).await;
}

/// The documented permissions are enough: waiting and handing on included, no node notes a denial.
#[tokio::test]
async fn documented_permissions_leave_no_line_in_the_acl_log() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let user = documented_cluster_user();
    for server in cluster.servers() {
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(&user);
        let () = server.connect().command(&command).unwrap();
    }
    let url = cluster.url().replace("://", &format!("://{}:password@", user[0]));
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let key = cluster.key_on(0, "k");
    let guard = holder.mutex(key.clone()).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(20_000)).lock());
    cluster.queue_of(&key, 1).await;
    cluster.migration(&format!("lock:{key}"), 1).finish();
    let heard = || !cluster.server(1).cli::<Vec<String>>("PUBSUB SHARDCHANNELS").is_empty();
    eventually("the waiter listens there", ms(5_000), heard).await;
    guard.extend(ms(20_000)).await.unwrap();
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    assert!(took < ms(1_500), "{took:?}");
    next.unwrap().unwrap().release().await.unwrap();
    for server in cluster.servers() {
        let log: Vec<redis::Value> = server.cli("ACL LOG");
        assert!(log.is_empty(), "{log:?}");
    }
}
