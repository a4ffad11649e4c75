//! Which servers make a quorum, and what may be asked of it.

use lock_core::store::{QuorumStore, Store, Survives, connect};
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, LockOptions};
use lock_testkit::{Action, LogCapture, Op, Proxy, Quorum, RedisServer, eventually, ms, within};

use crate::{BOUND, RESTART_DELAY, TIMEOUT, TTL, client, patient_client};

fn refused(urls: &[&str]) -> String {
    let error = QuorumStore::builder(urls.iter().copied()).connect_lazy().unwrap_err();
    assert_eq!(error.field(), "members", "{error}");
    error.to_string()
}

/// HA25 (rustfs#2269), HA22: one server and two make no quorum. HA20 (RedLock.net#91,
/// node-redlock#29): neither do nodes of one cluster, or one master with its replicas.
#[test]
fn lists_that_make_no_quorum_are_refused() {
    const A: &str = "redis://:secret@a/";
    assert!(refused(&[]).contains("are missing"));
    assert!(refused(&[A]).contains("use `RedisStore`"));
    assert!(refused(&[A, "redis://b/"]).contains("two servers"));
    assert!(refused(&[A, "redis://b/", A]).contains("twice"));
    for other in ["redis+sentinel://b/m", "redis-sentinel://b/?sentinelMasterId=m"] {
        assert!(refused(&[A, "redis://c/", other]).contains("single servers"), "{other}");
    }
    for error in [refused(&[A]), refused(&[A, "redis://b/"]), refused(&[A, A, A])] {
        assert!(!error.contains("secret"), "{error}");
    }
    let bad = QuorumStore::builder([A, "http://b/", "redis://c/"]).connect_lazy().unwrap_err();
    assert_eq!(bad.field(), "url");
    for delay in [ms(0), ms(2_000), ms(25 * 3_600_000)] {
        let builder = QuorumStore::builder([A, "redis://b/", "redis://c/"]);
        let error = builder.with_restart_delay(delay).connect_lazy().unwrap_err();
        assert_eq!(error.field(), "restart_delay");
    }
}

#[test]
fn even_number_of_members_is_a_warning() {
    let log = LogCapture::start();
    let store = QuorumStore::builder(["redis://a/", "redis://b/", "redis://c/", "redis://d/"]);
    let store = store.connect_lazy().unwrap();
    assert!(log.contains("WARN", "even number of lock servers"), "{}", log.text());
    let shown = format!("{store} {store:?}");
    assert!(shown.starts_with("quorum of 4: redis://a:6379, redis://b:6379, "), "{shown}");
    let offered = store.capabilities();
    assert!(offered.fencing && offered.survives == Survives::Minority);
    assert!(offered.survives > Survives::Restart);
    assert_eq!(offered.longest_ttl, Some(ms(30_000)));
}

/// HA20: the same server under two names would vote twice.
#[tokio::test]
async fn server_under_two_names_is_refused() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(&one);
    let urls = [one.url(), proxy.url(), two.url()];
    let error = QuorumStore::connect(urls.clone()).await.unwrap_err();
    assert!(error.to_string().contains("are the same server") && !error.is_retryable(), "{error}");
    // Also where nothing was checked at the start: as soon as both connections are open.
    let store = QuorumStore::builder(urls).connect_lazy().unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let refused = async {
        loop {
            let error = client.mutex("k").try_lock().await.unwrap_err();
            if error.to_string().contains("are the same server") {
                return;
            }
        }
    };
    within("the refusal", BOUND, refused).await;
}

/// The name of a member leads to the server of another one by now, and the third is dead: one
/// server had the lease and voted twice, so that it was renewed without a majority.
#[tokio::test]
async fn lease_is_not_renewed_by_one_server_under_two_names() {
    let mut quorum = Quorum::of_age(3, "lock");
    let client = patient_client(&quorum).await;
    let guard = client.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    let log = LogCapture::start();
    quorum.proxy(2).lead_to(quorum.server(0));
    quorum.proxy(2).close_all();
    quorum.server_mut(1).kill();
    let (lost, took) = within("the loss", BOUND, guard.lost()).await;
    assert!(took < TTL + ms(1_000), "{lost:?} after {took:?}");
    assert!(!guard.is_valid());
    assert!(log.contains("WARN", "standing=away"), "{}", log.text());
    drop(guard);
}

