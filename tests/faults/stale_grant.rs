//! A grant that is announced after its lock has gone to another holder must not be taken for the
//! present one.
//!
//! Messages reach the clients up to two seconds late and out of order, locks live for 400 ms, and
//! claims are delayed for longer than that. So waiters are granted the lock, lose it before they
//! know, and are queued again under another ticket.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{LockClient, LockOptions};
use lock_testkit::history::{self, Turns};
use lock_testkit::{
    Action, Gate, Message, Op, Proxy, RedisServer, client, eventually, is_due, ms, scale, within,
};

use crate::lost_wakeup::AT_ONCE;

const TTL: Duration = ms(400);
/// The largest delay of a message: long enough for another grant to the same token.
const LATE: Duration = ms(2_000);
/// A claim that is delayed for this long finds that its grant has expired.
const STALL: Duration = ms(600);
const CLIENTS: usize = 4;
const TASKS: usize = 2;

const NO_RESP3: &str = "NOPROTO unsupported protocol version";

/// All steps in a fixed order: a token is granted the lock, the message is delayed, the lock
/// expires, the token is queued again behind the next holder, and then the message of the first
/// grant arrives.
#[tokio::test]
async fn a_grant_under_an_old_ticket_is_not_taken_for_one_under_the_new_one() {
    for (refusal, told_before_the_answer) in
        [(None, false), (None, true), (Some(NO_RESP3), false), (Some(NO_RESP3), true)]
    {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let old = refusal.map(|why| proxy.rule(Op::Hello, Action::Refuse(why)).always());
        let victim = patient(&proxy).await;
        assert!(old.is_none_or(|old| old.hits() >= 1), "it speaks RESP3");
        let [first, second] = [client(&server.url()).await, client(&server.url()).await];
        let guard = first.mutex("k").lock().await.unwrap();
        let waiter = tokio::spawn(victim.mutex("k").with_wait(ms(60_000)).lock());
        eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
        let before = server.queue("k");

        let (message, claims, answers) = (Gate::new(), Gate::new(), Gate::new());
        let told = proxy.rule(Op::Message, Action::HoldReply(message.clone())).once();
        let held = Action::HoldBoth(claims.clone(), answers.clone());
        let stuck = proxy.rule(Op::Acquire, held).once();
        eventually("a claim of it is held up", ms(5_000), || stuck.hits() == 1).await;
        guard.release().await.unwrap();
        eventually("it is granted", ms(5_000), || told.hits() == 1).await;
        eventually("its lock expires", ms(5_000), || !server.has("lock:k")).await;
        let next = second.mutex("k").with_ttl(ms(60_000)).lock().await.unwrap();
        claims.open();
        eventually("it is queued again", ms(5_000), || server.queued("k") == 1).await;
        assert_eq!(server.queue("k"), before, "under the same token");
        if told_before_the_answer {
            message.open();
            eventually("the message arrives", ms(5_000), || proxy.messages()[0].passed.is_some())
                .await;
            tokio::time::sleep(ms(50)).await;
            assert!(!waiter.is_finished(), "{refusal:?}: it took the late grant");
        }
        answers.open();
        // Claims are re-sent and answered meanwhile.
        tokio::time::sleep(ms(300)).await;
        message.open();
        eventually("the message arrives", ms(5_000), || proxy.messages()[0].passed.is_some()).await;
        tokio::time::sleep(ms(300)).await;
        assert!(!waiter.is_finished(), "{refusal:?}: it took the late grant");
        assert!(next.is_valid());
        let fence = next.fencing_token();
        next.release().await.unwrap();
        let (guard, took) = within("the lock", ms(5_000), waiter).await;
        let guard = guard.unwrap().unwrap();
        assert!(took < AT_ONCE && guard.fencing_token() > fence, "{refusal:?}: {took:?}");
        guard.release().await.unwrap();
        wait_idle(&victim).await;
        assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
    }
}

/// A client with short leases and long timeouts, so that a delayed claim is executed all the same.
async fn patient(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(5_000));
    let defaults = LockOptions::new().with_ttl(TTL);
    LockClient::builder(store.connect().await.unwrap()).with_defaults(defaults).build().unwrap()
}

