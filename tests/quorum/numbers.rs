//! The numbers that claims propose, and which of them members accept.

use std::time::{SystemTime, UNIX_EPOCH};

use lock_core::LockClient;
use lock_core::testing::wait_idle;
use lock_testkit::Quorum;

use crate::client;

/// How far the last number is ahead of the clocks, in microseconds. Claims propose the number after
/// it for so long.
const AHEAD: u64 = 300_000;
/// How often it is tried again where the machine was too slow for that.
const ROUNDS: usize = 50;

/// Lets all members have accepted a number that is ahead of their clocks, and the clients know it.
/// Returns it.
async fn accepted_ahead(quorum: &Quorum, clients: &[&LockClient]) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let last = u64::try_from(now.as_micros()).unwrap() + AHEAD;
    let numbers =
        quorum.servers().flat_map(|server| server.cli::<Vec<String>>("KEYS lock:{0}:n:*"));
    let key = numbers.max().expect("there was a lock");
    for server in quorum.servers() {
        let () = server.cli(&format!("SET {key} {last}"));
        let () = server.cli("SET lock:k foreign PX 60000");
    }
    for client in clients {
        // The refusals name it.
        assert!(client.mutex("k").try_lock().await.unwrap().is_none());
        wait_idle(client).await;
    }
    for server in quorum.servers() {
        let () = server.cli("DEL lock:k");
    }
    last
}

/// Takes the lock and gives it back. Returns its number.
async fn numbered(client: &LockClient) -> u64 {
    let guard = client.mutex("k").lock().await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    wait_idle(client).await;
    // The rest counts the hand-offs within a process.
    token.get() >> 6
}

/// `vote-for-an-equal-number`: two clients know the same last number, so that both propose the next
/// one. Members accept it once, and the second claim gets a larger one.
#[tokio::test]
async fn number_that_two_claims_propose_is_granted_once() {
    let quorum = Quorum::of_age(3, "lock");
    let (one, two) = (client(&quorum).await, client(&quorum).await);
    numbered(&one).await;
    for round in 0.. {
        assert!(round < ROUNDS, "no number was proposed twice");
        let last = accepted_ahead(&quorum, &[&one, &two]).await;
        let (first, second) = (numbered(&one).await, numbered(&two).await);
        assert!(second > first, "{second} after {first}");
        if (first, second) == (last + 1, last + 2) {
            return;
        }
    }
}

/// `number-without-comparison`: a client that does not know the last number proposes a smaller one,
/// the time. Members refuse it, and the claim gets a larger one.
#[tokio::test]
async fn claim_that_proposes_a_smaller_number_gets_a_larger_one() {
    let quorum = Quorum::of_age(3, "lock");
    let (one, two) = (client(&quorum).await, client(&quorum).await);
    numbered(&one).await;
    for round in 0.. {
        assert!(round < ROUNDS, "no smaller number was proposed");
        let last = accepted_ahead(&quorum, &[&one]).await;
        let (first, second) = (numbered(&one).await, numbered(&two).await);
        assert!(second > first, "{second} after {first}");
        if (first, second) == (last + 1, last + 2) {
            return;
        }
    }
}
