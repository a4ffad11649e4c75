//! Commands of many keys in one call, and a user who may not use one of the keys.

use futures_util::future::join_all;
use lock_core::LockClient;
use lock_core::testing::wait_idle;
use lock_testkit::{RedisServer, client, ms, within};

/// A user who may use the locks `lock:a…` and no other, which a server cannot tell from one key
/// that was forgotten.
const ALL_BUT_B: &str = "ACL SETUSER default resetkeys ~lock:a* ~lock:{0}:*";
const MANY: usize = 100;

/// Locks for [`MANY`] keys; the user of [`ALL_BUT_B`] may not use the one in the middle.
fn mutexes(client: &LockClient) -> Vec<lock_core::Mutex> {
    let key = |number| if number == MANY / 2 { "b".to_owned() } else { format!("a{number}") };
    (0..MANY).map(|number| client.mutex(key(number)).with_ttl(ms(60_000))).collect()
}

/// Commands that travel together do not fail together.
// amazon-dynamodb-lock-client#116, apache/hudi#19742
#[tokio::test]
async fn only_the_claim_of_the_key_without_permission_is_refused() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let () = server.cli(ALL_BUT_B);
    for _ in 0..5 {
        let mutexes = mutexes(&client);
        let outcomes = join_all(mutexes.iter().map(lock_core::Mutex::try_lock)).await;
        let mut guards = Vec::new();
        for (number, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(guard) => guards.push(guard.unwrap()),
                Err(error) => {
                    assert_eq!(number, MANY / 2, "{error:?}");
                    assert!(error.is_unavailable() && !error.is_retryable(), "{error:?}");
                }
            }
        }
        assert_eq!(guards.len(), MANY - 1);
        for released in join_all(guards.into_iter().map(lock_core::MutexGuard::release)).await {
            released.unwrap();
        }
    }
    wait_idle(&client).await;
}

/// The permission is lost while the locks are held.
#[tokio::test]
async fn only_the_release_of_the_key_without_permission_is_refused_and_not_repeated() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for awaited in [true, false] {
        let () = server.cli("ACL SETUSER default ~*");
        let locks = mutexes(&client);
        let guards = join_all(locks.iter().map(lock_core::Mutex::lock)).await;
        let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
        let () = server.cli(ALL_BUT_B);
        if awaited {
            let releases = guards.into_iter().map(lock_core::MutexGuard::release);
            let outcomes = join_all(releases).await;
            let refused: Vec<_> = (0..MANY).filter(|number| outcomes[*number].is_err()).collect();
            assert_eq!(refused, [MANY / 2]);
        } else {
            drop(guards);
        }
        // The ttl is a minute, and the refusal lasts.
        within("the releaser to give up", ms(5_000), wait_idle(&client)).await;
        let () = server.cli("ACL SETUSER default ~*");
        assert_eq!(server.cli::<Vec<String>>("KEYS lock:[ab]*"), ["lock:b"]);
        let _: i64 = server.cli("DEL lock:b");
    }
}

/// Renewals travel together, too.
#[tokio::test]
async fn only_the_lease_of_the_key_without_permission_is_not_renewed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let ttl = ms(4_000);
    let locks: Vec<_> = mutexes(&client).into_iter().map(|lock| lock.with_ttl(ttl)).collect();
    let guards = join_all(locks.iter().map(lock_core::Mutex::lock)).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let () = server.cli(ALL_BUT_B);
    within("a loss", ms(10_000), guards[MANY / 2].lease().lost()).await;
    let lost: Vec<_> = (0..MANY).filter(|number| !guards[*number].is_valid()).collect();
    assert_eq!(lost, [MANY / 2]);
    drop(guards);
    wait_idle(&client).await;
}
