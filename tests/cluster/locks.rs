//! Locks on a cluster where nothing goes wrong.

use std::time::Instant;

use lock_core::LockClient;
use lock_core::store::RedisStore;

use lock_core::testing::wait_idle;
use lock_testkit::{RedisCluster, alone, client, eventually, ms, within};
use tokio::task::JoinSet;

use crate::shared;

/// HA12 (redisson#5853, #1098, node-redlock#64): the companions of a lock are in its slot, whatever
/// braces its name holds.
#[tokio::test]
async fn locks_with_any_hash_tag_are_queued_and_handed_on() {
    let cluster = shared().await;
    let (holder, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let keys = ["cart:{t7}", "order:{t7}", "a{b", "a}b{c}", "a{}{b}", "x:{0}", "plain", "a{b}{c}"];
    for key in keys {
        let guard = holder.mutex(key).lock().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex(key).with_wait(ms(20_000)).lock());
        cluster.queue_of(key, 1).await;
        let fence = guard.fencing_token();
        let freed = Instant::now();
        guard.release().await.unwrap();
        let (next, _) = within("the waiter's turn", ms(5_000), waiting).await;
        let next = next.unwrap().unwrap();
        let took = freed.elapsed();
        assert!(took < ms(500), "{key}: handed on by a message, and not after {took:?}");
        assert!(next.fencing_token() > fence);
        next.release().await.unwrap();
    }
    wait_idle(&holder).await;
    wait_idle(&waiter).await;
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// The same for locks whose name is the key alone: their companions are under `lock`, in the slot
/// of the key.
#[tokio::test]
async fn companions_of_a_lock_without_a_namespace_are_in_its_slot() {
    let cluster = shared().await;
    let plain = async || {
        let store = RedisStore::connect(cluster.url()).await.unwrap();
        LockClient::builder(store).without_namespace().build().unwrap()
    };
    let (holder, waiter) = (plain().await, plain().await);
    for key in ["bare", "bare:42", "bare:{t7}", "bare{"] {
        let guard = holder.mutex(key).lock().await.unwrap();
        assert!(cluster.server(cluster.home(key)).has(key), "{key}");
        let waiting = tokio::spawn(waiter.mutex(key).with_wait(ms(20_000)).lock());
        cluster.queue_of(&format!("{{}}{key}"), 1).await;
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        let next = within("the waiter's turn", ms(5_000), waiting).await.0.unwrap().unwrap();
        assert!(next.fencing_token() > fence);
        assert!(holder.force_release(key).await.unwrap().is_some());
        drop(next);
        wait_idle(&waiter).await;
        assert!(!cluster.server(cluster.home(key)).has(key), "{key}");
    }
    wait_idle(&holder).await;
    eventually("nothing is left", ms(5_000), || cluster.leftovers().is_empty()).await;
}

/// Commands for locks in one slot share calls; no call mixes slots, which a node would refuse.
/// Claims in many slots do not wait for each other, but for room on the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_one_slot_share_calls() {
    const LOCKS: usize = 200;
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let store = RedisStore::builder(cluster.url()).with_request_timeout(ms(10_000));
    let client = LockClient::builder(store.connect().await.unwrap()).build().unwrap();
    cluster.server(0).load_scripts();
    let prefix = cluster.key_on(0, "k");
    let in_one = (0..LOCKS).map(|number| format!("{number}:{{lock:{prefix}}}"));
    let in_many = (0..LOCKS).map(|number| cluster.key_on(0, &format!("n{number}-")));
    let keys = [in_one.collect::<Vec<_>>(), in_many.collect()];
    let mut calls = Vec::new();
    for keys in keys {
        let before = cluster.server(0).script_calls();
        let begun = Instant::now();
        let locking: JoinSet<_> =
            keys.iter().map(|key| client.mutex(key.clone()).with_wait(ms(20_000)).lock()).collect();
        let guards: Vec<_> = locking.join_all().await.into_iter().map(Result::unwrap).collect();
        let locked = cluster.server(0).script_calls() - before;
        let releasing: JoinSet<_> = guards.into_iter().map(|guard| guard.release()).collect();
        releasing.join_all().await.into_iter().for_each(|released| assert!(released.is_ok()));
        let released = cluster.server(0).script_calls() - before - locked;
        println!("{locked} calls for claims, {released} for releases in {:?}", begun.elapsed());
        calls.push((locked, released));
    }
    let [(locked, released), in_many] = calls[..] else { panic!("{calls:?}") };
    let all = u64::try_from(LOCKS).unwrap();
    assert!(locked <= all / 4 && released <= all / 4, "{locked} and {released} calls");
    assert_eq!(in_many, (all, all));
    wait_idle(&client).await;
}

/// The older protocol for commands: messages come all the same.
#[tokio::test]
async fn lock_is_handed_on_where_commands_speak_the_older_protocol() {
    let cluster = shared().await;
    let url = format!("{}/?protocol=resp2", cluster.url());
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let guard = holder.mutex("resp2").lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("resp2").with_wait(ms(20_000)).lock());
    cluster.queue_of("resp2", 1).await;
    guard.release().await.unwrap();
    let (next, took) = within("the waiter's turn", ms(5_000), waiting).await;
    assert!(took < ms(500), "{took:?}");
    next.unwrap().unwrap().release().await.unwrap();
}

/// Each client has one connection for commands to a node, and one more that listens where one of
/// its tasks waits. All end with the client.
#[tokio::test]
async fn connections_to_nodes_end_with_the_client() {
    let _alone = alone().await;
    let cluster = RedisCluster::start().await;
    let count = || {
        let lists = cluster.servers()[..3].iter().map(|server| server.cli::<String>("CLIENT LIST"));
        let ours = |list: String| list.lines().filter(|line| line.contains("user=counted")).count();
        lists.map(ours).collect::<Vec<_>>()
    };
    for server in cluster.servers() {
        let () = server.cli("ACL SETUSER counted on >password allkeys allchannels allcommands");
    }
    let url = cluster.url().replace("://", "://counted:password@");
    let connect = async || {
        let store = RedisStore::builder(&url).connect_lazy().unwrap();
        LockClient::builder(store).build().unwrap()
    };
    let (holder, waiter) = (connect().await, connect().await);
    let key = cluster.key_on(1, "k");
    let guard = holder.mutex(key.clone()).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex(key.clone()).with_wait(ms(20_000)).lock());
    cluster.queue_of(&key, 1).await;
    let before = count();
    // The map came from a node of the URL.
    assert!(before[1] >= 3 && before.iter().sum::<usize>() <= 5, "{before:?}");
    guard.release().await.unwrap();
    let next = within("the waiter's turn", ms(5_000), waiting).await.0.unwrap().unwrap();
    next.release().await.unwrap();
    wait_idle(&holder).await;
    wait_idle(&waiter).await;
    drop((holder, waiter));
    eventually("no connection is left", ms(5_000), || count().iter().sum::<usize>() == 0).await;
}
