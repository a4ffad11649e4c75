//! A paused tokio clock without the feature `test-util`. With it, leases follow that clock: then
//! there is nothing to test here.
#![cfg(not(feature = "test-util"))]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use std::fmt;
use std::sync::{Arc, Mutex};

use lock_core::store::MemoryStore;
use lock_core::{Error, ErrorKind, LockClient};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

fn client() -> LockClient {
    LockClient::builder(MemoryStore::new()).build().unwrap()
}

#[track_caller]
fn assert_names_the_feature(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::NoRuntime, "{error}");
    assert!(error.to_string().contains("`test-util`"), "{error}");
}

/// A lease of 1 s is valid after 5 s, because only the caller's clock has moved.
#[tokio::test(start_paused = true)]
async fn lock_under_a_paused_clock_is_refused_by_the_name_of_the_feature() {
    let client = client();
    assert_names_the_feature(&client.mutex("k").lock().await.unwrap_err());
    assert_names_the_feature(&client.mutex("k").try_lock().await.unwrap_err());
    let run: Result<(), Error> = client.mutex("k").run(async |_| panic!("it runs")).await;
    assert_names_the_feature(&run.unwrap_err());

    let paused = tokio::runtime::Handle::current();
    let given = LockClient::builder(MemoryStore::new()).with_runtime(paused).build();
    let refused = given.unwrap_err();
    assert!(refused.field() == "runtime" && refused.to_string().contains("`test-util`"));

    tokio::time::resume();
    let guard = client.mutex("k").lock().await.unwrap();
    guard.release().await.unwrap();
}

/// The messages of errors in the log.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<String>>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Errors {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0.lock().unwrap().push_str(&format!("{value:?}\n"));
    }
}

/// The clock is paused when the lock is held: that is logged, and what is done with the lease next
/// is refused. Timers that fire at once do not hurry the renewer.
#[tokio::test]
async fn clock_that_is_paused_under_a_lease_is_logged_and_ends_nothing() {
    let errors = Errors::default();
    let _logging = tracing::subscriber::set_default(errors.clone());
    let client = client();
    let guard = client.mutex("k").with_ttl(Duration::from_secs(1)).lock().await.unwrap();
    // The renewer sets its timer.
    tokio::task::yield_now().await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(guard.is_valid(), "no second has passed");
    let logged = errors.0.lock().unwrap().clone();
    assert_eq!(logged.matches("`test-util`").count(), 1, "{logged}");
    assert_names_the_feature(&guard.extend(Duration::from_secs(2)).await.unwrap_err());
    tokio::time::resume();
    guard.extend(Duration::from_secs(2)).await.unwrap();
    guard.release().await.unwrap();
}
