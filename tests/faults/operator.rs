//! What the person on call does: find the holder of a lock, and take the lock from it.

use std::time::Instant;

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, LostReason};
use lock_testkit::{Action, LogCapture, Op, Proxy, RedisServer, client, eventually, ms, within};

/// "Who holds this lock?" A person with `redis-cli` alone finds the process.
#[tokio::test]
async fn value_of_a_lock_leads_to_host_process_and_client() {
    let server = RedisServer::start();
    let log = LogCapture::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let client = LockClient::builder(store).with_name("orders-api").build().unwrap();
    let guard = client.mutex("k").lock().await.unwrap();

    let value = server.get("lock:k").unwrap();
    let id = &value[..8];
    assert_eq!(id, client.id().to_string());
    let text = log.text();
    let line = text.lines().find(|line| line.contains("lock client started")).unwrap();
    let (process, host) = (std::process::id(), gethostname::gethostname());
    for part in [
        format!("client={id}"),
        "name=\"orders-api\"".to_owned(),
        format!("host={:?}", host.to_string_lossy()),
        format!("process={process}"),
    ] {
        assert!(line.contains(&part), "no `{part}` in {line}");
    }
    // The rest of the token is a secret: who knows it can release the lock.
    assert!(!text.contains(&value[9..]) && !format!("{client:?}{guard:?}").contains(&value[9..]));
    let other = LockClient::builder(RedisStore::connect(server.url()).await.unwrap());
    assert_ne!(other.build().unwrap().id(), client.id());
}

/// The names of the connections that the server sees.
fn connection_names(server: &RedisServer) -> Vec<String> {
    let list: String = server.cli("CLIENT LIST");
    let fields = list.lines().flat_map(|line| line.split(' '));
    let names =
        fields.filter_map(|field| field.strip_prefix("name=")).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// `CLIENT LIST` leads from the value of a lock to the process, before and after a redial, whether
/// the connection was opened before the client was built or after.
#[tokio::test]
async fn connection_is_named_after_host_process_and_client() {
    let server = RedisServer::start();
    let (process, host) = (std::process::id(), gethostname::gethostname());
    for is_lazy in [false, true] {
        let store = RedisStore::builder(server.url());
        let store =
            if is_lazy { store.connect_lazy().unwrap() } else { store.connect().await.unwrap() };
        let client = LockClient::builder(store).with_name("orders-api").build().unwrap();
        let name = format!("lock:orders-api@{}:{process}:{}", host.to_string_lossy(), client.id());
        drop(client.mutex("k").lock().await.unwrap());
        let is_named = || connection_names(&server) == [name.clone()];
        eventually("the connection is named", ms(5_000), is_named).await;
        assert!(server.kill_connections() > 0);
        eventually("it is gone", ms(5_000), || connection_names(&server).is_empty()).await;
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
        eventually("the next one is named", ms(5_000), is_named).await;
        drop(client);
        eventually("it is closed", ms(5_000), || connection_names(&server).is_empty()).await;
    }
}

/// A server that refuses `CLIENT SETNAME` gets no name again, which would fill its `ACL LOG`.
#[tokio::test]
async fn server_that_refuses_names_gets_one_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let refusal = Action::Refuse("NOPERM this user has no permissions to run 'client|setname'");
    let refused = proxy.rule(Op::Client, refusal).always();
    let client = client(&proxy.url()).await;
    for _ in 0..3 {
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
        eventually("a name is refused", ms(5_000), || refused.hits() == 1).await;
        assert!(server.kill_connections() > 0);
        eventually("it is closed", ms(5_000), || server.clients() == 0).await;
    }
    assert_eq!(refused.hits(), 1);
}

/// A proxy that closes the connection on `CLIENT SETNAME`.
#[tokio::test]
async fn proxy_that_closes_on_a_name_serves_locks() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let closes = proxy.rule(Op::Client, Action::CloseBefore).always();
    let client = client(&proxy.url()).await;
    eventually("the name was sent", ms(5_000), || closes.hits() > 0).await;
    for _ in 0..4 {
        let (guard, took) = within("a lock", ms(5_000), client.mutex("k").lock()).await;
        assert!(took < ms(2_000), "{took:?}");
        drop(guard.unwrap());
        wait_idle(&client).await;
    }
    assert!(closes.hits() <= 2, "{}", closes.hits());
    let before = proxy.connections();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    assert_eq!(proxy.connections(), before, "the connection stays");
}

