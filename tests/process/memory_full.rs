//! A server whose memory is full.

use lock_core::{ErrorKind, Released};
use lock_testkit::{Experiment, LogCapture, RedisServer, client, eventually, ms, within};

use crate::support::worker::Worker;

/// Writes keys of a kilobyte that outlive any lock, until `enough`, or there is no room.
fn fill(server: &RedisServer, enough: impl Fn() -> bool) -> usize {
    let (mut cli, value) = (server.connect(), "x".repeat(1_024));
    for written in 0..20_000 {
        let set = ["SET", &format!("fill:{written}"), &value, "PX", "86400000"];
        if cli.command::<()>(&set).is_err() || written % 16 == 0 && enough() {
            return written;
        }
    }
    panic!("it is never full");
}

/// The lock is evicted. The holder notices, and the next fencing token is greater. The check at the
/// start had warned of it.
#[tokio::test(flavor = "current_thread")]
async fn evicted_lock_is_lost_and_the_next_token_is_greater() {
    let events = ["locks evicted", "leases lost", "warnings at the start", "greater numbers"];
    let name = "lost within a renewal, numbers grow, warned of at the start";
    let fault = "memory full, eviction by volatile-ttl";
    let mut experiment = Experiment::new(25, name, fault, &events);
    let server = RedisServer::start_with(&["maxmemory 3mb", "maxmemory-policy volatile-ttl"]);
    let log = LogCapture::start();
    let other = client(&server.url()).await;
    assert!(log.contains("WARN", "noeviction"), "{}", log.text());
    experiment.saw("warnings at the start", 1);
    let (worker, fence) = Worker::hold(&server, "k", 3_000);
    fill(&server, || !server.has("lock:k"));
    assert!(!server.has("lock:k"), "it was not evicted");
    experiment.saw("locks evicted", 1);
    let end = worker.end();
    assert!(end.lost.is_some() && end.released == "Ok(Expired)", "{end:?}");
    experiment.saw("leases lost", 1);
    let (guard, _) = within("the lock", ms(5_000), other.mutex("k").lock()).await;
    assert!(guard.unwrap().fencing_token().get() > fence);
    experiment.saw("greater numbers", 1);
    experiment.ran(1);
    experiment.finish();
}

/// Nothing is evicted, and nothing new can be written: claims fail for certain, holders keep,
/// lengthen and release what they have, and a waiter gets the lock when there is room.
#[tokio::test]
async fn full_server_refuses_claims_and_keeps_held_locks() {
    let events = ["claims refused", "leases kept", "leases lengthened", "locks released"];
    let name = "claims fail for certain; renewal, extend and release go on";
    let mut experiment = Experiment::new(25, name, "memory full, noeviction", &events);
    let server = RedisServer::start_with(&["maxmemory 3mb", "maxmemory-policy noeviction"]);
    let client = client(&server.url()).await;
    let guard = client.mutex("alone").with_ttl(ms(1_500)).lock().await.unwrap();
    let (worker, fence) = Worker::hold(&server, "k", 1_500);
    let waiting = tokio::spawn(client.mutex("k").with_wait(ms(30_000)).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    fill(&server, || false);
    // Beyond doubt: some buffer may be given back in any moment.
    let () = server.cli("CONFIG SET maxmemory 2500000");

    let error = client.mutex("new").with_wait(ms(300)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("out of memory"), "{error}");
    assert!(!server.has("lock:new"));
    experiment.saw("claims refused", 1);

    guard.extend(ms(5_000)).await.unwrap();
    assert!(server.pttl("lock:alone") > 4_000 && guard.remaining() > ms(4_000));
    experiment.saw("leases lengthened", 1);
    // The renewals of the other one go on for longer than its ttl.
    assert!(worker.is_silent(ms(2_000)), "it was not lost");
    experiment.saw("leases kept", 1);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(!server.has("lock:alone"));
    experiment.saw("locks released", 1);
    assert_eq!(worker.release().released, "Ok(InTime)");
    experiment.saw("locks released", 1);

    // Whether it was handed on or has to be claimed, the waiter gets it when there is room again.
    let keys: Vec<String> = server.cli("KEYS fill:*");
    let mut cli = server.connect();
    for key in keys {
        let _: i64 = cli.run(&format!("DEL {key}")).unwrap();
    }
    let () = server.cli("CONFIG SET maxmemory 3000000");
    let (next, _) = within("the lock", ms(5_000), waiting).await;
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token().get() > fence);
    assert_eq!(next.release().await.unwrap(), Released::InTime);
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    experiment.ran(1);
    experiment.finish();
}
