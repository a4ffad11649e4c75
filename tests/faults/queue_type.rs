//! The key of a queue holds a value of another type.

use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, Released};
use lock_testkit::{RedisServer, client, ms, within};

/// The key of the queue holds a value of another type, so a release finds no waiter there. An error
/// from that key must not keep the lock.
#[tokio::test]
async fn a_lock_is_released_although_its_queue_cannot_be_read() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
    assert_eq!(server.cli::<i64>("RPUSH lock:{0}:q:k precious"), 1);
    assert_eq!(guard.release().await.unwrap(), Released::InTime);
    assert!(!server.has("lock:k"));
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:{0}:q:k 0 -1"), ["precious"]);
}

/// The same key makes a free lock unavailable. An error that names the key of the lock would send
/// its reader to the wrong key.
#[tokio::test]
async fn an_error_names_a_queue_of_another_type() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    assert_eq!(server.cli::<i64>("RPUSH lock:{0}:q:k precious"), 1);
    let mutex = client.mutex("k").with_ttl(ms(60_000)).with_wait(ms(20_000));
    let (outcome, _) = within("an answer", ms(5_000), mutex.lock()).await;
    for error in [outcome.unwrap_err(), mutex.try_lock().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error:?}");
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("WRONGTYPE") && why.contains("the queue"), "{why}");
    }
    wait_idle(&client).await;
    assert!(!server.has("lock:k"));
    assert_eq!(server.cli::<Vec<String>>("LRANGE lock:{0}:q:k 0 -1"), ["precious"]);
}
