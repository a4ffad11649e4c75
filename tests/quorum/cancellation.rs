//! Futures that are dropped after each number of polls.

use std::pin::Pin;

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LockClient, LockOptions};
use lock_testkit::{Action, Op, Quorum, eventually, ms, within};
use lock_tests::cancellation::{Moment, cut};

use crate::BOUND;

/// How a key is used by the future that is dropped.
#[derive(Clone, Copy, Debug)]
enum Operation {
    TryLock,
    Lock,
    /// Behind another client.
    Wait,
    Extend,
    Release,
}

/// So long that no lock is freed by its expiry within the bound.
const TTL: std::time::Duration = ms(25_000);
/// How long the other client keeps a lock that is waited for.
const PAUSE: std::time::Duration = ms(20);
/// No future here needs more polls than this to end.
const MOST_POLLS: usize = 200;

async fn client(quorum: &Quorum) -> LockClient {
    // Timeouts are long, so each future succeeds unless it is dropped.
    let store = QuorumStore::builder(quorum.urls()).with_request_timeout(ms(4_000));
    let defaults = LockOptions::new().with_ttl(TTL).with_wait(BOUND);
    LockClient::builder(store.connect().await.unwrap()).with_defaults(defaults).build().unwrap()
}

/// H19, rueidis#1010, redisson#7272: whatever is dropped, at whatever poll, the next client gets
/// the lock at once, and nothing is left on any member.
#[tokio::test]
async fn future_dropped_after_any_number_of_polls_leaves_nothing_on_the_members() {
    use Operation::{Extend, Lock, Release, TryLock, Wait};
    let quorum = Quorum::of_age(3, "lock");
    // With this delay no reply comes in the poll that sent its command.
    let _late: Vec<_> = (0..3)
        .flat_map(|member| [Op::Acquire, Op::Vote, Op::Release].map(|op| (member, op)))
        .map(|(member, op)| quorum.proxy(member).rule(op, Action::DelayReply(ms(1))).always())
        .collect();
    let (one, other) = (client(&quorum).await, client(&quorum).await);
    let mut dropped = 0;
    for operation in [TryLock, Lock, Wait, Extend, Release] {
        for moment in [Moment::AfterItsPoll, Moment::InPlaceOfAPoll] {
            let mut polls = 0;
            loop {
                let key = format!("{operation:?}-{moment:?}-{polls}");
                if cut(trial(operation, &key, &one, &other).await, polls, moment).await {
                    break;
                }
                dropped += 1;
                let mutex = other.mutex(&key);
                let (guard, _) = within(&key, BOUND, mutex.lock()).await;
                guard.unwrap_or_else(|error| panic!("{key}: {error:?}")).release().await.unwrap();
                polls += 1;
                assert!(polls < MOST_POLLS, "{key}");
            }
        }
    }
    assert!(dropped > 10, "{dropped}");
    for client in [&one, &other] {
        within("the releases", BOUND, wait_idle(client)).await;
    }
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// Begins with what the operation needs, and gives the future that is dropped.
async fn trial<'a>(
    operation: Operation,
    key: &str,
    one: &'a LockClient,
    other: &'a LockClient,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    let mutex = one.mutex(key.to_owned());
    match operation {
        Operation::TryLock => {
            Box::pin(async move { drop(mutex.try_lock().await.unwrap().unwrap()) })
        }
        Operation::Lock => Box::pin(async move { drop(mutex.lock().await.unwrap()) }),
        Operation::Wait => {
            let rival = other.mutex(key.to_owned()).lock().await.unwrap();
            let _released = tokio::spawn(async move {
                tokio::time::sleep(PAUSE).await;
                drop(rival);
            });
            Box::pin(async move { drop(mutex.lock().await.unwrap()) })
        }
        Operation::Extend => {
            let guard = mutex.lock().await.unwrap();
            Box::pin(async move { guard.extend(TTL).await.unwrap() })
        }
        Operation::Release => {
            let guard = mutex.lock().await.unwrap();
            Box::pin(async move {
                guard.release().await.unwrap();
            })
        }
    }
}
