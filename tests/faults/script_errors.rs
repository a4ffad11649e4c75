//! Commands that the server refuses within a script: Redis 6.2 words these errors otherwise than
//! later ones.

use std::error::Error as _;

use lock_core::{Error, ErrorKind};
use lock_testkit::{RedisServer, client, documented_user, eventually, ms};

fn assert_error(error: &Error, kind: ErrorKind, words: &str, reason: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    assert!(error.to_string().contains(words) && source.contains(reason), "{error}: {source}");
    assert!(!source.contains("user_script: "), "{source}");
}

/// redis#10165, redis-py#3443: the code of an error is overlooked, so a definite error becomes
/// "unknown".
#[tokio::test]
async fn refused_write_of_a_script_is_a_definite_error_that_names_the_reason() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("held").with_ttl(ms(60_000)).lock().await.unwrap();
    let check = async |words, reason| {
        let error = client.mutex("k").try_lock().await.unwrap_err();
        assert_error(&error, ErrorKind::Unavailable, words, reason);
        assert!(!server.has("lock:k"));
    };

    let () = server.cli("CONFIG SET maxmemory 1");
    check("out of memory", "command not allowed when used memory > 'maxmemory'").await;
    let () = server.cli("CONFIG SET maxmemory 0");

    // Redis 6.2 does not count the replicas when a script writes.
    if !client.health().await.unwrap().server.starts_with("redis 6.") {
        let () = server.cli("CONFIG SET min-replicas-to-write 1");
        check("too few replicas", "Not enough good replicas").await;
        let () = server.cli("CONFIG SET min-replicas-to-write 0");
    }

    // A snapshot cannot replace a directory.
    let (_, dir): (String, String) = server.cli("CONFIG GET dir");
    std::fs::create_dir(format!("{dir}/dump.rdb")).unwrap();
    let () = server.connect().command(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    let () = server.cli("BGSAVE");
    let failed = || server.cli::<String>("INFO").contains("rdb_last_bgsave_status:err");
    eventually("the snapshot fails", ms(10_000), failed).await;
    check("refused", "MISCONF").await;
    let error = guard.extend(ms(90_000)).await.unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, "refused", "MISCONF");
    let () = server.cli("CONFIG SET stop-writes-on-bgsave-error no");

    // The connection was open before, so the script is the first to meet it.
    let () = server.cli("REPLICAOF 127.0.0.1 1");
    check("is a replica", "").await;
}

/// The script catches the error of a claim and of a renewal, and not that of an inspection.
#[tokio::test]
async fn missing_permission_within_a_script_is_named() {
    let server = RedisServer::start();
    let acl = documented_user();
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(&acl);
    let () = server.connect().command(&command).unwrap();
    let url = server.url_for(acl[0], "password");
    let (client, other) = (client(&url).await, client(&url).await);
    let guard = client.mutex("held").with_ttl(ms(60_000)).lock().await.unwrap();
    for lacking in ["-get", "-pttl", "-exists"] {
        let () = server.cli(&format!("ACL SETUSER {} {lacking}", acl[0]));
        let error = other.mutex("held").try_lock().await.unwrap_err();
        assert_error(&error, ErrorKind::Unknown, "permission", "script");
        if lacking != "-exists" {
            let error = guard.extend(ms(90_000)).await.unwrap_err();
            assert_error(&error, ErrorKind::Unknown, "permission", "script");
            let error = client.inspect("held").await.unwrap_err();
            assert_error(&error, ErrorKind::Unknown, "permission", "script");
        }
        let () = server.cli(&format!("ACL SETUSER {} +{}", acl[0], &lacking[1..]));
    }
    guard.release().await.unwrap();
}
