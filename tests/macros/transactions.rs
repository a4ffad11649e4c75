//! A commit inside the lock, and one after its release.

use std::sync::Mutex;

use lock_core::{Error, distributed_lock};
use tokio::sync::Barrier;

use crate::support::store_and_client;

/// Orders by user, without a unique index, so that only the lock prevents duplicates.
#[derive(Default)]
struct Database {
    committed: Mutex<Vec<u64>>,
}

/// Sees the committed orders and its own.
struct Transaction<'a> {
    database: &'a Database,
    written: Vec<u64>,
}

impl Database {
    fn begin(&self) -> Transaction<'_> {
        Transaction { database: self, written: Vec::new() }
    }

    fn orders(&self) -> usize {
        self.committed.lock().unwrap().len()
    }
}

impl Transaction<'_> {
    fn has_order_of(&self, user: u64) -> bool {
        self.database.committed.lock().unwrap().contains(&user)
    }

    fn commit(self) {
        self.database.committed.lock().unwrap().extend(self.written);
    }
}

#[distributed_lock(key = "order:<user>")]
async fn order_in(transaction: &mut Transaction<'_>, user: u64) -> Result<(), Error> {
    if !transaction.has_order_of(user) {
        tokio::task::yield_now().await;
        transaction.written.push(user);
    }
    Ok(())
}

#[distributed_lock(key = "order:<user>")]
async fn order(database: &Database, user: u64) -> Result<(), Error> {
    let mut transaction = database.begin();
    if !transaction.has_order_of(user) {
        tokio::task::yield_now().await;
        transaction.written.push(user);
    }
    transaction.commit();
    Ok(())
}

/// redisson#2183, #6881; klock#9; woowacourse#627 (U17). The lock cannot prevent this fault, and
/// the docs say so.
#[tokio::test]
async fn commit_after_the_release_allows_duplicates() {
    let (_, client) = store_and_client();
    let database = Database::default();
    // Both callers release the lock before either of them commits.
    let unlocked = Barrier::new(2);
    let caller = || async {
        let mut transaction = database.begin();
        client.scope(order_in(&mut transaction, 7)).await.unwrap();
        unlocked.wait().await;
        transaction.commit();
    };
    tokio::join!(caller(), caller());
    assert_eq!(database.orders(), 2, "the documented fault did not occur");
}

/// The same callers (U17), with the commit inside the lock.
#[tokio::test]
async fn commit_under_the_lock_prevents_duplicates() {
    let (_, client) = store_and_client();
    let database = Database::default();
    let caller = || async { client.scope(order(&database, 7)).await.unwrap() };
    tokio::join!(caller(), caller(), caller());
    assert_eq!(database.orders(), 1);
}
