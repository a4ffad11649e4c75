//! One member of a quorum has a wrong time. It is a minority, so locks are served, and fencing
//! tokens grow.

use std::time::Duration;

use lock_core::store::{QuorumStore, QuorumStoreBuilder};
use lock_core::{FencingToken, LockClient};
use lock_testkit::{Action, Op, Quorum, RedisServer, ms, within};

use crate::support::history::Ground;
use crate::support::wall::WallClock;

const BOUND: Duration = ms(10_000);
const HOUR: i64 = 3_600_000;

/// Two servers with the machine's clock, and one with its own.
fn quorum(clock: &WallClock) -> Quorum {
    let quorum = Quorum::of([RedisServer::start(), RedisServer::start(), clock.server(&[])]);
    for member in 0..3 {
        quorum.vouch(member, "lock");
    }
    quorum
}

fn builder(quorum: &Quorum) -> QuorumStoreBuilder {
    // A live member is not late on a busy machine.
    QuorumStore::builder(quorum.urls()).with_request_timeout(ms(2_000))
}

/// H17: a member whose clock was between two and four seconds ahead named numbers that a client
/// believed, and that the others did not accept yet.
#[tokio::test]
async fn member_with_a_wrong_time_stops_no_claim() {
    let ground = Ground::new("quorum-clock");
    let Some(clock) = WallClock::build(&ground) else { return };
    let quorum = quorum(&clock);
    // The wrong one replies first.
    let _late = [0, 1]
        .map(|member| quorum.proxy(member).rule(Op::Vote, Action::DelayReply(ms(5))).always());
    let mut fence = None::<FencingToken>;
    for ahead in [1_700, 2_500, 3_500, HOUR, -2_500, -HOUR] {
        clock.shift(ahead);
        let client =
            LockClient::builder(builder(&quorum).connect().await.unwrap()).build().unwrap();
        for _ in 0..10 {
            let guard = client.mutex("k").try_lock().await;
            let guard = guard.unwrap_or_else(|error| panic!("{ahead} ms ahead: {error:?}"));
            let guard = guard.unwrap_or_else(|| panic!("{ahead} ms ahead: taken"));
            assert!(fence < Some(guard.fencing_token()), "{ahead} ms ahead");
            fence = Some(guard.fencing_token());
            guard.release().await.unwrap();
        }
    }
}

/// A client starts while one member is away. The time of the wrong one then counts as much as that
/// of the other, and no number suits both. When the third is back, the client proposed numbers by
/// the wrong time for as long as it was ahead.
#[tokio::test]
async fn wrong_time_is_forgotten_when_the_members_are_back() {
    let ground = Ground::new("quorum-clock-back");
    let Some(clock) = WallClock::build(&ground) else { return };
    let quorum = quorum(&clock);
    clock.shift(HOUR);
    quorum.proxy(1).turn_away(true);
    let client = LockClient::builder(builder(&quorum).connect_lazy().unwrap()).build().unwrap();
    let error = client.mutex("k").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("clocks of the lock servers are apart"), "{error}");
    quorum.proxy(1).turn_away(false);
    let (guard, _) = within("a lock", BOUND, client.mutex("k").with_wait(BOUND).lock()).await;
    guard.unwrap().release().await.unwrap();
}
