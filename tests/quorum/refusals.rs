//! Members that refuse: their users lack permissions, they have no memory, cannot save or still
//! load their data, or became replicas.

use lock_core::store::QuorumStore;
use lock_core::testing::wait_idle;
use lock_core::{LostReason, Released};
use lock_testkit::{Quorum, RedisServer, documented_user, eventually, ms, within};

use crate::{BOUND, RESTART_DELAY, TTL, client, on, patient_client};

/// Gives each member a user with these permissions, and the URLs by which it is that user's.
fn with_user(quorum: &Quorum, acl: &[&str]) -> Vec<String> {
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(acl);
    for server in quorum.servers() {
        let () = server.connect().command(&command).unwrap();
    }
    let user = format!("redis://{}:password@", acl[0]);
    quorum.urls().iter().map(|url| url.replace("redis://", &user)).collect()
}

/// The permissions of a single server are those of a member, as the documentation says.
#[tokio::test]
async fn documented_permissions_are_enough_on_members_and_leave_nothing_in_the_acl_log() {
    let quorum = Quorum::of_age(3, "lock");
    let urls = with_user(&quorum, &documented_user());
    for protocol in ["resp3", "resp2"] {
        let urls: Vec<_> = urls.iter().map(|url| format!("{url}?protocol={protocol}")).collect();
        let connect = async || {
            let store = QuorumStore::builder(urls.clone()).with_restart_delay(RESTART_DELAY);
            on(store.connect().await.unwrap())
        };
        let (one, two) = (connect().await, connect().await);
        for server in quorum.servers() {
            let () = server.cli("SCRIPT FLUSH");
        }
        let guard = one.mutex("k").lock().await.unwrap();
        let waiting = tokio::spawn(two.mutex("k").lock());
        eventually("it waits", BOUND, || quorum.servers().any(|it| it.queued("k") == 1)).await;
        guard.extend(RESTART_DELAY).await.unwrap();
        assert!(two.mutex("k").try_lock().await.unwrap().is_none());
        assert_eq!(one.inspect("k").await.unwrap().waiting, Some(1));
        assert_eq!(one.health().await.unwrap().problems, Vec::<String>::new());
        assert!(one.missing_permissions().await.unwrap().is_empty());
        assert_eq!(guard.release().await.unwrap(), Released::InTime);
        let next = within("the waiter's turn", BOUND, waiting).await.0.unwrap().unwrap();
        assert!(one.force_release("k").await.unwrap().is_some());
        drop(next);
        let held = one.mutex("held").with_min_hold(ms(100)).lock().await.unwrap();
        assert_eq!(held.release().await.unwrap(), Released::InTime);
        // A member without its mark looks at what it knows of itself.
        let () = quorum.server(1).cli("FLUSHALL");
        one.mutex("other").without_fencing().lock().await.unwrap().release().await.unwrap();
        eventually("it has a mark", BOUND, || quorum.server(1).has("lock:{0}:born")).await;
        wait_idle(&one).await;
        wait_idle(&two).await;
        quorum.vouch(1, "lock");
    }
    for server in quorum.servers() {
        let denied: Vec<redis::Value> = server.cli("ACL LOG");
        assert!(denied.is_empty(), "{denied:?}");
    }
}

/// A user that may vote and not queue is refused by one conductor after the other. The waiter asked
/// all members again and again, without a pause.
#[tokio::test]
async fn waiter_that_may_not_queue_pauses_before_it_asks_again() {
    let quorum = Quorum::of_age(3, "lock");
    let acl: Vec<_> = documented_user().into_iter().filter(|right| *right != "+zadd").collect();
    let urls = with_user(&quorum, &acl);
    let store = QuorumStore::builder(urls).with_restart_delay(RESTART_DELAY);
    let client = on(store.connect_lazy().unwrap());
    for server in quorum.servers() {
        let () = server.cli("SET lock:k foreign PX 60000");
        server.reset_calls();
    }
    let mutex = client.mutex("k").with_wait(ms(1_000));
    let (outcome, _) = within("an error", BOUND, mutex.lock()).await;
    outcome.unwrap_err();
    let calls: u64 = quorum.servers().map(|server| server.script_calls()).sum();
    assert!((3..150).contains(&calls), "{calls} calls");
}

/// What makes a member refuse writes.
#[derive(Clone, Copy, Debug)]
enum Refuses {
    /// `MISCONF`: its last snapshot failed.
    Snapshot,
    /// `READONLY`: it was made a replica.
    Replica,
    /// `LOADING`
    Loading,
    /// `OOM`
    Memory,
}

impl Refuses {
    /// Makes a member refuse.
    async fn begin(self, server: &RedisServer) {
        match self {
            Self::Snapshot => {
                // A snapshot cannot replace a directory.
                std::fs::create_dir(snapshot(server)).unwrap();
                let () = server.connect().command(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
                let () = server.cli("BGSAVE");
                let info = || server.cli::<String>("INFO persistence");
                let fails = || info().contains("rdb_last_bgsave_status:err");
                eventually("the snapshot fails", BOUND, fails).await;
            }
            // Where no server listens, so that it keeps its data.
            Self::Replica => server.cli("REPLICAOF 127.0.0.1 1"),
            Self::Loading => {
                let mut cli = server.connect();
                for key in 0..700 {
                    let set = ["SET", &format!("fill:{key}"), &"x".repeat(1_024), "PX", "60000"];
                    let () = cli.command(&set).unwrap();
                }
                // It looks at its connections after each kilobyte, and takes 10 ms for each key.
                let () = cli.run("CONFIG SET loading-process-events-interval-bytes 1024").unwrap();
                let () = cli.run("CONFIG SET key-load-delay 10000").unwrap();
                std::thread::spawn(move || cli.run::<()>("DEBUG RELOAD"));
                eventually("it loads", BOUND, || is_loading(server)).await;
            }
            Self::Memory => server.cli("CONFIG SET maxmemory 1"),
        }
    }

    /// What the health says of the member.
    fn words(self) -> &'static str {
        match self {
            Self::Snapshot => "MISCONF",
            Self::Replica => "is a replica",
            Self::Loading => "is loading its data",
            Self::Memory => "raise `maxmemory`",
        }
    }