/// The same when the connection of one name has just broken, and its vote is still on its way: it
/// counted as that of a server of its own.
#[tokio::test]
async fn late_vote_of_a_server_under_two_names_renews_no_lease() {
    const LONG: std::time::Duration = ms(25_000);
    let mut quorum = Quorum::of_age(3, "lock");
    let store = QuorumStore::builder(quorum.urls()).with_request_timeout(TIMEOUT);
    let defaults = LockOptions::new().with_ttl(LONG).with_wait(BOUND);
    let builder = LockClient::builder(store.connect().await.unwrap());
    let client = builder.with_defaults(defaults).build().unwrap();
    let guards = [client.mutex("a").lock().await, client.mutex("b").lock().await];
    let [one, two] = guards.map(Result::unwrap);
    quorum.server_mut(1).kill();
    let (server, proxy) = (quorum.server(0), quorum.proxy(2));
    proxy.lead_to(server);
    proxy.close_all();
    let refused = async {
        loop {
            match client.mutex("other").try_lock().await {
                Err(error) if error.to_string().contains("are the same server") => return,
                // Before the member was dialled anew.
                Err(_) | Ok(_) => tokio::time::sleep(ms(10)).await,
            }
        }
    };
    within("the refusal", BOUND, refused).await;
    tokio::time::sleep(ms(1_000)).await;

    proxy.turn_away(true);
    let breaks = proxy.rule(Op::Vote, Action::Replace(b"+no vote\r\n"[..].into())).once();
    let late = proxy.rule(Op::Vote, Action::DelayReply(ms(300))).always();
    server.pause();
    let first = tokio::spawn(one.extend(LONG));
    eventually("one is on its way", BOUND, || breaks.hits() == 1).await;
    let second = tokio::spawn(two.extend(LONG));
    eventually("both are on their way", BOUND, || late.hits() == 1).await;
    server.resume();
    for extending in [first, second] {
        drop(within("the end of a renewal", BOUND, extending).await);
    }
    // The deadlines are those of the claims, to within the time between their votes.
    for guard in [&one, &two] {
        assert!(guard.remaining() + ms(1_000) < LONG, "{:?}", guard.remaining());
    }
}

/// The same while the third lives: with it, two servers are a majority. The lease goes on, and is
/// counted by servers. Claims are refused and say why, until the name is right again.
#[tokio::test]
async fn lease_goes_on_with_two_servers_while_two_names_lead_to_one() {
    let quorum = Quorum::of_age(3, "lock");
    let client = patient_client(&quorum).await;
    let guard = client.mutex("k").lock().await.unwrap();
    quorum.proxy(2).lead_to(quorum.server(0));
    quorum.proxy(2).close_all();
    let refused = async {
        loop {
            match client.mutex("other").try_lock().await {
                Err(error) if error.to_string().contains("are the same server") => return error,
                // Before the member was dialled anew.
                Err(_) | Ok(_) => tokio::time::sleep(ms(10)).await,
            }
        }
    };
    let (error, _) = within("the refusal", BOUND, refused).await;
    assert!(error.is_unavailable(), "{error:?}");
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_valid(), "renewed by two servers");
    let problems = client.health().await.unwrap().problems;
    assert!(problems.iter().any(|it| it.contains("are the same server")), "{problems:?}");

    quorum.proxy(2).lead_to(quorum.server(2));
    quorum.proxy(2).close_all();
    let (other, _) = within("a lock", BOUND, async {
        loop {
            match client.mutex("other").try_lock().await {
                Ok(Some(guard)) => return guard,
                Ok(None) | Err(_) => tokio::time::sleep(ms(10)).await,
            }
        }
    })
    .await;
    other.release().await.unwrap();
    eventually("the third has the lease again", BOUND, || quorum.having("lock:k") == 3).await;
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

/// HA20: a node of a cluster can never be a member; a replica is none for now.
#[tokio::test]
async fn node_of_a_cluster_and_replicas_are_refused() {
    let node = RedisServer::start_with(&["cluster-enabled yes"]);
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let urls = [one.url(), node.url(), two.url()];
    let error = QuorumStore::connect(urls).await.unwrap_err();
    assert!(error.to_string().contains("cluster") && !error.is_retryable(), "{error}");
    let replicas = [(); 2].map(|()| RedisServer::start());
    for replica in &replicas {
        let () = replica.cli(&format!("REPLICAOF 127.0.0.1 {}", one.port()));
    }
    let urls = [one.url(), replicas[0].url(), replicas[1].url()];
    let error = QuorumStore::connect(urls).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("is a replica"), "{source}");
}

