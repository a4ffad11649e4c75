//! The server suddenly answers working clients with errors, and recovers later.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lock_core::store::RedisStore;
use lock_core::testing::{ClientStats, wait_idle};
use lock_core::{Error, LockClient};
use lock_testkit::history::now;
use lock_testkit::{Experiment, RedisServer, documented_user, eventually, ms, scale, within};

use crate::support::worker::Worker;

/// Outlives the refusal.
const LONG: u64 = 12_000;
/// Does not. Renewals that fail are repeated faster towards the deadline, some twenty times for
/// each lease.
const SHORT: u64 = 3_000;
/// For how long the server says no.
const SPAN: Duration = ms(6_000);
/// Shortly before it says yes again.
const LATE: Duration = ms(5_900);
/// The longest pause between two attempts, and some time for a busy machine.
const BACK: Duration = ms(1_500 + 1_500);
/// A renewal that is due, likewise.
const RENEWED: Duration = ms(LONG / 3 + 1_500 + 1_500);
/// Of all clients, and in no error.
const PASSWORD: &str = "swordfish";
/// How many more in a second would be a storm, of one client.
const STORM: f64 = 5.0;

struct Refusal {
    fault: &'static str,
    /// Behind `ACL SETUSER` and the name, before and after.
    take: &'static str,
    give: &'static str,
    /// Whether connections that are open are closed.
    kill: bool,
    /// The error that users see.
    says: &'static str,
}

/// A process that keeps its lease, one that does not, and this one, which waits and asks; each as a
/// user of its own.
struct Scene {
    server: RedisServer,
    client: LockClient,
}

const USERS: [&str; 3] = ["waits", "keeps", "loses"];

impl Scene {
    async fn set() -> Self {
        let server = RedisServer::start();
        for user in USERS {
            let acl = documented_user();
            let own = format!(">{PASSWORD}");
            let mut command = vec!["ACL", "SETUSER", user];
            command.extend(&acl[1..]);
            command.extend(["resetpass", &own]);
            let () = server.connect().command(&command).unwrap();
        }
        let store = RedisStore::connect(server.url_for(USERS[0], PASSWORD)).await.unwrap();
        let client = LockClient::builder(store).build().unwrap();
        Self { server, client }
    }

    fn set_users(&self, what: &str) {
        for user in USERS {
            let () = self.server.cli(&format!("ACL SETUSER {user} {what}"));
        }
    }

    fn hold(&self, user: &str, ttl: u64) -> Worker {
        let worker = Worker::holder(&self.server.url_for(user, PASSWORD), user, ttl);
        let _ = worker.holds();
        worker
    }

    /// How often each user was refused, by the server's own account.
    fn refused(&self) -> Vec<(String, usize)> {
        let log: Vec<HashMap<String, String>> = self.server.cli("ACL LOG 100");
        let mut by_user: HashMap<_, usize> = HashMap::new();
        for entry in log {
            *by_user.entry(entry["username"].clone()).or_default() +=
                entry["count"].parse::<usize>().unwrap();
        }
        by_user.into_iter().collect()
    }

