//! The default client of a process. In a file of its own: what is installed stays.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use lock_core::store::MemoryStore;
use lock_core::{ErrorKind, LockClient};

fn client(namespace: &str) -> LockClient {
    LockClient::builder(MemoryStore::new()).with_namespace(namespace).build().unwrap()
}

#[tokio::test]
async fn a_client_is_missing_or_installed_twice() {
    assert_eq!(LockClient::installed().unwrap_err().kind(), ErrorKind::NoClient);

    client("first").install().unwrap();
    let twice = client("second").install().unwrap_err();
    assert_eq!(twice.field(), "client");
    assert!(twice.to_string().contains("installed already"), "{twice}");
    assert_eq!(LockClient::installed().unwrap().namespace(), "first");

    // For a while, and for one task, another one stands in front.
    let scoped = client("scoped").scope(async { LockClient::installed().unwrap() }).await;
    assert_eq!(scoped.namespace(), "scoped");
    let elsewhere = tokio::runtime::Handle::current().spawn(async { LockClient::installed() });
    assert_eq!(elsewhere.await.unwrap().unwrap().namespace(), "first");
}
