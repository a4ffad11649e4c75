//! The effect of each argument of the attribute.

use std::sync::Mutex;
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Key, LockClient, LockOptions, LostReason, Wait};
use lock_core::{distributed_lock, key};
use tokio::time::{Instant, sleep};

use crate::support::{Counter, client, held_by_another, store_and_client};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn ttl_sets_the_length_of_the_lease() {
    #[distributed_lock(key = "a", ttl = "1m30s", lease = lease)]
    async fn literal() -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    #[distributed_lock(key = "a", ttl = 2 * seconds, lease = lease)]
    async fn computed(seconds: Duration) -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    let (_, client) = store_and_client();
    client
        .scope(async {
            let remaining = literal().await.unwrap();
            assert!(remaining > 85 * SECOND && remaining < 90 * SECOND, "{remaining:?}");
            let remaining = computed(3 * SECOND).await.unwrap();
            assert!(remaining > 5 * SECOND && remaining < 6 * SECOND, "{remaining:?}");
            let error = computed(Duration::ZERO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn wait_limits_the_wait() {
    #[distributed_lock(key = "a", wait = "2s")]
    async fn some() -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "a", wait = none)]
    async fn none() -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "a", wait = forever)]
    async fn forever() -> Result<(), Error> {
        Ok(())
    }

    let (client, guard) = held_by_another("a").await;
    client
        .scope(async {
            let start = Instant::now();
            assert!(none().await.unwrap_err().is_busy());
            assert_eq!(start.elapsed(), Duration::ZERO);
            assert!(some().await.unwrap_err().is_busy());
            assert!(start.elapsed() >= 2 * SECOND && start.elapsed() < 3 * SECOND);
            let release = async {
                sleep(3600 * SECOND).await;
                guard.release().await.unwrap();
            };
            let (result, ()) = tokio::join!(forever(), release);
            result.unwrap();
            assert!(start.elapsed() > 3600 * SECOND);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_lease() {
    #[distributed_lock(key = "a", ttl = "1s", max_hold = "5s")]
    async fn bounded() -> Result<(), Error> {
        sleep(60 * SECOND).await;
        Ok(())
    }

    #[distributed_lock(key = "a", ttl = "1s", max_hold = none)]
    async fn unbounded() -> Result<(), Error> {
        sleep(60 * SECOND).await;
        Ok(())
    }

    let (store, plain) = store_and_client();
    let start = Instant::now();
    let error = plain.scope(bounded()).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Lost { reason: LostReason::MaxHold, .. }),
        "{error:?}"
    );
    assert!(start.elapsed() <= 5 * SECOND, "{:?}", start.elapsed());

    let bounding = LockClient::builder(store)
        .with_defaults(LockOptions::new().with_max_hold(2 * SECOND))
        .build()
        .unwrap();
    bounding.scope(unbounded()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_key() {
    #[distributed_lock(key = "a", min_hold = "5s")]
    async fn quick() -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "a", min_hold = none)]
    async fn quicker() -> Result<(), Error> {
        Ok(())
    }

    let (store, one) = store_and_client();
    let other = client(&store);
    one.scope(quick()).await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_none(), "released early");
    sleep(6 * SECOND).await;
    let holding = LockClient::builder(store.clone())
        .with_defaults(LockOptions::new().with_min_hold(5 * SECOND))
        .build()
        .unwrap();
    holding.scope(quicker()).await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_some(), "still held");
}

#[tokio::test(start_paused = true)]
async fn renew_overrides_the_client() {
    #[distributed_lock(key = "a", ttl = "1s", renew = false)]
    async fn fixed() -> Result<(), Error> {
        sleep(60 * SECOND).await;
        Ok(())
    }

    #[distributed_lock(key = "a", ttl = "1s", renew = true)]
    async fn renewed() -> Result<(), Error> {
        sleep(60 * SECOND).await;
        Ok(())
    }

    let store = lock_core::store::MemoryStore::new();
    let client = LockClient::builder(store)
        .with_defaults(LockOptions::new().without_renewal())
        .build()
        .unwrap();
    assert!(client.scope(fixed()).await.unwrap_err().is_lost());
    client.scope(renewed()).await.unwrap();
}