    async fn refuses(&self, refusal: &Refusal, experiment: &mut Experiment) {
        let Self { server, client, .. } = self;
        let (long, short) = (self.hold("keeps", LONG), self.hold("loses", SHORT));
        let waiting = tokio::spawn(client.mutex("keeps").with_wait(ms(30_000)).lock());
        eventually("it is queued", ms(5_000), || server.queued("keeps") == 1).await;

        let () = server.cli("ACL LOG RESET");
        let begun = now();
        let start = Instant::now();
        self.set_users(refusal.take);
        if refusal.kill {
            for user in USERS {
                let killed: usize = server.cli(&format!("CLIENT KILL USER {user}"));
                assert_eq!(killed, 1, "{user}");
                experiment.saw("connections killed", killed);
            }
        }
        let (ended, _) = within("the end of the wait", BACK, waiting).await;
        check(&ended.unwrap().unwrap_err(), refusal);
        experiment.saw("waits ended by an error", 1);
        // Without a connection nothing is sent, however often callers claim. With one, each claim
        // is sent and refused.
        let pause = if refusal.kill { ms(10) } else { LATE };
        while start.elapsed() < SPAN {
            tokio::time::sleep(pause).await;
            let asked = client.mutex("asked").try_lock();
            let (outcome, _) = within("an answer", ms(2_000), asked).await;
            check(&outcome.unwrap_err(), refusal);
            experiment.saw("tries refused", 1);
        }
        for (user, refused) in self.refused() {
            let rate = refused as f64 / start.elapsed().as_secs_f64();
            assert!(rate < STORM, "{user}: {refused} refusals, {rate:.1} a second");
            experiment.saw("refusals by the server", refused);
        }
        let end = short.end();
        let lost = end.lost.expect("its lease could not be renewed") - begun;
        assert!(lost < u128::from(SHORT + 500) * 1_000_000, "told after {} ms", lost / 1_000_000);
        assert!(end.released.contains("Unavailable"), "{end:?}");
        assert!(!end.released.contains(PASSWORD), "{end:?}");
        experiment.saw("leases lost", 1);

        assert!(server.pttl("lock:keeps") < LONG as i64 * 9 / 10, "it was renewed");
        self.set_users(refusal.give);
        let back = Instant::now();
        let guard = loop {
            if let Ok(guard) = client.mutex("asked").lock().await {
                break guard;
            }
            assert!(back.elapsed() < BACK, "not back after {:?}", back.elapsed());
            tokio::time::sleep(ms(10)).await;
        };
        guard.release().await.unwrap();
        experiment.saw("recoveries", 1);
        let renewed = || server.pttl("lock:keeps") > LONG as i64 * 9 / 10;
        eventually("the other lease is renewed", RENEWED, renewed).await;
        let next = tokio::spawn(client.mutex("keeps").with_wait(ms(10_000)).lock());
        eventually("it is queued", ms(5_000), || server.queued("keeps") == 1).await;
        assert!(long.release().released.contains("Ok(InTime)"));
        experiment.saw("leases kept", 1);
        let (next, _) = within("the lock", ms(5_000), next).await;
        next.unwrap().unwrap().release().await.unwrap();
        wait_idle(client).await;
        assert!(ClientStats::of(client).is_idle());
        eventually("nothing remains", ms(5_000), || server.leftovers().is_empty()).await;
        experiment.ran(1);
    }
}

/// No error says that the lock is busy, and none contains the password.
fn check(error: &Error, refusal: &Refusal) {
    // A claim that was under way when its connection was killed may have been executed.
    assert!(error.is_store_failure(), "{error:?}");
    assert!(format!("{error:?}").contains(refusal.says), "{error:?}");
    assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
}

async fn refusal(refusal: Refusal) {
    let mut events = vec![
        "waits ended by an error",
        "tries refused",
        "refusals by the server",
        "leases lost",
        "leases kept",
        "recoveries",
    ];
    if refusal.kill {
        events.push("connections killed");
    }
    let name = "an error of the right kind at once, no storm of tries, recovery";
    let mut experiment = Experiment::new(40, name, refusal.fault, &events);
    for _ in 0..scale(1) {
        Scene::set().await.refuses(&refusal, &mut experiment).await;
    }
    experiment.finish();
}

/// The password is changed while clients are connected.
#[tokio::test]
async fn rotated_password_causes_no_storm_and_no_hang() {
    refusal(Refusal {
        fault: "another password while clients hold and wait, connections killed",
        take: "resetpass >rotated",
        give: "resetpass >swordfish",
        kill: true,
        says: "password",
    })
    .await;
}

/// The account is switched off while clients are connected.
#[tokio::test]
async fn disabled_account_causes_no_storm_and_no_hang() {
    refusal(Refusal {
        fault: "the account is switched off while clients hold and wait, connections killed",
        take: "off",
        give: "on",
        kill: true,
        says: "password",
    })
    .await;
}

/// A permission is revoked while clients are connected.
#[tokio::test]
async fn revoked_permission_causes_no_storm_and_no_hang() {
    refusal(Refusal {
        fault: "NOPERM on EVALSHA while clients hold and wait",
        take: "-evalsha",
        give: "+evalsha",
        kill: false,
        says: "permission",
    })
    .await;
}
