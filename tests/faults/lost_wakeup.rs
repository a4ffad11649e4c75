//! A release that lands between a waiter's first attempt and its sleep must wake the waiter (P23).
//! ionelmc/python-redis-lock#71.

use std::time::Duration;

use lock_core::testing::wait_idle;
use lock_testkit::{Action, Gate, Op, Proxy, RedisServer, client, eventually, ms, within};

/// A round trip takes a fraction of a millisecond. The other ways to learn of a release take a
/// second. The bound lies in between and allows for a busy machine.
pub(crate) const AT_ONCE: Duration = ms(250);

/// The command that is delayed, how many of its kind come before it, and how it is delayed.
type Stage = (Op, usize, fn(Gate) -> Action);

/// A release before or after any command of the waiter is missed, so the waiter sleeps on although
/// the lock is free.
#[tokio::test]
async fn a_release_between_any_steps_of_a_waiter_wakes_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let stages: [Stage; 6] = [
        (Op::Acquire, 0, Action::HoldRequest),
        (Op::Acquire, 0, Action::HoldReply),
        (Op::Subscribe, 0, Action::HoldRequest),
        (Op::Subscribe, 0, Action::HoldReply),
        (Op::Acquire, 1, Action::HoldRequest),
        (Op::Acquire, 1, Action::HoldReply),
    ];
    for (number, (op, after, action)) in stages.into_iter().enumerate() {
        let key = format!("k{number}");
        // Clients that have not waited yet, so each of them subscribes.
        let (holder, waiter) = (client(&server.url()).await, client(&proxy.url()).await);
        let guard = holder.mutex(&key).with_ttl(ms(60_000)).lock().await.unwrap();
        server.reset_calls();
        let gate = Gate::new();
        let rule = proxy.rule(op, action(gate.clone())).after(after).once();
        let waiting = tokio::spawn(waiter.mutex(&key).with_wait(ms(20_000)).lock());
        eventually("the waiter is there", ms(5_000), || rule.hits() == 1).await;
        if matches!(action(gate.clone()), Action::HoldReply(_)) && op == Op::Acquire {
            let asked = || server.script_calls() > after as u64;
            eventually("it is executed", ms(5_000), asked).await;
        }
        guard.release().await.unwrap();
        gate.open();
        let (next, took) = within("the lock", ms(10_000), waiting).await;
        assert!(took < AT_ONCE, "stage {number}: {took:?}");
        next.unwrap().unwrap().release().await.unwrap();
        wait_idle(&waiter).await;
        assert!(!server.has(&format!("lock:{key}")));
    }
}

/// The release comes at an arbitrary time during a wait.
#[tokio::test]
async fn a_released_lock_is_taken_within_a_round_trip() {
    let server = RedisServer::start();
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let mut times = Vec::new();
    for round in 0..24 {
        let guard = a.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        let waiter = tokio::spawn(b.mutex("k").with_wait(ms(20_000)).lock());
        // The first steps of a wait take about a millisecond.
        tokio::time::sleep(Duration::from_micros(200 * round * round)).await;
        guard.release().await.unwrap();
        let (next, took) = within("the lock", ms(10_000), waiter).await;
        next.unwrap().unwrap().release().await.unwrap();
        times.push(took);
    }
    times.sort_unstable();
    // A round trip, and some time for a busy machine.
    assert!(times[12] < ms(20), "{times:?}");
    assert!(times[23] < AT_ONCE, "{times:?}");
}
