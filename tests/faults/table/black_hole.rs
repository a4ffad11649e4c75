//! Open connections become black holes, as when a firewall forgets them, and new ones work
//! (experiment 27).

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lock_core::LockOptions;
use lock_testkit::{Experiment, Proxy, RedisServer, client_with, eventually, ms, scale, within};

const TTL: Duration = ms(5_000);
/// A renewal is due within a third of the TTL. The client gives a connection up after two commands
/// without an answer.
const RECONNECTED: Duration = ms(1_700 + 2_000);

/// Only renewals are sent, and no lease is lost.
#[tokio::test]
async fn no_lease_is_lost_to_a_black_hole() {
    let mut experiment = Experiment::new(
        27,
        "no lease of 5 s is lost",
        "black hole: open connections only",
        &["connections swallowed", "connections replaced", "leases kept"],
    );
    for _ in 0..scale(1) {
        trials_at_once(&mut experiment).await;
    }
    experiment.finish();
}

/// As many as the machine can run without being late.
const TRIALS: usize = 25;

async fn trials_at_once(experiment: &mut Experiment) {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let defaults = LockOptions::new().with_ttl(TTL);
    let hold = async |trial: usize| {
        // The hole opens at any time between two renewals.
        tokio::time::sleep(ms(1_600) / TRIALS as u32 * trial as u32).await;
        let client = client_with(&proxy.url(), defaults).await;
        let guard = client.mutex(format!("k{trial}")).lock().await.unwrap();
        guard.run_until_lost(tokio::time::sleep(ms(1_700) + TTL * 3 / 2)).await.unwrap();
        guard.release().await.unwrap();
    };
    let swallow = async {
        // The commands of the checks at the start do not count.
        let held = || server.cli::<Vec<String>>("KEYS lock:k*").len();
        eventually("all hold", ms(20_000), || held() == TRIALS).await;
        let before = proxy.connections();
        assert_eq!(before, TRIALS);
        let (dark, begun) = (proxy.black_hole(), Instant::now());
        assert_eq!(dark, TRIALS, "one connection each");
        let replaced = || proxy.connections() == before + TRIALS;
        eventually("all are connected again", ms(20_000), replaced).await;
        (dark, proxy.connections() - before, begun.elapsed())
    };
    let all = async { tokio::join!(swallow, join_all((0..TRIALS).map(hold))) };
    let (((swallowed, replaced, took), kept), _) = within("all trials", ms(60_000), all).await;
    println!("{replaced} connections replaced in {took:?}");
    assert!(took < RECONNECTED, "{took:?}");
    eventually("nothing is left", ms(5_000), || server.leftovers().is_empty()).await;
    experiment.ran(TRIALS);
    experiment.saw("connections swallowed", swallowed);
    experiment.saw("connections replaced", replaced);
    experiment.saw("leases kept", kept.len());
}

/// A client that claims all the time is connected again within two seconds.
#[tokio::test]
async fn a_client_reconnects_within_two_seconds_of_a_black_hole() {
    let mut experiment = Experiment::new(
        27,
        "connected again within 2 s",
        "black hole: open connections only",
        &["unknown outcomes", "connections replaced"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    for trial in 0..scale(3) {
        let key = format!("k{trial}");
        let before = proxy.connections();
        assert!(proxy.black_hole() > 0);
        let begun = Instant::now();
        let mut unknown = 0;
        loop {
            match client.mutex(&key).try_lock().await {
                Ok(Some(guard)) => break drop(guard),
                Ok(None) => panic!("no other client wants it"),
                Err(error) => unknown += usize::from(error.is_unknown()),
            }
        }
        let took = begun.elapsed();
        println!("connected again in {took:?}");
        assert!(took < ms(2_000), "{took:?}");
        experiment.ran(1);
        experiment.saw("unknown outcomes", unknown);
        experiment.saw("connections replaced", proxy.connections() - before);
    }
    lock_core::testing::wait_idle(&client).await;
    eventually("one connection is left", ms(10_000), || server.clients() == 1).await;
    assert!(server.leftovers().is_empty());
    experiment.finish();
}
