//! Grants are announced over pub/sub. A lost message costs time, and nothing else.

use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::{self, Turns};
use lock_testkit::{
    Action, LogCapture, Op, Proxy, RedisServer, client, client_with, documented_user, eventually,
    is_due, ms, within,
};

use crate::lost_wakeup::AT_ONCE;

/// A waiter that misses the message of its grant finds the grant at its next claim, about a second
/// later. The rest of the bound is for a busy machine.
const UNHEARD: Duration = ms(2_500);

/// Gives each client `rounds` turns on one key, and returns the time that this took.
async fn take_turns(clients: &[LockClient], rounds: usize) -> Duration {
    let (turns, start) = (Turns::default(), Instant::now());
    let mut tasks = Vec::new();
    for (owner, client) in clients.iter().cloned().enumerate() {
        let turns = turns.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = client.mutex("k").with_wait(ms(20_000)).lock().await.unwrap();
                turns.hold(owner, guard, ms(3)).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(history::check("k", turns.all()).len(), clients.len() * rounds);
    start.elapsed()
}

/// Lets two clients take turns until a message has announced enough of the grants. One client may
/// finish all its turns before the other one has waited.
async fn take_turns_until_told(clients: &[LockClient], proxy: &Proxy) {
    let mut round = 0;
    while is_due(round, 1, proxy.seen(Op::Message) >= 20) {
        let took = take_turns(clients, 20).await;
        assert!(took < ms(4_000), "{took:?} for 40 turns");
        round += 1;
    }
}

/// Makes the clients wait for one another in turns. Each holder keeps the lock until `waits` says
/// that the next waiter is ready. Returns the number of hand-offs, and the longest.
async fn hand_off(
    clients: &[LockClient],
    rounds: usize,
    mut waits: impl FnMut(usize) -> bool,
) -> (usize, Duration) {
    let (mut handed, mut longest) = (0, Duration::ZERO);
    let mut guard = clients[0].mutex("k").lock().await.unwrap();
    for next in clients.iter().cycle().skip(1).take(rounds * clients.len()) {
        let waiter = tokio::spawn(next.mutex("k").with_wait(ms(20_000)).lock());
        eventually("it waits", ms(10_000), || waits(handed)).await;
        let fence = guard.fencing_token();
        guard.release().await.unwrap();
        let (lock, took) = within("the lock", ms(10_000), waiter).await;
        guard = lock.unwrap().unwrap();
        assert!(guard.fencing_token() > fence);
        handed += 1;
        longest = longest.max(took);
    }
    guard.release().await.unwrap();
    (handed, longest)
}

/// The warnings of this crate.
fn warnings(log: &LogCapture) -> Vec<String> {
    let text = log.text();
    let warnings = text.lines().filter(|line| line.contains("WARN") && line.contains("lock_core"));
    warnings.map(str::to_owned).collect()
}

/// R9: messages vanish while commands work. Leases are long, so no expiry helps. redisson#5761,
/// #3891.
#[tokio::test]
async fn waiters_are_served_although_all_messages_are_lost() {
    let log = LogCapture::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let defaults = LockOptions::new().with_ttl(ms(30_000));
    let clients =
        [client_with(&proxy.url(), defaults).await, client_with(&proxy.url(), defaults).await];
    let lost = proxy.rule(Op::Message, Action::Vanish).always();
    let (handed, longest) = hand_off(&clients, 3, |_| server.queued("k") == 1).await;
    // Each lock was handed to a queued waiter, and the message was sent.
    assert_eq!((handed, lost.hits()), (6, 6));
    assert!(longest < UNHEARD, "{longest:?} for a turn");
    assert!(warnings(&log).len() <= 2, "{:?}", warnings(&log));

    // The client recovers by itself.
    lost.end();
    let took = take_turns(&clients, 10).await;
    assert!(took < ms(2_000), "{took:?} for 20 turns");
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// Confirmations of subscriptions do not arrive either.
#[tokio::test]
async fn waiters_are_served_although_no_subscription_is_confirmed() {
    let log = LogCapture::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let clients = [client(&proxy.url()).await, client(&proxy.url()).await];
    let lost = proxy.rule(Op::Message, Action::Vanish).always();
    let unconfirmed = proxy.rule(Op::Subscribe, Action::Vanish).always();
    // Each client tries to subscribe once.
    let tried = |handed: usize| unconfirmed.hits() > handed.min(1);
    let (_, longest) = hand_off(&clients, 3, tried).await;
    // Again after 10 s, on a machine that is as slow.
    assert!((2..=4).contains(&unconfirmed.hits()), "{unconfirmed:?}");
    assert!(longest < UNHEARD, "{longest:?} for a turn");
    assert!((1..=2).contains(&warnings(&log).len()), "{:?}", warnings(&log));
    unconfirmed.end();
    lost.end();
    for client in &clients {
        wait_idle(client).await;
    }
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}

/// The server forbids the channel, or one of the two commands. Each client logs this once.
#[tokio::test]
async fn waiters_are_served_by_a_server_that_forbids_pubsub() {
    for without in ["+subscribe", "+publish", "&lock:*"] {
        let log = LogCapture::start();
        let server = RedisServer::start();
        let acl = documented_user();
        assert!(acl.contains(&without), "{acl:?}");
        let mut command = vec!["ACL", "SETUSER", acl[0], "reset", "on", "resetchannels"];
        command.extend(acl[1..].iter().filter(|right| **right != without));
        let () = server.connect().command(&command).unwrap();
        let url = server.url_for(acl[0], "password");
        let clients = [client(&url).await, client(&url).await, client(&url).await];
        // Each client notices in its first wait.
        let found_out = |handed: usize| warnings(&log).len() > handed.min(2);
        let (_, longest) = hand_off(&clients, 2, found_out).await;
        assert!(longest < UNHEARD, "without {without}: {longest:?} for a turn");
        let warnings = warnings(&log);
        assert_eq!(warnings.len(), 3, "without {without}: {warnings:?}");
        for client in &clients {
            wait_idle(client).await;
        }
        assert!(server.leftovers().is_empty(), "without {without}: {:?}", server.leftovers());
    }
}

/// A server before Redis 6, or a proxy, refuses RESP3. A second connection then listens, and only
/// while a task waits.
#[tokio::test]
async fn waiters_are_notified_without_resp3() {
    let refusals = [
        "NOPROTO unsupported protocol version",
        "ERR unknown command 'HELLO', with args beginning with: '3'",
    ];
    for refusal in refusals {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let old = proxy.rule(Op::Hello, Action::Refuse(refusal)).always();
        let clients = [client(&proxy.url()).await, client(&proxy.url()).await];
        assert!(old.hits() >= 2, "{old:?}");
        for client in &clients {
            client.mutex("k").lock().await.unwrap().release().await.unwrap();
        }
        assert_eq!((server.inboxes().len(), server.clients()), (0, 2), "no task waits yet");

        take_turns_until_told(&clients, &proxy).await;
        assert!(proxy.seen(Op::Message) >= 20, "{} messages", proxy.seen(Op::Message));
        assert!(server.clients() <= 4, "{} connections", server.clients());
        for client in &clients {
            assert!(ClientStats::of(client).is_idle());
        }
        drop(clients);
        eventually("all connections are closed", ms(5_000), || server.clients() == 0).await;
        assert!(server.inboxes().is_empty());
    }
}

/// With RESP3, one connection is enough.
#[tokio::test]
async fn a_waiter_needs_no_second_connection_with_resp3() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let clients = [client(&proxy.url()).await, client(&proxy.url()).await];
    take_turns_until_told(&clients, &proxy).await;
    assert_eq!(proxy.connections(), 2);
    // The inbox, and forced releases if a turn was so long that it was renewed.
    assert!((2..=4).contains(&proxy.seen(Op::Subscribe)), "{}", proxy.seen(Op::Subscribe));
    assert!(proxy.seen(Op::Message) >= 20, "{} messages", proxy.seen(Op::Message));
    drop(clients);
    eventually("all connections are closed", ms(5_000), || server.clients() == 0).await;
    assert!(server.inboxes().is_empty());
}

/// How many connections listen on a channel.
fn subscribers(server: &RedisServer, channel: &str) -> i64 {
    let (_, count): (String, i64) = server.cli(&format!("PUBSUB NUMSUB {channel}"));
    count
}

/// Connections break during a wait: those that carry commands, those that listen, or all. The
/// client subscribes again, and the next hand-off is announced as the first one was.
#[tokio::test]
async fn a_waiter_is_notified_after_its_connection_broke() {
    let server = RedisServer::start();
    for (resp3, kinds) in [
        (true, &["pubsub"][..]),
        (false, &["pubsub"]),
        (false, &["normal"]),
        (false, &["normal", "pubsub"]),
    ] {
        let proxy = Proxy::to(&server);
        let old = (!resp3).then(|| proxy.rule(Op::Hello, Action::Refuse("NOPROTO no")).always());
        let holder = client(&server.url()).await;
        let waiter = client(&proxy.url()).await;
        assert!(old.is_none_or(|old| old.hits() >= 1), "it speaks RESP3");
        for round in 0..2 {
            let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
            let waiting = tokio::spawn(waiter.mutex("k").with_wait(ms(60_000)).lock());
            eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
            let (before, subscribed) = (proxy.connections(), proxy.seen(Op::Subscribe));
            // The holder does not listen, so the listening connection is the waiter's.
            for kind in kinds {
                let killed: i64 = server.cli(&format!("CLIENT KILL TYPE {kind}"));
                assert!(killed >= 1, "{kind}");
            }
            // By RESP2, the connection that listens is replaced together with the other, so for a
            // moment both listen, or neither does.
            let again = || {
                proxy.connections() > before
                    && proxy.seen(Op::Subscribe) > subscribed
                    && matches!(&*server.inboxes(), [inbox] if subscribers(&server, inbox) == 1)
            };
            eventually("its inbox is back", ms(2_000) + AT_ONCE, again).await;
            let heard = proxy.seen(Op::Message);
            eventually("it is queued again", ms(2_000), || server.queued("k") == 1).await;
            guard.release().await.unwrap();
            let (guard, took) = within("the lock", ms(10_000), waiting).await;
            assert!(took < AT_ONCE, "{kinds:?}, round {round}: {took:?}");
            // The message may come on another connection than the answer to a claim.
            let told = || proxy.seen(Op::Message) == heard + 1;
            let what = format!("the waiter was notified: {kinds:?}, RESP3 {resp3}, round {round}");
            eventually(&what, ms(5_000), told).await;
            guard.unwrap().unwrap().release().await.unwrap();
        }
    }
}

/// The connection breaks during a claim. The claim is repeated on another one, which is not
/// subscribed yet.
#[tokio::test]
async fn a_waiter_is_notified_after_its_claim_moved_to_another_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, waiter) = (client(&server.url()).await, client(&proxy.url()).await);
    for round in 0..3 {
        let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        let waiting = tokio::spawn(waiter.mutex("k").with_wait(ms(60_000)).lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        let (claims, heard) = (proxy.seen(Op::Acquire), proxy.seen(Op::Message));
        let cut_off = proxy.rule(Op::Acquire, Action::CloseAfter).once();
        eventually("it claims again, twice", ms(5_000), || {
            cut_off.hits() == 1 && proxy.seen(Op::Acquire) >= claims + 2
        })
        .await;
        // Sooner than the waiter would claim by itself.
        eventually("its inbox is back", ms(500), || server.inboxes().len() == 1).await;
        eventually("it has its place", ms(500), || server.queued("k") == 1).await;
        guard.release().await.unwrap();
        let (guard, took) = within("the lock", ms(10_000), waiting).await;
        assert!(took < AT_ONCE, "round {round}: {took:?}");
        assert_eq!(proxy.seen(Op::Message), heard + 1);
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

/// A wait begins on a connection that has broken unnoticed, where the client would have to
/// subscribe again.
#[tokio::test]
async fn a_wait_that_begins_on_a_broken_connection_is_served() {
    let log = LogCapture::start();
    let server = RedisServer::start();
    let (holder, waiter) = (client(&server.url()).await, client(&server.url()).await);
    for _ in 0..3 {
        let guard = holder.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        // The client knows by now that this lock is contended.
        assert!(waiter.mutex("k").with_wait(ms(100)).lock().await.unwrap_err().is_busy());
        eventually("it has left", ms(5_000), || server.queued("k") == 0).await;
        let _killed: i64 = server.cli("CLIENT KILL TYPE pubsub");
        waiter.mutex("other").lock().await.unwrap().release().await.unwrap();
        let _killed: i64 = server.cli("CLIENT KILL TYPE normal");
        let waiting = tokio::spawn(waiter.mutex("k").with_wait(ms(20_000)).lock());
        let told = || server.queued("k") == 1 && server.inboxes().len() == 1;
        eventually("it is queued, and listens", ms(2_000), told).await;
        guard.release().await.unwrap();
        let (guard, took) = within("the lock", ms(10_000), waiting).await;
        assert!(took < AT_ONCE, "{took:?}");
        guard.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(warnings(&log), [""; 0], "nothing is forbidden");
}

/// R11: 2,000 waiters on 2,000 keys in one process share one subscription, and their memory is
/// freed. redisson#3577, #6328.
#[tokio::test]
async fn two_thousand_waiters_on_two_thousand_keys_share_one_subscription() {
    const KEYS: usize = 2_000;
    let server = RedisServer::start();
    let defaults = LockOptions::new().with_ttl(ms(60_000)).with_wait(ms(60_000));
    let (holder, waiter) =
        (client_with(&server.url(), defaults).await, client_with(&server.url(), defaults).await);
    let before = server.used_memory();
    let mut guards = Vec::new();
    for key in 0..KEYS {
        guards.push(holder.mutex(format!("k{key}")).lock().await.unwrap());
    }
    let waiters: Vec<_> = (0..KEYS)
        .map(|key| {
            let mutex = waiter.mutex(format!("k{key}"));
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let queues = || server.cli::<Vec<String>>("KEYS lock:{0}:q:*").len();
    eventually("all are queued", ms(30_000), || queues() == KEYS).await;
    assert_eq!((server.inboxes().len(), server.clients()), (1, 2));
    assert_eq!(server.cli::<String>("CLIENT LIST TYPE pubsub").lines().count(), 1);
    let start = Instant::now();
    for guard in guards {
        guard.release().await.unwrap();
    }
    for waiter in waiters {
        within("its turn", ms(20_000), waiter).await.0.unwrap();
    }
    assert!(start.elapsed() < ms(20_000), "{:?}", start.elapsed());
    assert!(ClientStats::of(&holder).is_idle() && ClientStats::of(&waiter).is_idle());
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    // Most of it is the server's buffers for two clients.
    let grown = || server.used_memory().saturating_sub(before);
    eventually("its memory is back", ms(10_000), || grown() < 400_000).await;
}

/// A free lock needs no wait, so the client subscribes to nothing.
#[tokio::test]
async fn an_uncontended_lock_needs_no_subscription() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let client = LockClient::builder(store).build().unwrap();
    let before = [Op::Acquire, Op::Release].map(|op| proxy.seen(op));
    for key in 0..10 {
        client.mutex(format!("k{key}")).lock().await.unwrap().release().await.unwrap();
    }
    let () = server.cli("SET lock:k foreign NX PX 60000");
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    assert_eq!((proxy.seen(Op::Subscribe), proxy.connections()), (0, 1));
    assert_eq!(
        [Op::Acquire, Op::Release].map(|op| proxy.seen(op)),
        [before[0] + 11, before[1] + 10]
    );
    assert!(server.queue("k").is_empty());
    // A short wait leaves time to find the lock busy, unless the machine is overloaded.
    let mut told = false;
    for _ in 0..20 {
        let error = client.mutex("k").with_wait(ms(50)).lock().await.unwrap_err();
        told |= error.is_busy();
        assert!(told || error.is_store_failure(), "{error:?}");
        wait_idle(&client).await;
        if told {
            break;
        }
    }
    assert!(told, "never told that it is busy");
    assert!(server.queue("k").is_empty());
    let (_, took) = within("an answer", AT_ONCE, client.mutex("k").try_lock()).await;
    assert!(took < AT_ONCE);
}
