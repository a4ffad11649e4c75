//! The default client of a process. In its own file, because an installed client stays.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use lock_core::store::MemoryStore;
use lock_core::{ErrorKind, LockClient};

fn client(namespace: &str) -> LockClient {
    LockClient::builder(MemoryStore::new()).with_namespace(namespace).build().unwrap()
}

/// A second `install` replaces the client, or `scope` leaks into another task.
#[tokio::test]
async fn second_install_is_rejected_and_scope_overrides() {
    assert_eq!(LockClient::installed().unwrap_err().kind(), ErrorKind::NoClient);

    client("first").install().unwrap();
    let twice = client("second").install().unwrap_err();
    assert_eq!(twice.field(), "client");
    assert!(twice.to_string().contains("installed already"), "{twice}");
    assert_eq!(LockClient::installed().unwrap().namespace(), "first");

    // `scope` replaces the client for one task.
    let scoped = client("scoped").scope(async { LockClient::installed().unwrap() }).await;
    assert_eq!(scoped.namespace(), "scoped");
    let elsewhere = tokio::runtime::Handle::current().spawn(async { LockClient::installed() });
    assert_eq!(elsewhere.await.unwrap().unwrap().namespace(), "first");
}