/// What became of the grants.
#[derive(Debug, Default)]
struct Grants {
    told: usize,
    /// Passed on when the hand-off TTL was over.
    late: usize,
    /// Passed on when the same token had been granted the lock again, under a later ticket.
    overtaken: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_grant_is_not_taken_for_the_present_one_on_one_connection() {
    contend(None).await;
}

/// With a second connection for messages, replies overtake the messages, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_grant_is_not_taken_for_the_present_one_on_two_connections() {
    contend(Some(NO_RESP3)).await;
}

/// Contends until a later grant to the same token has overtaken an earlier one, and all other cases
/// have occurred often enough.
async fn contend(without_resp3: Option<&'static str>) {
    let (mut seen, mut round) = (Seen::default(), 0);
    while is_due(round, 1, seen.is_enough()) {
        contend_once(without_resp3, &mut seen).await;
        round += 1;
    }
    assert!(seen.is_enough(), "{seen:?} in {round} rounds");
}

async fn contend_once(without_resp3: Option<&'static str>, seen: &mut Seen) {
    let server = RedisServer::start();
    let turns = Turns::default();
    let (mut proxies, mut clients, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for owner in 0..CLIENTS {
        let proxy = Proxy::to(&server);
        let old = without_resp3.map(|why| proxy.rule(Op::Hello, Action::Refuse(why)).always());
        let _late = proxy.rule(Op::Message, Action::Scatter(LATE)).always();
        let client = patient(&proxy).await;
        assert!(old.is_none_or(|old| old.hits() >= 1), "it speaks RESP3");
        for task in 0..TASKS {
            let (client, turns) = (client.clone(), turns.clone());
            tasks.push(tokio::spawn(work(client, turns, owner, task)));
        }
        proxies.push(proxy);
        clients.push(client);
    }
    // The delayed connection changes.
    let mut stalls = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        let proxy = &proxies[stalls % CLIENTS];
        let stall = proxy.rule(Op::Acquire, Action::DelayRequest(STALL)).after(stalls % 3).once();
        stalls += 1;
        tokio::time::sleep(ms(230)).await;
        stall.end();
    }
    for task in tasks {
        let Outcomes { served, given_up, lost } = task.await.unwrap();
        seen.outcomes.served += served;
        seen.outcomes.given_up += given_up;
        seen.outcomes.lost += lost;
    }
    let order = history::check("k", turns.all());
    seen.hand_offs += order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    for proxy in &proxies {
        judge(&proxy.messages(), &mut seen.grants);
    }
    println!("{seen:?}, {stalls} stalls");
    for client in &clients {
        wait_idle(client).await;
        eventually("it is idle", ms(10_000), || ClientStats::of(client).is_idle()).await;
    }
    // The client answers the orphaned grants of the last moments with releases.
    let clean = || server.leftovers().is_empty();
    eventually("nothing remains", ms(5_000), clean).await;
}

/// What happened in all rounds.
#[derive(Debug, Default)]
struct Seen {
    outcomes: Outcomes,
    hand_offs: usize,
    grants: Grants,
}

impl Seen {
    fn is_enough(&self) -> bool {
        let Self { outcomes, hand_offs, grants } = self;
        let has_late_grants = grants.late >= 5 && grants.overtaken >= 1;
        outcomes.served >= 20 && outcomes.given_up >= 1 && *hand_offs >= 10 && has_late_grants
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    served: usize,
    given_up: usize,
    lost: usize,
}

/// Takes turns, with pauses, and gives up now and then.
async fn work(client: LockClient, turns: Turns, owner: usize, task: usize) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for round in 0..scale(8) {
        let mix = (owner * 31 + task * 17 + round * 7) % 10;
        let wait = if mix < 3 { ms(120 + 60 * mix as u64) } else { ms(60_000) };
        match client.mutex("k").with_wait(wait).lock().await {
            Ok(guard) => {
                outcomes.served += 1;
                let released = turns.hold(owner, guard, ms(5 + 8 * mix as u64)).await;
                outcomes.lost += usize::from(released.is_err());
            }
            Err(error) => {
                assert!(error.is_busy() || error.is_store_failure(), "{error:?}");
                outcomes.given_up += 1;
            }
        }
        tokio::time::sleep(ms(mix as u64)).await;
    }
    outcomes
}

