//! The clock of one member of a quorum is moved.

use std::time::Instant;

use lock_core::LockClient;
use lock_core::store::QuorumStore;
use lock_testkit::{LogCapture, RedisServer, ms};
use lock_tests::recorded;
use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;

use crate::support::history::Ground;
use crate::support::wall::WallClock;

/// The member is named while its clock is apart. The others grant the locks meanwhile.
#[tokio::test]
async fn clock_of_a_member_is_named_while_it_is_apart() {
    let ground = Ground::new("member-clock");
    let Some(clock) = WallClock::build(&ground) else { return };
    let servers = [RedisServer::start(), RedisServer::start(), clock.server(&[])];
    servers.iter().for_each(|server| server.vouch("lock"));
    let recorder = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&recorder);
    let log = LogCapture::start();
    let store = QuorumStore::connect(servers.iter().map(RedisServer::url)).await.unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let until = async |level: &str, text: &str| {
        let end = Instant::now() + ms(30_000);
        while !log.contains(level, text) {
            assert!(Instant::now() < end, "no {text}: {}", log.text());
            client.mutex("k").lock().await.unwrap().release().await.unwrap();
            tokio::time::sleep(ms(20)).await;
        }
    };
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert!(!log.contains("WARN", "the clock of a member"), "{}", log.text());

    clock.shift(5_000);
    until("WARN", "the clock of a member of the quorum is apart from the others").await;
    assert!(log.contains(servers[2].url().trim_end_matches('/'), "standing=\"clock\""));
    let seen = recorded(&recorder);
    let ahead = |server: &RedisServer| {
        let server = server.url();
        seen[&format!("lock_quorum_member_clock_seconds {}", server.trim_end_matches('/'))][0]
    };
    assert!((4.0..6.0).contains(&ahead(&servers[2])), "{seen:?}");
    assert!(ahead(&servers[0]).abs() < 1.0 && ahead(&servers[1]).abs() < 1.0, "{seen:?}");

    clock.shift(0);
    until("INFO", "the clock of a member of the quorum agrees with the others again").await;
}
