//! Locks with the key alone as their name in Redis, as other libraries have them.

use lock_core::store::RedisStore;
use lock_core::testing::wait_idle;
use lock_core::{ErrorKind, LockClient, LostReason};
use lock_testkit::{Op, Proxy, RedisServer, client, documented_user, eventually, ms, within};

async fn plain(url: &str) -> LockClient {
    let store = RedisStore::connect(url).await.unwrap();
    LockClient::builder(store).without_namespace().build().unwrap()
}

/// A name without a colon, and one with a colon: a plain `SET` excludes this library, and the other
/// way round.
#[tokio::test]
async fn plain_set_and_a_lock_without_a_namespace_exclude_each_other() {
    let server = RedisServer::start();
    let client = plain(&server.url()).await;
    for name in ["mylock", "order:42"] {
        let set = format!("SET {name} other NX PX 60000");
        assert_eq!(server.cli::<Option<String>>(&set).as_deref(), Some("OK"));
        assert!(client.mutex(name).try_lock().await.unwrap().is_none(), "{name}");
        let owner = client.inspect(name).await.unwrap().owner.unwrap();
        assert!(owner.client.is_none() && owner.remaining.unwrap() > ms(50_000), "{name}");

        let waiting = tokio::spawn(client.mutex(name).with_wait(ms(20_000)).lock());
        eventually("it waits", ms(5_000), || server.queued(&format!("{{}}{name}")) == 1).await;
        let _: u64 = server.cli(&format!("DEL {name}"));
        let guard = within("the lock", ms(10_000), waiting).await.0.unwrap().unwrap();
        assert_eq!(server.cli::<Option<String>>(&set), None, "{name}");
        let value = server.get(name).unwrap();
        assert!(value.starts_with(&client.id().to_string()), "{value}");
        guard.release().await.unwrap();
        assert_eq!(server.cli::<Option<String>>(&set).as_deref(), Some("OK"));
        let _: u64 = server.cli(&format!("DEL {name}"));
    }
    assert_eq!(server.cli::<Vec<String>>("KEYS *"), ["lock:{0}:fence"]);
}

/// By a message, and beside the lock of the same key in the namespace `lock`, whose queue is
/// another. The permissions of that namespace and of the names are enough.
#[tokio::test]
async fn lock_without_a_namespace_is_handed_on_inspected_and_taken_by_force() {
    let server = RedisServer::start();
    let acl = documented_user();
    let mut command = vec!["ACL", "SETUSER", acl[0], "reset", "on", "resetchannels"];
    command.extend(&acl[1..]);
    command.extend(["~order:*", "~mylock"]);
    let () = server.connect().command(&command).unwrap();
    let url = server.url_for(acl[0], "password");
    let proxy = Proxy::to(&server);
    let through = proxy.url().replace("://", &format!("://{}:password@", acl[0]));
    let (one, two) = (plain(&url).await, plain(&through).await);
    let usual = client(&url).await;
    for name in ["mylock", "order:42"] {
        let other = usual.mutex(name).with_ttl(ms(60_000)).lock().await.unwrap();
        let guard = one.mutex(name).with_ttl(ms(60_000)).lock().await.unwrap();
        let queue = format!("{{}}{name}");
        let waiting = |client: &LockClient| {
            tokio::spawn(client.mutex(name).with_ttl(ms(6_000)).wait_forever().lock())
        };
        let waiter = waiting(&two);
        eventually("it waits", ms(5_000), || server.queued(&queue) == 1).await;
        assert_eq!(server.queued(name), 0, "the queue of the other lock");
        let info = one.inspect(name).await.unwrap();
        assert_eq!((info.waiting, info.owner.unwrap().client), (Some(1), Some(one.id())));
        let heard = proxy.seen(Op::Message);
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        let guard = within("its turn", ms(10_000), waiter).await.0.unwrap().unwrap();
        assert!(guard.fencing_token() > fence);
        eventually("a message told it", ms(5_000), || proxy.seen(Op::Message) > heard).await;

        let waiter = waiting(&one);
        eventually("it waits", ms(5_000), || server.queued(&queue) == 1).await;
        let former = one.force_release(name).await.unwrap().unwrap();
        assert_eq!(former.client, Some(two.id()));
        let (lost, _) = within("the loss", ms(10_000), guard.lost()).await;
        // By its message, or by the renewal.
        let by_force = [LostReason::ForceReleased, LostReason::TakenByOther].contains(&lost);
        assert!(by_force, "{lost:?}");
        let next = within("its turn", ms(10_000), waiter).await.0.unwrap().unwrap();
        assert!(next.is_valid() && other.is_valid());
        drop(guard);
        next.release().await.unwrap();
        other.release().await.unwrap();
    }
    for client in [&one, &two, &usual] {
        wait_idle(client).await;
    }
    assert_eq!(server.cli::<Vec<String>>("KEYS *"), ["lock:{0}:fence"]);
    let log: Vec<redis::Value> = server.cli("ACL LOG");
    assert!(log.is_empty(), "{log:?}");
}

/// What a client cannot know, and names of records beside other locks, are refused in words.
#[tokio::test]
async fn list_and_records_of_others_are_refused_without_a_namespace() {
    let server = RedisServer::start();
    let (plain, usual) = (plain(&server.url()).await, client(&server.url()).await);
    let error = plain.list(10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("without a namespace cannot be listed"), "{error}");
    for name in ["lock:{0}:fence", "shop:{5405}:q:k"] {
        let error = plain.mutex(name).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{name}: {error}");
    }
    // The same lock under both names, in one queue.
    let guard = usual.mutex("k").lock().await.unwrap();
    let waiting = tokio::spawn(plain.mutex("lock:k").wait_forever().lock());
    eventually("it waits", ms(5_000), || server.queued("k") == 1).await;
    let fence = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = within("its turn", ms(10_000), waiting).await.0.unwrap().unwrap();
    assert!(guard.fencing_token() > fence);
    assert!(matches!(&*usual.list(10).await.unwrap().entries, [lock] if lock.key == "k"));
    guard.release().await.unwrap();
    assert!(plain.missing_permissions().await.unwrap().is_empty());
}