    /// Mends the member.
    async fn end(self, server: &RedisServer) {
        match self {
            Self::Snapshot => {
                std::fs::remove_dir(snapshot(server)).unwrap();
                let () = server.cli("BGSAVE");
                let info = || server.cli::<String>("INFO persistence");
                let works = || info().contains("rdb_last_bgsave_status:ok");
                eventually("the snapshot succeeds", BOUND, works).await;
            }
            Self::Replica => server.cli("REPLICAOF NO ONE"),
            Self::Loading => eventually("it has its data", BOUND, || !is_loading(server)).await,
            Self::Memory => server.cli("CONFIG SET maxmemory 0"),
        }
    }
}

fn snapshot(server: &RedisServer) -> String {
    let (_, dir): (String, String) = server.cli("CONFIG GET dir");
    format!("{dir}/dump.rdb")
}

fn is_loading(server: &RedisServer) -> bool {
    server.cli::<String>("INFO persistence").contains("loading:1\r")
}

/// A member that refuses is one member away and no more: leases are kept, locks are served by the
/// others, the health says what is wrong with it, and it votes again when that is over.
async fn member_that_refuses_is_one_away(what: Refuses) {
    let debug = || RedisServer::start_with(&["enable-debug-command local"]);
    let quorum = Quorum::of((0..3).map(|_| debug()));
    quorum.vouch_for_all("lock");
    let client = patient_client(&quorum).await;
    let guard = client.mutex("held").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:held") == 3).await;
    what.begin(quorum.server(1)).await;
    for _ in 0..5 {
        let (other, took) = within("a lock", BOUND, client.mutex("k").lock()).await;
        let other = other.unwrap();
        assert!(took < ms(1_000), "{what:?}: {took:?}");
        assert!(quorum.server(0).has("lock:k") && quorum.server(2).has("lock:k"));
        let (released, took) = within("a release", BOUND, other.release()).await;
        assert_eq!(released.unwrap(), Released::InTime, "{what:?}");
        assert!(took < ms(1_000), "{what:?}: {took:?}");
    }
    let label = format!("127.0.0.1:{}", quorum.proxy(1).port());
    let problems = client.health().await.unwrap().problems;
    let its = |it: &String| it.contains(&label) && it.contains(what.words());
    assert!(problems.iter().any(its) && problems.len() == 1, "{what:?}: {problems:?}");
    if !matches!(what, Refuses::Loading) {
        tokio::time::sleep(TTL * 2).await;
    }
    assert!(guard.is_valid(), "{what:?}: renewed by the others");

    what.end(quorum.server(1)).await;
    eventually("it has the lease again", BOUND * 3, || quorum.having("lock:held") == 3).await;
    let votes = async {
        loop {
            let guard = client.mutex("next").lock().await.unwrap();
            let all_have_it = async {
                while quorum.having("lock:next") < 3 {
                    tokio::time::sleep(ms(5)).await;
                }
            };
            let soon = tokio::time::timeout(ms(200), all_have_it).await;
            guard.release().await.unwrap();
            if soon.is_ok() {
                return;
            }
        }
    };
    within("its vote", BOUND, votes).await;
    let problems = client.health().await.unwrap().problems;
    assert_eq!(problems, Vec::<String>::new(), "{what:?}");
    guard.release().await.unwrap();
    wait_idle(&client).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}

#[tokio::test]
async fn member_whose_snapshots_fail_is_one_away() {
    member_that_refuses_is_one_away(Refuses::Snapshot).await;
}

#[tokio::test]
async fn member_that_becomes_a_replica_is_one_away() {
    member_that_refuses_is_one_away(Refuses::Replica).await;
}

#[tokio::test]
async fn member_that_loads_its_data_is_one_away() {
    member_that_refuses_is_one_away(Refuses::Loading).await;
}

#[tokio::test]
async fn member_without_memory_is_one_away() {
    member_that_refuses_is_one_away(Refuses::Memory).await;
}

/// Members without memory refuse what is new. A lease is no news: it is renewed, and may be taken
/// from its holder. Renewals began with a SET, which is refused, so full members lost all leases.
#[tokio::test]
async fn leases_outlive_the_memory_of_the_members() {
    let quorum = Quorum::of_age(3, "lock");
    let (holder, other) = (client(&quorum).await, client(&quorum).await);
    let guard = holder.mutex("k").lock().await.unwrap();
    eventually("all have it", BOUND, || quorum.having("lock:k") == 3).await;
    for server in quorum.servers() {
        let () = server.cli("CONFIG SET maxmemory 1");
    }
    let error = other.mutex("new").with_wait(ms(300)).lock().await.unwrap_err();
    assert!(error.is_store_failure(), "{error:?}");
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_valid(), "renewed");
    guard.extend(RESTART_DELAY).await.unwrap();
    assert!(other.force_release("k").await.unwrap().is_some());
    let (lost, _) = within("the loss", BOUND, guard.lost()).await;
    assert_eq!(lost, LostReason::TakenByOther);
    for server in quorum.servers() {
        let () = server.cli("CONFIG SET maxmemory 0");
    }
    drop(guard);
    wait_idle(&holder).await;
    wait_idle(&other).await;
    eventually("nothing is left", BOUND, || quorum.leftovers().is_empty()).await;
}
