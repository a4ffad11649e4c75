//! The server's clock goes back by a minute under a holder, and the server keeps the lock for as
//! much longer than any client asked.
//!
//! N9: valkey-io/valkey#2651. The first renewal after the step shows it to the client, the next one
//! takes the minute back.

use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::{LockClient, LockOptions, MutexGuard, Released};
use lock_testkit::{
    Action, Gate, Op, Proxy, RedisServer, Rule, client, client_with, eventually, ms, within,
};

use crate::support::history::Ground;
use crate::support::wall::WallClock;
use crate::support::worker::Worker;

const MINUTE: i64 = 60_000;
const TTL: u64 = 3_000;
const LONG: Duration = ms(30_000);
/// A renewal that is sent may cut for as long.
const REQUEST_TIMEOUT: Duration = ms(4_000);

/// What is left of the lock never falls below what the holder counts on.
fn covers(server: &RedisServer, guard: &MutexGuard) -> i64 {
    let (begun, counts_on) = (Instant::now(), guard.remaining());
    let left = server.pttl("lock:k");
    let had = ms(u64::try_from(left).unwrap()) + begun.elapsed();
    assert!(had >= counts_on, "{had:?} were left, the holder counted on {counts_on:?}");
    left
}

/// A lease of 0.9 s kept its key for 60 s, so a crash of the holder blocked the key for a minute.
#[tokio::test]
async fn renewals_bring_an_expiry_back_after_the_clock_goes_back() {
    let ground = Ground::new("clock-step");
    let Some(clock) = WallClock::build(&ground) else { return };
    let server = clock.server(&[]);
    let (mut holder, _) = Worker::hold(&server, "k", 900);
    clock.shift(-MINUTE);
    assert!(server.pttl("lock:k") > MINUTE - 1_000);
    eventually("a renewal brings it back", ms(20_000), || server.pttl("lock:k") <= 950).await;
    let waiter = client(&server.url()).await;
    assert!(waiter.mutex("k").try_lock().await.unwrap().is_none(), "it is still held");
    holder.kill();
    let mutex = waiter.mutex("k").with_wait(ms(20_000));
    let (guard, took) = within("the lock", ms(20_000), mutex.lock()).await;
    assert!(took < ms(5_000), "{took:?}");
    assert_eq!(guard.unwrap().release().await.unwrap(), Released::InTime);
}

/// A renewal that shortens to its own ttl would end an extension that the holder counts on.
#[tokio::test]
async fn extension_outlasts_the_renewals_after_the_clock_goes_back() {
    let ground = Ground::new("clock-step-extended");
    let Some(clock) = WallClock::build(&ground) else { return };
    let server = clock.server(&[]);
    let client = client_with(&server.url(), LockOptions::new().with_ttl(ms(TTL))).await;
    let guard = client.mutex("k").lock().await.unwrap();
    guard.extend(ms(9_000)).await.unwrap();
    clock.shift(-MINUTE);
    eventually("a renewal brings it back", ms(30_000), || covers(&server, &guard) <= 9_000).await;
    eventually("the extension is used up", ms(30_000), || {
        covers(&server, &guard) <= i64::try_from(TTL).unwrap() + 100
    })
    .await;
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
}

/// A lock that is held, and a renewal that cuts: it is under way on a connection that broke, and
/// arrives when the gate opens.
struct LateCut {
    server: RedisServer,
    _client: LockClient,
    guard: MutexGuard,
    gate: Gate,
    _proxy: Proxy,
    _stray: Rule,
}

impl LateCut {
    async fn new(clock: &WallClock) -> Self {
        let server = clock.server(&[]);
        let proxy = Proxy::to(&server);
        let store = RedisStore::builder(proxy.url()).with_request_timeout(REQUEST_TIMEOUT);
        let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
        let guard = client.mutex("k").with_ttl(ms(TTL)).lock().await.unwrap();
        clock.shift(-MINUTE);
        let seen = proxy.seen(Op::Renew);
        let renewed = || proxy.seen(Op::Renew) > seen;
        eventually("a renewal shows the step", ms(10_000), renewed).await;
        let gate = Gate::new();
        let stray = proxy.rule(Op::Renew, Action::Stray(gate.clone())).once();
        eventually("the next one is on its way", ms(10_000), || stray.hits() == 1).await;
        proxy.close_all();
        Self { server, _client: client, guard, gate, _proxy: proxy, _stray: stray }
    }
}

/// An extension that the server executes before the cut would be cut to the ttl, so it is not
/// confirmed.
#[tokio::test]
async fn extension_ahead_of_a_late_cut_is_not_confirmed() {
    let ground = Ground::new("clock-step-ahead");
    let Some(clock) = WallClock::build(&ground) else { return };
    let LateCut { server, guard, gate, .. } = &LateCut::new(&clock).await;
    let refused = guard.extend(LONG).await.unwrap_err();
    assert!(refused.is_unknown(), "{refused}");
    assert!(covers(server, guard) > MINUTE - 10_000, "nothing has brought it back");
    gate.open();
    eventually("the cut arrives", ms(10_000), || covers(server, guard) <= 3_000).await;
    assert!(guard.is_valid());
}

/// A cut that arrives when the holder counts on an extension does nothing.
#[tokio::test]
async fn late_cut_leaves_a_confirmed_extension_alone() {
    let ground = Ground::new("clock-step-behind");
    let Some(clock) = WallClock::build(&ground) else { return };
    let LateCut { server, guard, gate, .. } = &LateCut::new(&clock).await;
    let extended = async {
        while let Err(error) = guard.extend(LONG).await {
            assert!(error.is_unknown(), "{error}");
            tokio::time::sleep(ms(50)).await;
        }
    };
    within("an extension is confirmed", ms(20_000), extended).await;
    assert!(guard.remaining() > LONG / 2);
    let calls = server.script_calls();
    gate.open();
    // The cut, and the next renewal.
    eventually("they arrive", ms(30_000), || {
        covers(server, guard);
        server.script_calls() >= calls + 2
    })
    .await;
    covers(server, guard);
}
