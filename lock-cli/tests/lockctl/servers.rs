//! Each command on several servers.

use lock_testkit::{Quorum, RedisCluster, Sentinels};
use serde_json::Value;

use super::{finished, lockctl, output, section, until};

#[tokio::test]
async fn each_command_takes_sentinels_a_cluster_and_a_quorum() {
    let group = Sentinels::start(1).await;
    every_command(&group.url(), "/shop (now redis://127.0.0.1:");
    let cluster = RedisCluster::start().await;
    every_command(&cluster.url(), "redis+cluster://127.0.0.1:");
    let quorum = Quorum::of_age(3, "lock");
    every_command(&quorum.urls().join(" "), "quorum of 3: redis://127.0.0.1:");
    // A lock that was taken from its owner on a quorum stays taken for the rest of its ttl.
    until("nothing is left", || {
        group.server(0).leftovers().is_empty()
            && cluster.leftovers().is_empty()
            && quorum.leftovers().is_empty()
    });
}

/// Runs each command that needs a store on the one at `url`, which `shown` names.
fn every_command(url: &str, shown: &str) {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo $LOCK_KEY $LOCK_FENCE";
    let (status, told, errors) = output(url, &["run", "--key", "k", "--", "sh", "-c", script]);
    assert_eq!(status, 0, "{url}: {errors}");
    assert!(told.trim().strip_prefix("k ").unwrap().parse::<u64>().unwrap() > 0, "{url}: {told}");

    let holder = section(url, dir.path(), &["--ttl", "2s", "--grace", "200ms"], "");
    let (status, _, errors) = output(url, &["run", "-k", "k", "--wait", "none", "--", "true"]);
    assert_eq!(status, 75, "{url}: {errors}");
    let waiting = || lockctl(url, &["wait", "k", "--timeout", "1m"]).spawn().unwrap();
    let (waiter, who) = (waiting(), || {
        let (_, told, errors) = output(url, &["who", "k", "--json"]);
        serde_json::from_str::<Value>(&told).unwrap_or_else(|_| panic!("{url}: {errors}"))
    });
    until("it waits", || who()["waiting"] == 1);
    let client = who()["owner"]["client"].clone();
    assert!(client.as_str().is_some_and(|client| client.len() == 8), "{url}: {client}");
    let (status, told, errors) = output(url, &["ls", "--json"]);
    assert_eq!(status, 0, "{url}: {errors}");
    let listed: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!((&listed["key"], &listed["owner"]["client"]), (&Value::from("k"), &client), "{url}");

    let (status, told, errors) = output(url, &["release", "k", "--force", "--yes", "--json"]);
    assert!(status == 0 && told.contains("\"released\":true"), "{url}: {told}{errors}");
    assert_eq!(finished(holder).0, 74, "{url}: the command is stopped");
    let (status, _, errors) = finished(waiter);
    assert_eq!(status, 0, "{url}: {errors}");
    until("it is free", || output(url, &["who", "k"]).0 == 1);

    let (_, told, errors) = output(url, &["doctor"]);
    assert!(errors.is_empty() && !told.contains("failed"), "{url}: {told}{errors}");
    for part in
        [shown, "can keep locks", "permissions", "latency", "hand-off", "no append-only file"]
    {
        assert!(told.contains(part), "{url}: no {part} in {told}");
    }
}
