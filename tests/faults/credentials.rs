//! Passwords that are rotated while the program runs.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lock_core::LockClient;
use lock_core::store::{Credentials, RedisStore};
use lock_testkit::{RedisServer, eventually, ms, within};

const FIRST: &str = "canary-of-the-first-password";
const SECOND: &str = "canary-of-the-second-password";

// node-redis#2779, ioredis#1738, redisson#4713
#[tokio::test]
async fn a_rotated_password_is_used_at_the_next_dial() {
    for protocol in ["resp3", "resp2"] {
        let server = RedisServer::start();
        let user = server.documented_user_with(&[FIRST]);
        let (current, asked) = (Arc::new(Mutex::new(FIRST)), Arc::new(AtomicUsize::new(0)));
        let (password, count) = (Arc::clone(&current), Arc::clone(&asked));
        // What the URL says is not used.
        let url = server.url_for("stranger", "wrong");
        let store = RedisStore::builder(format!("{url}?protocol={protocol}"))
            .with_credentials_provider(move || {
                count.fetch_add(1, Ordering::SeqCst);
                let password = *password.lock().unwrap();
                async move { Ok::<_, io::Error>(Credentials::new(user, password)) }
            });
        let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
        let guard = client.mutex("held").lock().await.unwrap();
        *current.lock().unwrap() = SECOND;
        server.documented_user_with(&[SECOND]);
        assert!(server.kill_connections() >= 1);
        let lock = client.mutex("k").with_wait(ms(5_000)).lock();
        within("a lock", ms(5_000), lock).await.0.unwrap().release().await.unwrap();
        // A waiter by RESP2 needs a second connection.
        let () = server.cli("SET lock:taken other PX 60000");
        let waiter = tokio::spawn(client.mutex("taken").with_wait(ms(20_000)).lock());
        eventually("it is queued", ms(5_000), || server.inboxes().len() == 1).await;
        waiter.abort();
        let dials = if protocol == "resp3" { 2 } else { 3 };
        assert!(asked.load(Ordering::SeqCst) >= dials, "once for each connection");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_reported_without_a_secret() {
    let server = RedisServer::start();
    let url = server.url_for("canary-of-a-user", "canary-of-a-password");
    let store = RedisStore::builder(url).with_credentials_provider(async || {
        Err::<Credentials, _>(io::Error::new(io::ErrorKind::NotFound, "the vault is sealed"))
    });
    assert!(!format!("{store:?}").contains("canary"));
    let error = store.connect().await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("credentials"), "{error}");
    let cause = std::error::Error::source(&error).unwrap();
    assert_eq!(cause.to_string(), "the vault is sealed");

    // A provider that never answers takes no longer than a dial may.
    let never = RedisStore::builder(server.url())
        .with_credentials_provider(std::future::pending::<Result<Credentials, io::Error>>);
    let (connected, took) = within("an answer", ms(5_000), never.connect()).await;
    assert!(connected.unwrap_err().is_unavailable() && took < ms(2_500), "{took:?}");

    let of_default = RedisServer::builder().password(FIRST).start();
    let url = of_default.url().replace(FIRST, "wrong");
    let store = RedisStore::builder(url).with_credentials_provider(async || {
        Ok::<_, io::Error>(Credentials::of_default_user(FIRST))
    });
    assert!(!format!("{:?}", Credentials::new("canary", "canary")).contains("canary"));
    store.connect().await.unwrap();
}
