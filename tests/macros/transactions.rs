//! Where the commit is, relative to the lock.

use std::sync::Mutex;

use lock_core::{Error, distributed_lock};
use tokio::sync::Barrier;

use crate::support::alone;

/// Orders by user, without a unique index, so that the lock alone is on trial.
#[derive(Default)]
struct Database {
    committed: Mutex<Vec<u64>>,
}

/// Sees what was committed when it looks, and what it wrote itself.
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

// redisson#2183, #6881; klock#9; woowacourse#627 (U17). The lock cannot help here, and the docs say so.
#[tokio::test]
async fn a_commit_after_the_unlock_duplicates() {
    let (_, client) = alone();
    let database = Database::default();
    // Both have left the lock before either commits.
    let unlocked = Barrier::new(2);
    let caller = || async {
        let mut transaction = database.begin();
        client.scope(order_in(&mut transaction, 7)).await.unwrap();
        unlocked.wait().await;
        transaction.commit();
    };
    tokio::join!(caller(), caller());
    assert_eq!(database.orders(), 2, "the fault that this test demonstrates is gone");
}

#[tokio::test]
async fn a_commit_under_the_lock_duplicates() {
    let (_, client) = alone();
    let database = Database::default();
    let caller = || async { client.scope(order(&database, 7)).await.unwrap() };
    tokio::join!(caller(), caller(), caller());
    assert_eq!(database.orders(), 1);
}
