//! A master that an operator demotes keeps the connections of its clients, and passes on to them
//! what the new master publishes. That one counts no receiver for such a message, and hands the
//! lock on to the next waiter.

use std::time::Duration;

use lock_core::store::RedisStore;
use lock_core::{Error, LockClient, LockOptions};
use lock_testkit::history::{Turn, misnumbered, now, overlaps};
use lock_testkit::{Experiment, Rng, ms};
use tokio::time::{sleep, timeout};

use crate::fake::{Fake, Role, View};
use crate::net::Net;
use crate::setting::{EXACT, REQUEST, Setting, experiment, simulated};

const KEY: &str = "k";
/// Longer than any of this takes.
const LONG: Duration = ms(60_000);
/// How long a waiter holds the lock: longer than a message takes.
const HOLD: Duration = ms(50);
/// Time enough for a claim, whose connection has to be dialled first.
const QUEUED: Duration = ms(100);
const CLUSTER: &str = "redis+cluster://node0,node1";

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

fn check(turns: &[Turn], case: &str) {
    assert!(overlaps(turns).is_empty(), "{case}: {turns:?}");
    assert!(misnumbered(turns, |_| true).is_empty(), "{case}: {turns:?}");
}

/// Both waiters come back to the queue. One of them does not know yet which node has the slot, and
/// listens where it did before.
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
        net.add("node0", old.clone());
        net.add("node1", new.clone());
        let names = |first: u8| [format!("node{first}"), format!("node{}", 1 - first)];
        let ranges = vec![(0..=16_383, 0)];
        let before = View { epoch: 1, shards: vec![names(0)], ranges };
        old.join("node0".to_owned(), before.clone(), &new, setting.rng.split());
        new.join("node1".to_owned(), before.clone(), &old, setting.rng.split());

        let (holder, patient) = (client(&net, CLUSTER), client(&net, CLUSTER));
        let guard = holder.mutex(KEY).lock().await.unwrap();
        assert!(patient.mutex(KEY).try_lock().await.unwrap().is_none(), "{case}");
        sleep(ms(1_000)).await;
        // Fetches the map now, and so not again within a tenth of a second.
        let first = tokio::spawn(turn(client(&net, CLUSTER), 1, LONG));
        sleep(ms(50)).await;
        let second = tokio::spawn(turn(patient, 2, LONG));
        sleep(setting.rng.ms(15..=40)).await;

        let after = View { epoch: 2, shards: vec![names(1)], ranges: before.ranges };
        demote(&old, &new, &mut setting.rng);
        new.learn(after.clone());
        old.learn(after);
        sleep(setting.rng.ms(20..=80)).await;
        drop(guard);
        let turns = [first, second].map(|turn| timeout(LONG, turn));
        let [first, second] = turns;
        let first = first.await.unwrap().unwrap().unwrap();
        let second = second.await.unwrap().unwrap().unwrap();
        check(&[first, second], &case);
        [
            (PASSED_ON, old.counts().by_replica),
            (OVERTAKEN, usize::from(second.enter < first.enter)),
        ]
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

const PASSED_ON: &str = "messages of the new master to clients of the former one";
const OVERTAKEN: &str = "waiters that were passed over";
