//! A master that an operator demotes keeps the connections of its clients, and passes on to them
//! what the new master publishes. That one counts no receiver for such a message, and hands the
//! lock on to the next waiter.

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{Error, LockClient, LockOptions};
use lock_testkit::history::{Turn, misnumbered, now, overlaps};
use lock_testkit::{Experiment, Rng, ms};
use tokio::time::{sleep, timeout};

use crate::fake::{Fake, Role, View, slot};
use crate::net::Net;
use crate::setting::{EXACT, REQUEST, Setting, experiment, simulated};

const PASSED_ON: &str = "messages of the new master to clients of the former one";
const OVERTAKEN: &str = "waiters that were passed over";
const KEY: &str = "k";
/// Longer than any of this takes.
const LONG: Duration = ms(60_000);
/// How long a waiter holds the lock: longer than a message takes.
const HOLD: Duration = ms(50);
/// Time enough for a claim, whose connection has to be dialled first.
const QUEUED: Duration = ms(100);
/// How many slots each shard has.
const HALF: u16 = 8_192;

/// Adds a replica that has all that the server of `setting` has, at once.
fn replica(setting: &mut Setting) -> Fake {
    let (master, rng) = (&setting.fake, &mut setting.rng);
    let replica = Fake::new(EXACT, setting.log.clone());
    for (number, server) in [master, &replica].into_iter().enumerate() {
        server.tell_process(number as u64, ms(3_600_000));
    }
    replica.become_a(Role::Replica(master.feed(Duration::ZERO, 0, rng.split())));
    master.publishes_to(&replica, rng.split());
    replica.publishes_to(master, rng.split());
    replica
}

/// `new` takes over from `old`, which becomes its replica.
fn demote(old: &Fake, new: &Fake, rng: &mut Rng) {
    new.become_a(Role::Master);
    old.become_a(Role::Replica(new.feed(Duration::ZERO, 0, rng.split())));
}

fn client(net: &Net, url: &str) -> LockClient {
    let store = RedisStore::builder(url).with_connector(net.machine());
    let store = store.with_request_timeout(REQUEST).connect_lazy().unwrap();
    let defaults = LockOptions::new().with_ttl(LONG);
    LockClient::builder(store).with_defaults(defaults).build().unwrap()
}

/// Waits for the lock, and holds it for a while.
async fn turn(client: LockClient, owner: usize, wait: Duration) -> Result<Turn, Error> {
    let requested = now();
    let guard = client.mutex(KEY).with_wait(wait).lock().await?;
    let (enter, fence) = (now(), guard.fencing_token().get());
    sleep(HOLD).await;
    let exit = now();
    drop(guard);
    Ok(Turn { owner, requested, enter, exit, deadline: u128::MAX, fence })
}

fn name(node: usize) -> String {
    format!("node{node}")
}

fn check(turns: &[Turn], case: &str) {
    assert!(overlaps(turns).is_empty(), "{case}: {turns:?}");
    assert!(misnumbered(turns, |_| true).is_empty(), "{case}: {turns:?}");
}

/// A node of the other shard does not know of the new master yet, so a waiter may listen again
/// where it did before.
#[test]
fn waiter_at_a_demoted_node_does_not_enter_on_the_word_of_the_new_one() {
    let about = Experiment::new(
        74,
        "on a cluster: no two turns at once when a master gives its rule up, and numbers grow",
        "a lock is handed on while a waiter listens to the former master, by seed",
        &[PASSED_ON, OVERTAKEN],
    );
    experiment(about, 200, async |mut setting| {
        let (case, net) = (setting.case.clone(), setting.net.clone());
        let (old, new) = (setting.fake.clone(), replica(&mut setting));
        let other = Fake::new(EXACT, setting.log.clone());
        let nodes = [&old, &new, &other];
        let view = |epoch, master: usize| View {
            epoch,
            shards: vec![[name(master), name(1 - master)], [name(2), name(3)]],
            ranges: vec![(0..=HALF - 1, 1), (HALF..=2 * HALF - 1, 0)],
        };
        for ((number, node), peer) in nodes.into_iter().enumerate().zip([&new, &old, &other]) {
            net.add(name(number), node.clone());
            node.join(name(number), view(1, 0), peer, setting.rng.split());
        }
        let clients = [(); 3].map(|()| client(&net, "redis+cluster://node0,node2"));
        let elsewhere = { (0..).map(|number: u32| format!("elsewhere{number}")) }
            .find(|key| slot(format!("lock:{key}").as_bytes()) < HALF)
            .unwrap();
        for client in &clients {
            client.mutex(elsewhere.clone()).lock().await.unwrap().release().await.unwrap();
        }
        let [holder, first, second] = clients;
        let guard = holder.mutex(KEY).lock().await.unwrap();
        let first = tokio::spawn(turn(first, 1, LONG));
        sleep(QUEUED).await;
        let second = tokio::spawn(turn(second, 2, LONG));
        sleep(QUEUED).await;

        demote(&old, &new, &mut setting.rng);
        new.learn(view(2, 1));
        old.learn(view(2, 1));
        sleep(setting.rng.ms(20..=80)).await;
        drop(guard);
        let first = timeout(LONG, first).await.unwrap().unwrap().unwrap();
        let second = timeout(LONG, second).await.unwrap().unwrap().unwrap();
        check(&[first, second], &case);
        [(PASSED_ON, old.counts().by_replica), (OVERTAKEN, usize::from(second.enter < first.enter))]
    });
}

/// The waiter whose connection leads to the replica learns nothing of the hand-off.
#[test]
fn replica_of_one_server_passes_no_grant_on() {
    simulated(1, EXACT, async |mut setting| {
        let net = setting.net.clone();
        let (old, new) = (setting.fake.clone(), replica(&mut setting));
        net.add("new", new.clone());
        let former = "redis://simulated";
        let guard = client(&net, former).mutex(KEY).lock().await.unwrap();
        let first = tokio::spawn(turn(client(&net, former), 1, ms(2_000)));
        sleep(QUEUED).await;
        demote(&old, &new, &mut setting.rng);
        let second = tokio::spawn(turn(client(&net, "redis://new"), 2, LONG));
        sleep(QUEUED).await;
        assert!(!first.is_finished() && !second.is_finished());
        let operator = client(&net, "redis://new");
        let taken = operator.force_release(KEY).await.unwrap();
        assert!(taken.is_some(), "the new master has the lock");
        let second = timeout(ms(500), second).await.expect("the first one is passed over");
        let mut turns = vec![second.unwrap().unwrap()];
        // Its next claim is refused, so it leaves without a turn.
        turns.extend(timeout(LONG, first).await.unwrap().unwrap());
        check(&turns, "after a demotion");
        assert_eq!(turns.len(), 1, "entered on a message of the new master: {turns:?}");
        drop(guard);
    });
}