/// Passwords may differ, and are shown nowhere.
#[tokio::test]
async fn passwords_may_differ_and_are_never_shown() {
    let servers = ["geheim1", "geheim2", "geheim3"]
        .map(|password| RedisServer::builder().password(password).start());
    let urls = servers.each_ref().map(RedisServer::url);
    let log = LogCapture::start();
    let store = QuorumStore::builder(urls.clone()).connect().await.unwrap();
    let shown = format!("{store} {store:?} {:?}", QuorumStore::builder(urls.clone()));
    let mut wrong = urls;
    wrong[0] = wrong[0].replace("geheim1", "geheim9");
    wrong[1] = wrong[1].replace("geheim2", "geheim9");
    let error = QuorumStore::builder(wrong).connect().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("password"), "{source}");
    let all = format!("{shown} {error} {error:?} {source} {}", log.text());
    assert!(!all.contains("geheim"), "{all}");
}

/// A lock that is forgotten must be over when its member votes again, so none may last longer than
/// the restart delay. The error says what to set.
#[tokio::test]
async fn ttl_extension_and_hold_beyond_the_restart_delay_are_refused() {
    let quorum = Quorum::of_age(3, "lock");
    let store = || QuorumStore::builder(quorum.urls()).with_restart_delay(RESTART_DELAY);
    // The default ttl of the library.
    let error = LockClient::builder(store().connect_lazy().unwrap()).build().unwrap_err();
    assert_eq!(error.field(), "ttl");
    assert!(error.to_string().contains("with_restart_delay"), "{error}");

    let client = client(&quorum).await;
    let long = RESTART_DELAY + ms(1);
    let error = client.mutex("k").with_ttl(long).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    assert_eq!(error.config_error().unwrap().field(), "ttl");
    let error = client.mutex("k").with_min_hold(long).lock().await.unwrap_err();
    assert_eq!(error.config_error().unwrap().field(), "min_hold");
    let guard = client.mutex("k").lock().await.unwrap();
    let error = guard.extend(long).await.unwrap_err();
    assert_eq!(error.config_error().unwrap().field(), "ttl");
    guard.extend(RESTART_DELAY).await.unwrap();
    assert!(guard.remaining() > TTL);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn several_urls_in_one_setting_are_a_quorum() {
    let quorum = Quorum::of_age(3, "lock");
    let store = connect(&quorum.urls().join("\n  ")).await.unwrap();
    assert!(store.to_string().starts_with("quorum of 3: "), "{store}");
    let client = LockClient::builder(store).build().unwrap();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    let one = connect(&quorum.server(0).url()).await.unwrap();
    assert_eq!(one.capabilities().survives, Survives::Restart);
    let error = connect(&quorum.urls()[..2].join(" ")).await.unwrap_err();
    assert_eq!(error.config_error().unwrap().field(), "members");
}

/// The lock is the plain key that Redlock clients set, on a majority: they and this client exclude
/// each other.
#[tokio::test]
async fn redlock_clients_and_this_one_exclude_each_other() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    for server in quorum.servers().take(2) {
        let () = server.cli("SET lock:k foreign NX PX 60000");
    }
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    eventually("a minority is given back", BOUND, || !quorum.server(2).has("lock:k")).await;
    for server in quorum.servers().take(2) {
        let () = server.cli("DEL lock:k");
    }
    let guard = client.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    for server in quorum.servers() {
        assert!(server.get("lock:k").unwrap().starts_with(&client.id().to_string()));
        let set: Option<String> = server.cli("SET lock:k foreign NX PX 60000");
        assert_eq!(set, None);
    }
    guard.release().await.unwrap();
}

/// What `without_fencing` gives up is the number, not the lock.
#[tokio::test]
async fn lock_without_a_number_excludes_as_well() {
    let quorum = Quorum::of_age(3, "lock");
    let client = client(&quorum).await;
    let options = LockOptions::new().without_fencing();
    let guard = client.mutex("k").with_options(options).lock().await.unwrap();
    assert_eq!(guard.fencing_token().get(), 0);
    assert!(client.mutex("k").try_lock().await.is_ok_and(|other| other.is_none()));
    guard.release().await.unwrap();
}
