//! Claims and holders that are dropped at an arbitrary point.

use std::time::{Duration, Instant};

use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::{
    Action, Experiment, Gate, Op, Proxy, RedisServer, client_with, eventually, is_due, ms,
};
use tokio::time::timeout;

/// U2: the acquire future is dropped in flight. redisson#2714, #4368;
/// constructorfabric/gears-rust#4237; llm-d-rl-time-slicing#80.
#[tokio::test]
async fn an_acquire_that_is_dropped_in_flight_leaves_no_key_and_no_renewal() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(300))).await;
    server.load_scripts();
    let before = server.script_calls();
    let paused = Instant::now();
    let () = server.cli("CLIENT PAUSE 600");
    let mutex = client.mutex("k");
    timeout(ms(100), mutex.lock()).await.unwrap_err();
    timeout(ms(100), mutex.try_lock()).await.unwrap_err();
    timeout(ms(100), mutex.run(async |_| ())).await.unwrap_err();
    assert!(paused.elapsed() < ms(600), "all were dropped during the pause");

    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
    assert!(!server.has("lock:k"));
    assert!(server.script_calls() > before, "claims were in flight");
    stays_quiet(&server, ms(400)).await;
}

/// P8: the acquire future is dropped at a random point, 1,000 times. redis/rueidis#1010.
#[tokio::test]
async fn a_thousand_dropped_claims_leave_no_key() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(60_000))).await;
    let cut = cut_off(&client, 1_000, 30).await;
    assert!(cut.dropped > 30 && cut.granted > 30, "{cut:?}");
    // This is far less than the TTL, so no expiry freed the key.
    let keys = || server.cli::<Vec<String>>("KEYS lock:k*");
    eventually("all keys are gone", ms(5_000), || keys().is_empty()).await;
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
    assert!(keys().is_empty());
}

/// P21, R1: the claim is cancelled when its grant arrives, 10,000 times. The bug left a key that
/// was renewed for ever. redisson#7272.
#[tokio::test]
async fn ten_thousand_claims_cancelled_around_their_grant_leave_no_renewal() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(1_000))).await;
    let cut = cut_off(&client, 10_000, 300).await;
    assert!(cut.dropped > 300 && cut.granted > 300, "{cut:?}");
    wait_idle(&client).await;
    assert!(ClientStats::of(&client).is_idle());
    assert!(server.cli::<Vec<String>>("KEYS lock:k*").is_empty());
    stays_quiet(&server, ms(500)).await;
}

/// R6, P4: a task is aborted while it holds the lock, and while it claims it. redisson#2714, #4368;
/// blnk#354.
#[tokio::test]
async fn the_lock_of_an_aborted_task_is_released() {
    let mut experiment = Experiment::new(
        41,
        "the lock is free at once",
        "task aborted, holding and asking",
        &["tasks aborted"],
    );
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client_with(&proxy.url(), LockOptions::new().with_ttl(ms(60_000))).await;

    let mutex = client.mutex("guard");
    let holder = tokio::spawn(async move {
        let _guard = mutex.lock().await.unwrap();
        std::future::pending::<()>().await;
    });
    let mutex = client.mutex("body");
    let runner = tokio::spawn(async move { mutex.run(|_| std::future::pending::<()>()).await });
    let held = || server.has("lock:guard") && server.has("lock:body");
    eventually("both are held", ms(5_000), held).await;
    holder.abort();
    runner.abort();
    let mut aborted = 0;
    for end in [holder.await.map(|()| "the holder"), runner.await.map(|_| "the body")] {
        assert!(end.unwrap_err().is_cancelled());
        aborted += 1;
    }
    let free = || !server.has("lock:guard") && !server.has("lock:body");
    eventually("both are free", ms(5_000), free).await;

    let gate = Gate::new();
    let slow = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).times(2);
    let asking =
        [tokio::spawn(drop_guard(client.mutex("a"))), tokio::spawn(try_it(client.mutex("b")))];
    eventually("the claims are in the store", ms(5_000), || server.has("lock:a")).await;
    for task in asking {
        task.abort();
        aborted += usize::from(task.await.is_err_and(|error| error.is_cancelled()));
    }
    assert!(slow.hits() >= 1 && aborted > 2, "{aborted} were aborted");
    gate.open();
    wait_idle(&client).await;
    eventually("nothing is left", ms(5_000), || !server.has("lock:a") && !server.has("lock:b"))
        .await;
    eventually("the client is idle", ms(5_000), || ClientStats::of(&client).is_idle()).await;
    experiment.ran(1);
    experiment.saw("tasks aborted", aborted);
    experiment.finish();
}

async fn drop_guard(mutex: lock_core::Mutex) {
    drop(mutex.lock().await);
}

async fn try_it(mutex: lock_core::Mutex) {
    drop(mutex.try_lock().await);
}

#[derive(Debug, Default)]
struct Cut {
    dropped: usize,
    granted: usize,
}

/// Claims `rounds` times, and drops each claim after a time that varies around a round trip.
/// Continues until more than `enough` claims were dropped and more than `enough` were granted.
async fn cut_off(client: &LockClient, rounds: usize, enough: usize) -> Cut {
    let start = Instant::now();
    for _ in 0..20 {
        client.mutex("k-warm").lock().await.unwrap().release().await.unwrap();
    }
    let round_trip = start.elapsed() / 40;
    let (mut cut, mut round) = (Cut::default(), 0);
    while is_due(round, rounds, cut.dropped > enough && cut.granted > enough) {
        // Golden-ratio steps cover the range evenly.
        let part = (round as f64 * 0.618_033_988_75).fract();
        let patience = round_trip.mul_f64(part * 3.0);
        let mutex = client.mutex(format!("k{}", round % 7));
        tokio::select! {
            biased;
            () = spin(patience) => cut.dropped += 1,
            guard = mutex.lock() => {
                cut.granted += 1;
                drop(guard.unwrap());
            }
        }
        round += 1;
    }
    cut
}

/// Waits with far more precision than a timer.
async fn spin(span: Duration) {
    let start = Instant::now();
    while start.elapsed() < span {
        tokio::task::yield_now().await;
    }
}

/// Checks that nothing more is sent, in particular no renewal.
async fn stays_quiet(server: &RedisServer, span: Duration) {
    let calls = server.script_calls();
    tokio::time::sleep(span).await;
    assert_eq!(server.script_calls(), calls);
}