/// O10: an expression could not give all values of an option, and there was no way to give options
/// of a configuration.
#[tokio::test(start_paused = true)]
async fn every_option_takes_every_value_at_run_time() {
    #[distributed_lock(key = "a", wait = wait)]
    async fn waits(wait: Wait) -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(
        key = "a",
        ttl = "1s",
        max_hold = max_hold,
        min_hold = min_hold,
        renew = renew,
        fencing = fencing,
        turns_for_others = renew,
        lease = lease,
    )]
    async fn holds(
        max_hold: Option<Duration>,
        min_hold: Option<Duration>,
        renew: bool,
        fencing: bool,
    ) -> Result<u64, Error> {
        sleep(10 * SECOND).await;
        Ok(lease.fencing_token().get())
    }

    let (client, guard) = held_by_another("a").await;
    client
        .scope(async {
            let start = Instant::now();
            assert!(waits(Wait::None).await.unwrap_err().is_busy());
            assert_eq!(start.elapsed(), Duration::ZERO);
            assert!(waits(Wait::UpTo(2 * SECOND)).await.unwrap_err().is_busy());
            assert!(start.elapsed() >= 2 * SECOND && start.elapsed() < 3 * SECOND);
            let release = async {
                sleep(3600 * SECOND).await;
                guard.release().await.unwrap();
            };
            let (result, ()) = tokio::join!(waits(Wait::Forever), release);
            result.unwrap();

            assert!(holds(None, None, true, true).await.unwrap() > 0);
            assert_eq!(holds(None, None, true, false).await.unwrap(), 0);
            assert!(holds(None, None, false, true).await.unwrap_err().is_lost());
            assert!(holds(Some(5 * SECOND), None, true, true).await.unwrap_err().is_lost());
            let error = holds(Some(SECOND), Some(2 * SECOND), true, true).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn options_are_below_the_other_arguments_and_above_the_client() {
    #[distributed_lock(key = "a", options = options, wait = none, lease = lease)]
    async fn configured(options: LockOptions) -> Result<Duration, Error> {
        Ok(lease.remaining())
    }

    let (client, guard) = held_by_another("a").await;
    let options = LockOptions::new().with_ttl(60 * SECOND).wait_forever();
    client
        .scope(async {
            // It does not wait, although the options do.
            assert!(configured(options).await.unwrap_err().is_busy());
            guard.release().await.unwrap();
            let remaining = configured(options).await.unwrap();
            assert!(remaining > 55 * SECOND && remaining < 60 * SECOND, "{remaining:?}");
            let remaining = configured(LockOptions::new()).await.unwrap();
            assert!(remaining > 5 * SECOND && remaining < 10 * SECOND, "{remaining:?}");
            let error = configured(options.with_ttl(Duration::ZERO)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        })
        .await;
}

/// The fault: `LockOptions` has a new option, and the attribute cannot set it.
#[test]
fn the_attribute_has_an_argument_for_each_option() {
    let reference = include_str!("../../lock-macros/docs/distributed_lock.md");
    let options = format!("{:?}", LockOptions::new());
    let fields = options.trim_start_matches("LockOptions {").split(',');
    let names: Vec<_> = fields.filter_map(|field| Some(field.split_once(':')?.0.trim())).collect();
    assert!(names.len() >= 6 && names.contains(&"ttl"), "{names:?}");
    for name in names {
        let argument = if name == "renewal" { "renew" } else { name };
        assert!(reference.contains(&format!("| `{argument} = ")), "no argument sets `{name}`");
    }
}

#[tokio::test]
async fn client_may_be_any_expression() {
    struct Service {
        locks: std::sync::Arc<LockClient>,
        spare: Mutex<Option<LockClient>>,
    }

    impl Service {
        #[distributed_lock(key = "a", client = *self.locks)]
        async fn of_a_field(&self) -> Result<(), Error> {
            Ok(())
        }

        // If the lock guard of this expression lived during the wait, the future would not be
        // `Send`.
        #[distributed_lock(key = "a", client = self.spare.lock().unwrap().clone().unwrap())]
        async fn of_a_temporary(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    fn sendable<T: Send>(future: T) -> T {
        future
    }

    let (_, client) = store_and_client();
    let spare = Mutex::new(Some(client.clone()));
    let service = Service { locks: client.into(), spare };
    sendable(service.of_a_field()).await.unwrap();
    sendable(service.of_a_temporary()).await.unwrap();
}

#[tokio::test]
async fn key_may_be_any_expression() {
    #[distributed_lock(key = name, lease = lease)]
    async fn owned(name: String) -> Result<String, Error> {
        Ok(lease.key().as_str().to_owned())
    }

    const NIGHTLY: &str = "nightly";

    #[distributed_lock(key = NIGHTLY, lease = lease)]
    async fn constant() -> Result<String, Error> {
        Ok(lease.key().label().to_owned())
    }

    #[distributed_lock(key = make(id), lease = lease)]
    async fn made(id: u64) -> Result<String, Error> {
        Ok(lease.key().as_str().to_owned())
    }

    fn make(id: u64) -> Result<Key, Error> {
        key!("made:<id>")
    }

    #[distributed_lock(key = Key::new("fixed"), lease = lease)]
    async fn fixed(fixed: u64) -> Result<String, Error> {
        Ok(format!("{}{fixed}", lease.key().as_str()))
    }

    let (_, client) = store_and_client();
    client
        .scope(async {
            assert_eq!(owned("a:b".to_owned()).await.unwrap(), "a:b");
            assert_eq!(constant().await.unwrap(), "nightly");
            assert_eq!(made(7).await.unwrap(), "made:7");
            assert_eq!(fixed(7).await.unwrap(), "fixed7");
            assert_eq!(owned(String::new()).await.unwrap_err().kind(), ErrorKind::InvalidKey);
        })
        .await;
}

#[tokio::test]
async fn lease_is_bound_in_the_body() {
    #[distributed_lock(key = "order:<id>", lease = lease)]
    async fn tokens(id: u64) -> Result<FencingToken, Error> {
        assert!(lease.is_valid());
        assert_eq!(lease.key().as_str(), format!("order:{id}"));
        assert_eq!(lock_core::current().unwrap().fencing_token(), lease.fencing_token());
        Ok(lease.fencing_token())
    }

    let (_, client) = store_and_client();
    client
        .scope(async {
            let first = tokens(1).await.unwrap();
            assert!(tokens(1).await.unwrap() > first);
        })
        .await;
}

struct Handlers {
    name: &'static str,
}

impl Handlers {
    #[distributed_lock(key = "a", wait = none, on_busy = |_| Ok(self.name.len()))]
    async fn with_self(&self) -> Result<usize, Error> {
        Ok(0)
    }

    #[distributed_lock(key = "a", wait = none, on_busy = Self::busy, on_error = |_| None)]
    async fn with_path(&self) -> Option<usize> {
        Some(self.name.len())
    }

    #[distributed_lock(key = "a", wait = none, on_error = move |error| Err(self.name.to_owned() + why(&error)))]
    async fn with_owned_self(self) -> Result<(), String> {
        Ok(())
    }

    fn busy(_: Error) -> Option<usize> {
        Some(99)
    }
}

fn why(error: &Error) -> &'static str {
    if error.is_busy() { " is busy" } else { "?" }
}

#[tokio::test]
async fn handlers_may_use_self() {
    let (client, guard) = held_by_another("a").await;
    let handlers = || Handlers { name: "me" };
    client
        .scope(async {
            assert_eq!(handlers().with_self().await.unwrap(), 2);
            assert_eq!(handlers().with_path().await, Some(99));
            assert_eq!(handlers().with_owned_self().await.unwrap_err(), "me is busy");
        })
        .await;
    drop(guard);
}

/// The fault: a body continues after the loss without `on_lost = finish`, or stops in spite of it.
#[tokio::test(start_paused = true)]
async fn on_lost_cancels_or_finishes_the_body() {
    #[distributed_lock(key = "a", ttl = "1s")]
    async fn cancelled(ended: &Counter) -> Result<(), Error> {
        sleep(60 * SECOND).await;
        ended.count();
        Ok(())
    }

    #[distributed_lock(key = "a", ttl = "1s", on_lost = finish, lease = lease)]
    async fn finished(ended: &Counter) -> Result<bool, Error> {
        sleep(60 * SECOND).await;
        ended.count();
        Ok(lease.is_valid())
    }

    #[distributed_lock(key = "a", ttl = "1s", on_busy = |_| panic!("not busy"), on_error = |error| error.is_lost())]
    async fn handled() -> bool {
        std::future::pending().await
    }

    let (store, client) = store_and_client();
    let steal = async || {
        sleep(SECOND / 2).await;
        store.flush();
    };
    let ended = Counter::default();
    let (result, ()) = tokio::join!(client.scope(cancelled(&ended)), steal());
    assert!(result.unwrap_err().is_lost());
    assert_eq!(ended.get(), 0);
    let (result, ()) = tokio::join!(client.scope(finished(&ended)), steal());
    assert!(!result.unwrap());
    assert_eq!(ended.get(), 1);
    let (lost, ()) = tokio::join!(client.scope(handled()), steal());
    assert!(lost);
}

/// A sibling whose turn comes after the outer lease has ended does not start, although the sibling
/// before it continued with `on_lost = finish`.
#[tokio::test(start_paused = true)]
async fn sibling_does_not_start_after_the_lease_ended() {
    #[distributed_lock(key = "a", ttl = "1s", wait = "5m", on_lost = finish)]
    async fn sibling(begun: &Counter) -> Result<(), Error> {
        begun.count();
        sleep(60 * SECOND).await;
        Ok(())
    }

    #[distributed_lock(key = "a", ttl = "1s", on_lost = finish)]
    async fn outer(begun: &Counter) -> Result<(), Error> {
        let (first, second) = tokio::join!(sibling(begun), sibling(begun));
        first.and(second)
    }

    let (store, client) = store_and_client();
    let begun = Counter::default();
    let steal = async {
        sleep(SECOND / 2).await;
        store.flush();
    };
    let (result, ()) = tokio::join!(client.scope(outer(&begun)), steal);
    assert!(result.unwrap_err().is_lost());
    assert_eq!(begun.get(), 1);
}

/// The fault: an argument is evaluated twice, or after the lock was acquired.
#[tokio::test]
async fn arguments_are_evaluated_once_and_before_the_body() {
    struct Log(LockClient, Mutex<Vec<&'static str>>);

    impl Log {
        fn note<T>(&self, what: &'static str, value: T) -> T {
            self.1.lock().unwrap().push(what);
            value
        }

        #[distributed_lock(
            min_hold = self.note("min_hold", Duration::from_millis(1)),
            key = "<self.note(\"first\", 1)>:<self.note(\"second\", 2)>",
            ttl = self.note("ttl", SECOND),
            client = self.note("client", self.0.clone()),
        )]
        async fn noted(&self) -> Result<(), Error> {
            self.note("body", ());
            Ok(())
        }
    }

    let (_, client) = store_and_client();
    let log = Log(client, Mutex::default());
    log.noted().await.unwrap();
    let noted = log.1.into_inner().unwrap();
    assert_eq!(noted, ["client", "first", "second", "min_hold", "ttl", "body"]);
}
