//! Passwords that the application supplies, and that are rotated while a lease is held.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lock_core::store::{Credentials, QuorumStore, QuorumStoreBuilder};
use lock_core::testing::wait_idle;
use lock_testkit::{LogCapture, Quorum, RedisServer, eventually, with_causes};

use crate::{BOUND, LONG_TTL, RESTART_DELAY, TIMEOUT, on, other_lock, renewed};

const FIRST: &str = "canary-of-the-first-password";
const SECOND: &str = "canary-of-the-second-password";
const THIRD: &str = "canary-of-the-third-password";

/// What the application knows: the password of now, and how often it was asked.
#[derive(Default)]
struct Vault {
    password: Mutex<&'static str>,
    asked: AtomicUsize,
}

impl Vault {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A store whose passwords for `user` are in the vault. What the URLs say is wrong.
fn store(quorum: &Quorum, user: &'static str, vault: &Arc<Vault>) -> QuorumStoreBuilder {
    let urls = quorum.servers().map(|server| server.url_for("stranger", "canary-of-the-url"));
    let vault = Arc::clone(vault);
    QuorumStore::builder(urls)
        .with_request_timeout(TIMEOUT)
        .with_connect_timeout(TIMEOUT)
        .with_credentials_provider(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            let password = *vault.password.lock().unwrap();
            async move { Ok::<_, io::Error>(Credentials::new(user, password)) }
        })
}

/// N8 (node-redis#2779, ioredis#1738, redisson#4713): one member after the other loses the old
/// password and its connections, and later all of them at once. Each redial asks the application
/// again.
#[tokio::test]
async fn rotated_password_costs_a_quorum_no_lease() {
    let quorum = Quorum::of_age(3, "lock");
    let takes = |server: &RedisServer, passwords: &[&str]| server.documented_user_with(passwords);
    let user = quorum.servers().map(|server| takes(server, &[FIRST])).last().unwrap();
    let is_on = |server: &RedisServer| {
        server.cli::<String>("CLIENT LIST").contains(&format!(" user={user} "))
    };
    let vault = Arc::new(Vault { password: Mutex::new(FIRST), ..Vault::default() });
    let store = store(&quorum, user, &vault).connect().await.unwrap();
    assert!(vault.asked() >= 3, "for each member");
    let client = on(store);
    let guard = client.mutex("k").with_ttl(LONG_TTL).lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;

    for server in quorum.servers() {
        takes(server, &[FIRST, SECOND]);
    }
    *vault.password.lock().unwrap() = SECOND;
    for server in quorum.servers() {
        takes(server, &[SECOND]);
        let asked = vault.asked();
        assert!(server.kill_connections() >= 1);
        other_lock(&client).await;
        eventually("it is dialled anew", BOUND, || vault.asked() > asked && is_on(server)).await;
    }
    *vault.password.lock().unwrap() = THIRD;
    let asked = vault.asked();
    for server in quorum.servers() {
        takes(server, &[THIRD]);
        assert!(server.kill_connections() >= 1);
    }
    other_lock(&client).await;
    eventually("all are dialled anew", BOUND, || {
        vault.asked() >= asked + 3 && quorum.servers().all(is_on)
    })
    .await;
    renewed(&guard).await;
    eventually("all have it still", BOUND, || quorum.having("lock:k") == 3).await;
    let refused: u64 = quorum.servers().map(|server| server.errors("WRONGPASS")).sum();
    assert_eq!(refused, 0, "a password of the URLs, or an old one, was used");
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// The password of the default user (`requirepass`), which the URLs lack.
#[tokio::test]
async fn provider_supplies_the_password_of_the_default_user_to_each_member() {
    let servers = [(); 3].map(|()| RedisServer::builder().password(FIRST).start());
    let quorum = Quorum::of(servers);
    quorum.vouch_for_all("lock");
    let urls = || quorum.servers().map(|server| format!("redis://127.0.0.1:{}/", server.port()));
    let store = || QuorumStore::builder(urls()).with_restart_delay(RESTART_DELAY);
    let error = store().connect().await.unwrap_err();
    assert!(error.is_unavailable() && with_causes(&error).contains("password"), "{error:?}");
    let with_password = store()
        .with_credentials_provider(async || {
            Ok::<_, io::Error>(Credentials::of_default_user("canary"))
        })
        // The later one counts, as for a single server.
        .with_credentials_provider(async || {
            Ok::<_, io::Error>(Credentials::of_default_user(FIRST))
        });
    let client = on(with_password.connect().await.unwrap());
    let guard = client.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    guard.release().await.unwrap();
}

/// A provider that fails for all members, and one that fails for a minority.
#[tokio::test]
async fn provider_that_fails_on_a_quorum_is_reported_without_a_secret() {
    let log = LogCapture::start();
    let quorum = Quorum::of_age(3, "lock");
    let user = quorum.servers().map(|server| server.documented_user_with(&[FIRST])).last().unwrap();
    let urls = quorum.servers().map(|server| server.url_for("canary-of-a-user", FIRST));
    let sealed = QuorumStore::builder(urls).with_credentials_provider(async || {
        Err::<Credentials, _>(io::Error::new(io::ErrorKind::NotFound, "the vault is sealed"))
    });
    let shown = format!("{sealed:?}");
    let error = sealed.connect().await.unwrap_err();
    assert!(error.is_unavailable() && error.is_retryable(), "{error:?}");
    let says = with_causes(&error);
    assert!(says.starts_with("no majority: 0 of 3 lock servers answered: "), "{says}");
    for server in quorum.servers() {
        let why = "the application has no credentials: the vault is sealed";
        let named = format!("redis://127.0.0.1:{}: {why}", server.port());
        assert!(says.contains(&named), "{says}");
    }

    let asked = AtomicUsize::new(0);
    let once = QuorumStore::builder(quorum.servers().map(RedisServer::url))
        .with_restart_delay(RESTART_DELAY)
        .with_credentials_provider(move || {
            let is_first = asked.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first {
                    Err("the vault is sealed")
                } else {
                    Ok(Credentials::new(user, FIRST))
                }
            }
        });
    let store = once.connect().await.unwrap();
    let shown = format!("{shown} {store} {store:?}");
    let client = on(store);
    let guard = client.mutex("k").lock().await.unwrap();
    eventually("the first member is dialled again", BOUND, || quorum.having("lock:k") == 3).await;
    guard.release().await.unwrap();
    let all = format!("{shown} {says} {error:?} {}", log.text());
    assert!(!all.contains("canary"), "{all}");
}
