//! `doctor`.

use std::time::Duration;

use lock_testkit::{RedisServer, Sentinels, eventually};
use serde_json::Value;

use super::output;

#[test]
fn doctor_names_what_puts_locks_at_risk() {
    let server = RedisServer::start();
    let url = server.url();
    let (status, told, errors) = output(&url, &["doctor"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{told}");
    for part in [
        "start-up check",
        "permissions",
        "namespace `lock`",
        "server",
        "latency",
        "by a message",
        "no append-only file",
        "its clock is",
    ] {
        assert!(told.contains(part) && !told.contains("risk"), "{told}");
    }
    // The documented permissions are without it, and locks do not depend on it.
    let () = server.cli("ACL SETUSER default -scan");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 0 && told.contains("note") && told.contains("lockctl ls"), "{told}");
    let () = server.cli("ACL SETUSER default +scan");
    let () = server.cli("CONFIG SET maxmemory 1gb");
    let () = server.cli("CONFIG SET maxmemory-policy allkeys-lru");
    let (status, told, _) = output("redis://127.0.0.1:1/", &["doctor", &url, "--json"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let risk = lines.iter().find(|line| line["outcome"] == "risk").unwrap();
    assert!(status == 1 && risk["text"].as_str().unwrap().contains("allkeys-lru"), "{told}");
    let () = server.cli("CONFIG SET maxmemory 0");
    let () = server.cli("ACL SETUSER default -publish");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 1 && told.contains("waiters poll: then permit what the"), "{told}");
    let () = server.cli("ACL SETUSER default -evalsha -eval");
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 69 && told.starts_with("failed") && told.contains("permission"), "{told}");
    assert!(told.contains("lacks, for `ACL SETUSER`: +eval +evalsha +publish\n"), "{told}");
}

/// The error of a script does not say on Redis 7.0 which command or key was refused.
#[test]
fn doctor_names_the_permissions_that_are_missing() {
    let server = RedisServer::start();
    let () = server.cli("ACL SETUSER jo on >pw ~shop:* &shop:* +@all -zadd -zcount");
    let url = server.url().replace("redis://", "redis://jo:pw@");
    let (status, told, _) = output(&url, &["doctor", "--namespace", "shop"]);
    assert!(status == 69 && told.contains("lacks, for `ACL SETUSER`: +zadd +zcount\n"), "{told}");
    let () = server.cli("ACL SETUSER jo +zadd +zcount");
    let (status, told, _) = output(&url, &["doctor", "--namespace", "shop"]);
    assert!(status == 0 && told.contains("all that locks of the namespace `shop` need"), "{told}");
    // Of another namespace than the user's.
    let (status, told, _) = output(&url, &["doctor"]);
    assert!(status == 69 && told.contains("lacks, for `ACL SETUSER`: ~lock:* &lock:*\n"), "{told}");
    assert!(told.contains("no lock of the namespace `lock`: "), "{told}");
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// With sentinels it shows the master of the moment, and what keeps them from a failover.
#[tokio::test]
async fn doctor_shows_the_master_that_sentinels_name() {
    let group = Sentinels::start(1).await;
    let url = group.url();
    let (status, told, errors) = output(&url, &["doctor"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{told}");
    let now = format!("/shop (now redis://127.0.0.1:{}) can keep locks", group.server(0).port());
    assert!(told.contains(&now), "{told}");
    group.proxy(2).turn_away(true);
    let () = group.server(1).cli("REPLICAOF NO ONE");
    eventually("it has no replica", Duration::from_secs(10), || {
        group.server(0).cli::<String>("INFO replication").contains("connected_slaves:0")
    })
    .await;
    let (status, told, _) = output(&url, &["doctor"]);
    assert_eq!(status, 1, "{told}");
    for part in ["is named by 2 of 3 sentinels only", "has no replica"] {
        assert!(told.contains(part), "{told}");
    }
    let (status, told, _) = output(&url.replace("/shop", "/shpo"), &["doctor"]);
    assert!(status == 69 && told.contains("no master `shpo`"), "{told}");
}