#[tokio::test]
async fn inspection_tells_owner_waiters_and_foreign_values() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    assert!(one.inspect("k").await.unwrap().owner.is_none());

    let guard = one.mutex("k").lock().await.unwrap();
    let waiter = tokio::spawn(two.mutex("k").wait_forever().lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    for (asking, fence) in [(&one, Some(guard.fencing_token())), (&two, None)] {
        let info = asking.inspect("k").await.unwrap();
        let owner = info.owner.unwrap();
        assert_eq!((owner.client, owner.fencing_token), (Some(one.id()), fence));
        assert!(owner.remaining.unwrap() <= ms(10_000) && !owner.is_released);
        assert_eq!(info.waiting, Some(1));
        assert!(info.latest_fencing_token >= guard.fencing_token());
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();

    // A lock that a person set for maintenance.
    let () = server.cli("SET lock:k maintenance");
    let owner = one.inspect("k").await.unwrap().owner.unwrap();
    assert_eq!((owner.client, owner.remaining), (None, None));
    let taken = one.force_release("k").await.unwrap().unwrap();
    assert_eq!((taken.client, taken.remaining), (owner.client, owner.remaining));
    assert!(one.force_release("k").await.unwrap().is_none());

    let _: i64 = server.cli("LPUSH lock:list x");
    let wrong = one.inspect("list").await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongType);
    assert_eq!(one.force_release("list").await.unwrap_err().kind(), ErrorKind::WrongType);
    assert!(server.has("lock:list"), "what is not a lock stays");
    let _: i64 = server.cli("DEL lock:list");
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The first waiter has the lock at once. A lease of the client that took it ends at once, another
/// one at its next renewal, and neither disturbs the new holder.
#[tokio::test]
async fn lock_that_is_released_by_force_goes_to_the_first_waiter() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    for (asking, reason) in [(&one, LostReason::ForceReleased), (&two, LostReason::TakenByOther)] {
        let guard = one.mutex("k").with_ttl(ms(3_000)).lock().await.unwrap();
        let waiter = tokio::spawn(two.mutex("k").wait_forever().lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        let former = asking.force_release("k").await.unwrap().unwrap();
        assert_eq!(former.client, Some(one.id()));
        let (next, _) = within("its turn", ms(5_000), waiter).await;
        let next = next.unwrap().unwrap();
        let (lost, _) = within("the loss", ms(5_000), guard.lost()).await;
        assert_eq!(lost, reason);
        drop(guard);
        wait_idle(&one).await;
        assert!(next.is_valid());
        let token = server.get("lock:k").unwrap();
        assert!(token.starts_with(&two.id().to_string()));
        next.release().await.unwrap();
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// From the first renewal of any of its leases a client listens, on each connection anew, and ends
/// a lease that was taken by force long before its next renewal. No other lease ends.
#[tokio::test]
async fn holder_learns_of_a_forced_release_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    for (url, breaks) in [(server.url(), false), (proxy.url(), true)] {
        let holder = client(&url).await;
        let listeners = || server.cli::<(String, u64)>("PUBSUB NUMSUB lock:{0}:forced").1;
        eventually("none listens", ms(10_000), || listeners() == 0).await;
        let other = holder.mutex("other").with_ttl(ms(3_000)).lock().await.unwrap();
        eventually("it listens", ms(10_000), || listeners() == 1).await;
        if breaks {
            server.kill_connections();
            eventually("it listens again", ms(10_000), || listeners() == 1).await;
        }
        let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        let asking = client(&server.url()).await;
        let taken = Instant::now();
        asking.force_release("k").await.unwrap().unwrap();
        let (lost, _) = within("the loss", ms(10_000), guard.lost()).await;
        assert_eq!(lost, LostReason::ForceReleased, "{url}");
        assert!(taken.elapsed() < ms(10_000), "a third of the ttl is 20 s");
        drop(guard);
        assert!(other.is_valid());
        other.release().await.unwrap();
        wait_idle(&holder).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The subscription is not confirmed, or breaks the connection twice, as behind a proxy in trouble.
/// It is tried again after 10 s, not in an hour. The channel of grants is subscribed meanwhile.
#[tokio::test]
async fn subscription_for_forced_releases_that_failed_is_tried_again_soon() {
    let server = RedisServer::start();
    for (action, times) in [(Action::Vanish, 1), (Action::CloseBefore, 2)] {
        let proxy = Proxy::to(&server);
        let failed = proxy.rule(Op::Subscribe, action.clone()).times(times);
        let (holder, asking) = (client(&proxy.url()).await, client(&server.url()).await);
        let listeners = || server.cli::<(String, u64)>("PUBSUB NUMSUB lock:{0}:forced").1;
        let other = holder.mutex("other").with_ttl(ms(6_000)).lock().await.unwrap();
        eventually("it failed", ms(20_000), || failed.hits() == times).await;
        let begun = Instant::now();
        // A command meanwhile could get the place of the confirmation, which is an error of another
        // kind.
        let again = || proxy.connections() > times;
        eventually("another connection", ms(10_000), again).await;

        let busy = asking.mutex("busy").lock().await.unwrap();
        let waiting = tokio::spawn(holder.mutex("busy").with_wait(ms(30_000)).lock());
        eventually("grants arrive", ms(5_000), || server.inboxes().len() == 1).await;
        eventually("none listens", ms(5_000), || listeners() == 0).await;
        busy.release().await.unwrap();
        let busy = within("its turn", ms(10_000), waiting).await.0.unwrap().unwrap();
        busy.release().await.unwrap();

        eventually("it listens", ms(30_000), || listeners() == 1).await;
        assert!(begun.elapsed() > ms(7_000), "{action:?}: {:?}", begun.elapsed());
        let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        asking.force_release("k").await.unwrap().unwrap();
        let (lost, _) = within("the loss", ms(10_000), guard.lost()).await;
        assert_eq!(lost, LostReason::ForceReleased, "{action:?}");
        drop(guard);
        assert!(other.is_valid());
        other.release().await.unwrap();
        wait_idle(&holder).await;
        drop(holder);
        eventually("none listens", ms(10_000), || listeners() == 0).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// What was decided about one owner is not done to the next, however late or often it arrives.
#[tokio::test]
async fn release_by_force_takes_the_lock_from_no_other_owner() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    let guard = one.mutex("k").lock().await.unwrap();
    let found = two.inspect("k").await.unwrap().owner.unwrap();
    guard.release().await.unwrap();
    assert!(!two.force_release_from("k", &found).await.unwrap(), "the lock is free");
    let guard = one.mutex("k").lock().await.unwrap();
    assert!(!two.force_release_from("k", &found).await.unwrap(), "another section has it");
    assert!(guard.is_valid());

    let found = two.inspect("k").await.unwrap().owner.unwrap();
    let waiter = tokio::spawn(two.mutex("k").wait_forever().lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let twice = proxy.rule(Op::Other, Action::Duplicate).once();
    assert!(two.force_release_from("k", &found).await.unwrap());
    assert_eq!(twice.hits(), 1);
    let next = waiter.await.unwrap().unwrap();
    assert!(server.get("lock:k").unwrap().starts_with(&two.id().to_string()));
    assert!(next.is_valid());
    next.release().await.unwrap();
    drop(guard);
    for client in [one, two] {
        wait_idle(&client).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// Damage in the bookkeeping, or a full memory, must not keep a lock that a person takes away.
#[tokio::test]
async fn damaged_queue_and_full_memory_do_not_keep_a_lock_from_being_freed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for damage in ["SET lock:{0}:q:k x", "SET lock:{0}:fence x", "CONFIG SET maxmemory 1"] {
        let guard = client.mutex("k").lock().await.unwrap();
        let () = server.cli(damage);
        assert!(client.force_release("k").await.unwrap().is_some(), "{damage}");
        assert!(!server.has("lock:k"), "{damage}");
        let () = server.cli("CONFIG SET maxmemory 0");
        drop(guard);
        wait_idle(&client).await;
        let _: i64 = server.cli("DEL lock:{0}:q:k lock:{0}:fence");
    }
}

/// A reply that is lost is no success, and no "it was free".
#[tokio::test]
async fn release_by_force_without_a_reply_is_unknown() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = client(&proxy.url()).await;
    let guard = client.mutex("k").lock().await.unwrap();
    let owner = client.inspect("k").await.unwrap().owner.unwrap();
    let lost = proxy.rule(Op::Other, Action::LoseReply).once();
    let error = client.force_release_from("k", &owner).await.unwrap_err();
    assert!(lost.hits() == 1 && error.is_unknown(), "{error:?}");
    assert!(!server.has("lock:k"), "it was executed");
    let unsent = proxy.rule(Op::Other, Action::LoseRequest).once();
    let error = client.inspect("k").await.unwrap_err();
    assert!(unsent.hits() == 1 && error.is_store_failure(), "{error:?}");
    drop(guard);
    wait_idle(&client).await;
}

/// A namespace is listed alone, and what is not a lock is not listed.
#[tokio::test]
async fn locks_of_a_namespace_are_listed_with_their_owners() {
    let server = RedisServer::start();
    let on = async |namespace: &str| {
        let store = RedisStore::connect(server.url()).await.unwrap();
        LockClient::builder(store).with_namespace(namespace).build().unwrap()
    };
    let (client, other, third) = (on("shop*").await, on("shopping").await, on("shopping").await);
    let mut guards = Vec::new();
    for number in 0..150 {
        guards.push(client.mutex(format!("order:{number:03}")).lock().await.unwrap());
    }
    guards.push(other.mutex("order").lock().await.unwrap());
    let waiter = tokio::spawn(third.mutex("order").wait_forever().lock());
    eventually("it is queued", ms(5_000), || server.has("shopping:{0}:q:order")).await;
    let _: i64 = server.cli("LPUSH shop*:list x");
    let listed = client.list(1_000).await.unwrap();
    assert!(!listed.is_cut);
    let listed = listed.entries;
    let keys: Vec<_> = listed.iter().map(|entry| entry.key.clone()).collect();
    let expected: Vec<_> = (0..150).map(|number| format!("order:{number:03}")).collect();
    assert_eq!(keys, expected);
    for entry in &listed {
        assert_eq!(entry.info.owner.as_ref().unwrap().client, Some(client.id()));
    }
    assert_eq!(
        listed[0].info.owner.as_ref().unwrap().fencing_token,
        Some(guards[0].fencing_token())
    );
    let cut = client.list(7).await.unwrap();
    assert!(cut.entries.len() == 7 && cut.is_cut);
    let none = client.list(0).await.unwrap();
    assert!(none.entries.is_empty() && none.is_cut);
    let listed = other.list(1_000).await.unwrap().entries;
    assert!(matches!(listed.as_slice(), [one] if one.info.waiting == Some(1)), "{listed:?}");
    let () = server.cli("ACL SETUSER default -scan");
    let error = client.list(1).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("permission"), "{error:?}");
    waiter.abort();
    drop(guards);
    for client in [client, other, third] {
        wait_idle(&client).await;
    }
}

#[tokio::test]
async fn health_names_what_puts_locks_at_risk() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let health = client.health().await.unwrap();
    assert!(health.server.contains(' ') && health.problems.is_empty(), "{health:?}");
    let () = server.cli("CONFIG SET maxmemory 1gb");
    let () = server.cli("CONFIG SET maxmemory-policy allkeys-lru");
    let () = server.cli("ACL SETUSER default -info");
    let problems = client.health().await.unwrap().problems;
    assert!(matches!(problems.as_slice(), [one] if one.contains("`+info`")), "{problems:?}");
    let () = server.cli("ACL SETUSER default +info");
    let () = server.cli("REPLICAOF 127.0.0.1 1");
    let problems = client.health().await.unwrap().problems;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].contains("replica") && problems[1].contains("`allkeys-lru`"),
        "{problems:?}"
    );
    server.kill();
    let error = client.health().await.unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");
}
