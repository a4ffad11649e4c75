//! Keys with bytes that have confused other tools.

use std::collections::HashSet;

use lock_core::testing::wait_idle;
use lock_core::{Released, key};
use lock_testkit::{RedisServer, client, client_with, ms};

const ODD: [&str; 13] = [
    "a:b", "a", "a}", "a{b}", "}{", "a\0b", "a\0", "a\r\nb", " a ", "\u{e4}", "a\u{308}", "%3a",
    "*",
];

/// P13, for complete keys. festabook#1028.
#[tokio::test]
async fn odd_keys_are_locks_of_their_own_and_leave_nothing() {
    let server = RedisServer::start();
    let locks = client(&server.url()).await;
    let other = client_with(&server.url(), lock_core::LockOptions::new().with_wait(ms(1))).await;
    let mut held = Vec::new();
    for odd in ODD {
        let guard = locks.mutex(odd).try_lock().await.unwrap();
        held.push(guard.unwrap_or_else(|| panic!("{odd:?} shares a lock")));
        let there: u32 =
            server.connect().command(&["EXISTS".to_owned(), format!("lock:{odd}")]).unwrap();
        assert_eq!(there, 1, "{odd:?} is not the name that `redis-cli get` shows");
        assert!(other.mutex(odd).lock().await.unwrap_err().is_busy(), "{odd:?}");
    }
    for guard in held {
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
    }
    wait_idle(&locks).await;
    let mut left: Vec<String> = server.cli("KEYS *");
    left.retain(|name| name != "lock:{0}:fence");
    assert!(left.is_empty(), "{left:?}");
}

/// P13, for values: `key!` never lets a value move the hash tag, and never gives two values one
/// key.
#[tokio::test]
async fn odd_values_give_keys_of_their_own() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut names = HashSet::new();
    for odd in ODD {
        let guard = client.mutex(key!("order:<odd>")).lock().await.unwrap();
        let name = guard.key().as_str().to_owned();
        assert!(name.is_ascii() && !name.contains(['{', '}', '\0', '\n', ' ']), "{name:?}");
        assert!(server.has(&format!("lock:{name}")));
        assert!(names.insert(name), "{odd:?}");
        guard.release().await.unwrap();
    }
}