/// Counts what became of the grants of a client.
fn judge(messages: &[Message], grants: &mut Grants) {
    let mut newest: HashMap<&str, Vec<(u64, &Message)>> = HashMap::new();
    for message in messages {
        let words: Vec<_> = message.text.splitn(6, ' ').collect();
        let [token, ticket, _fence, _us, claim, ..] = words[..] else { panic!("{message:?}") };
        let (ticket, claim) = (ticket.parse::<f64>().unwrap() as u64, claim.parse().unwrap());
        grants.told += 1;
        let late = message.passed.is_some_and(|passed| passed - message.came > ms(claim));
        grants.late += usize::from(late);
        newest.entry(token).or_default().push((ticket, message));
    }
    for grants_of_one in newest.values() {
        for (ticket, message) in grants_of_one {
            let overtaken = grants_of_one.iter().any(|(other, by)| {
                other > ticket && message.passed.is_some_and(|passed| passed > by.came)
            });
            grants.overtaken += usize::from(overtaken);
        }
    }
}

/// A client that waits long for the answer to a command.
async fn unhurried(proxy: &Proxy) -> LockClient {
    let store = RedisStore::builder(proxy.url()).with_request_timeout(ms(10_000));
    LockClient::builder(store.connect().await.unwrap()).build().unwrap()
}

/// The answer to a claim is slow. Meanwhile the server forgets the lock, and another client gets
/// it. A fence that was taken after the answer would be the larger one, although its lock is gone.
#[tokio::test]
async fn a_late_grant_has_a_smaller_fence_than_the_next_one() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (slow, other) = (unhurried(&proxy).await, client(&server.url()).await);
    let gate = Gate::new();
    let held_up = proxy.rule(Op::Acquire, Action::HoldReply(gate.clone())).once();
    let claim = tokio::spawn(slow.mutex("k").with_ttl(ms(60_000)).lock());
    eventually("the claim is executed", ms(5_000), || server.has("lock:k")).await;
    assert_eq!(server.cli::<i64>("DEL lock:k"), 1);
    let next = other.mutex("k").lock().await.unwrap();
    gate.open();
    let late = claim.await.unwrap().unwrap();
    assert_eq!(held_up.hits(), 1);
    assert!(late.is_valid() && next.is_valid());
    assert!(late.fencing_token() < next.fencing_token());
}

/// The message of a grant arrives late, while a claim that was sent just before is still under way.
/// A lease that is counted from the message, or from that claim, would outlast the lock.
#[tokio::test]
async fn a_lease_by_a_late_message_ends_before_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let (holder, waiter) = (client(&server.url()).await, unhurried(&proxy).await);
    let ttl = ms(60_000);
    let guard = holder.mutex("k").with_ttl(ttl).lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("k").with_ttl(ttl).with_wait(ttl).lock());
    eventually("it is queued", ms(5_000), || server.queued("k") == 1).await;
    let (message, claims) = (Gate::new(), Gate::new());
    let sent = proxy.rule(Op::Message, Action::HoldReply(message.clone())).once();
    let stuck = proxy.rule(Op::Acquire, Action::HoldRequest(claims.clone())).once();
    eventually("it claims again", ms(5_000), || stuck.hits() == 1).await;
    guard.release().await.unwrap();
    let given = Instant::now();
    let given_for = ms(u64::try_from(server.pttl("lock:k")).unwrap());
    assert!(given_for < ttl / 2, "the lock is handed on for a part of the ttl");
    eventually("the message is sent", ms(5_000), || sent.hits() == 1).await;
    tokio::time::sleep(ms(600)).await;
    message.open();
    let (guard, _) = within("the lock", ms(5_000), waiting).await;
    let guard = guard.unwrap().unwrap();
    let (left, since) = (guard.remaining(), given.elapsed());
    assert!(left > ms(0) && since >= ms(600));
    // The answer took a moment, too.
    assert!(left + since <= given_for + ms(100), "{left:?} left of {given_for:?} after {since:?}");
    claims.open();
    guard.release().await.unwrap();
    wait_idle(&waiter).await;
    assert!(server.leftovers().is_empty(), "{:?}", server.leftovers());
}
