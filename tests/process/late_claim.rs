//! A claim that the server executes when the client has given it up and released it on another
//! connection.

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{Error, LockClient, LockOptions};
use lock_testkit::{Experiment, Op, RedisServer, classify, eventually, is_due, ms, scale};

/// Clients that claim at the same time, each a key of its own.
const CLIENTS: usize = 16;
/// After this long without an answer a claim is repeated, and soon the connection with it.
const REQUEST_TIMEOUT: u64 = 60;

fn connections(server: &RedisServer) -> usize {
    let stats: String = server.cli("INFO stats");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

/// Claims that the server has executed since its log of commands was emptied.
fn claims_executed(server: &RedisServer) -> usize {
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let log: Vec<Entry> = server.cli("SLOWLOG GET -1");
    log.iter().filter(|entry| classify(&entry.3) == Op::Acquire).count()
}

/// Asks again if the answer was late for the short timeout, as on a busy machine.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, Error>) -> T {
    let mut round = 0;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(is_due(round, 1, false), "{error:?}"),
        }
        round += 1;
    }
}

/// The server is stopped until a claim is given up and released on a second connection. Then it
/// executes the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_arrives_after_its_release_takes_no_lock() {
    let events = ["claims given up", "late claims found void", "connections replaced"];
    let fault = "SIGSTOP of the server until the claim is given up on a second connection";
    let mut experiment = Experiment::new(30, "no orphan", fault, &events);
    let server = RedisServer::start();
    server.load_scripts();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let connect = async || {
            let store = RedisStore::builder(server.url());
            store.with_request_timeout(ms(REQUEST_TIMEOUT)).connect().await
        };
        let store = answered(connect).await;
        // An orphan would be there for long.
        let defaults = LockOptions::new().with_ttl(ms(60_000)).with_wait(ms(200));
        clients.push(LockClient::builder(store).with_defaults(defaults).build().unwrap());
    }
    // Tells of each time that a lock is taken, however short.
    let () = server.cli("CONFIG SET notify-keyspace-events KA");
    let mut listener = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    listener.set_read_timeout(Some(ms(20))).unwrap();
    let mut taken = listener.as_pubsub();
    taken.psubscribe("__keyspace@0__:lock:late-*").unwrap();
    let guard = answered(async || clients[0].mutex("late-listened-for").lock().await).await;
    drop(guard.release().await);
    let mut messages = std::iter::repeat_with(|| taken.get_message().ok()).take(100);
    let first = messages.find_map(|message| message).expect("the listener gets no message");
    assert_eq!(first.get_payload::<String>().unwrap(), "set");
    while taken.get_message().is_ok() {}
    // Tells of each command that is executed.
    let () = server.cli("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 100000");
    while let Some(round) = experiment.next_round(scale(8)) {
        let before = connections(&server);
        let () = server.cli("SLOWLOG RESET");
        server.pause();
        let claims = clients.iter().enumerate().map(|(number, client)| {
            tokio::spawn(client.mutex(format!("late-{round}-{number}")).lock())
        });
        let claims: Vec<_> = claims.collect();
        for claim in claims {
            let error = claim.await.unwrap().unwrap_err();
            assert!(error.is_store_failure(), "{error:?}");
            experiment.saw("claims given up", 1);
        }
        // By now the last of them is void.
        tokio::time::sleep(ms(REQUEST_TIMEOUT + 20)).await;
        server.resume();
        for client in &clients {
            wait_idle(client).await;
            assert!(ClientStats::of(client).is_idle());
        }
        let first = taken.get_message().map(|message| message.get_channel_name().to_owned());
        assert!(first.is_err(), "round {round}: a late claim took {first:?}");
        // All claims that were executed came late, and took no lock.
        experiment.saw("late claims found void", claims_executed(&server));
        // The connections that count them are included.
        let after = connections(&server).saturating_sub(before + 6);
        experiment.saw("connections replaced", after);
        experiment.ran(1);
    }
    eventually("nothing remains", ms(1_000), || server.leftovers().is_empty()).await;
    experiment.finish();
}
