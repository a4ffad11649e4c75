//! Why is there a fencing token, and how do I check it?
//!
//! A process that was paused may wake up after its lease ended and write as if it still had the
//! lock. No lock can prevent that. The resource can, if it refuses tokens smaller than the largest
//! that it has seen.

use std::sync::Mutex;
use std::time::Duration;

use lock_core::{FencingToken, LockClient, store::MemoryStore};

/// Models a row: `UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence < $2`.
struct Account {
    row: Mutex<(i64, Option<FencingToken>)>,
}

impl Account {
    fn write(&self, balance: i64, fence: FencingToken) -> Result<(), &'static str> {
        let mut row = self.row.lock().map_err(|_| "poisoned")?;
        if row.1.is_some_and(|seen| fence < seen) {
            return Err("refused: a newer holder has written");
        }
        *row = (balance, Some(fence));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = LockClient::builder(MemoryStore::new()).build()?;
    let account = Account { row: Mutex::new((100, None)) };
    let mutex = client.mutex("account:1").with_ttl(Duration::from_millis(200)).without_renewal();

    let paused = mutex.lock().await?;
    println!("the first holder is paused for longer than its lease: {:?}", paused.lost().await);

    let next = mutex.lock().await?;
    println!("the second writes: {:?}", account.write(150, next.fencing_token()));
    println!("the first wakes up and writes: {:?}", account.write(90, paused.fencing_token()));
    Ok(())
}
