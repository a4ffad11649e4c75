//! How do I pay once, however often a client repeats its request?
//!
//! A lock keeps two requests with one idempotency key apart; a record says that the first one is
//! done. The fence is advanced in the transaction that writes the record, so a holder that was
//! paused past the end of its lease writes nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::fencing::{ADVANCE, CREATE_TABLE, check_advanced};
use lock_core::{Lease, LockClient, key, store};
use rusqlite::{Connection, OptionalExtension, params};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Payments {
    client: LockClient,
    db: Arc<Mutex<Connection>>,
}

impl Payments {
    /// The receipt: a new one, or that of the first request with this key.
    async fn pay(&self, user: u64, request: &str, cents: i64) -> Result<String, Error> {
        // With the user in it: clients choose their keys, and two may choose the same.
        let mutex = self.client.mutex(key!("payment:<user>:<request>"));
        mutex
            .run(async |lease| {
                // Not stopped when the lease is lost: the fence protects what it writes.
                let (payments, request) = (self.clone(), format!("{user}:{request}"));
                tokio::task::spawn_blocking(move || payments.write(&lease, &request, cents)).await?
            })
            .await?
    }

    fn write(&self, lease: &Lease, request: &str, cents: i64) -> Result<String, Error> {
        let mut db = self.db.lock().map_err(|_| "a thread panicked")?;
        let tx = db.transaction()?;
        let fence = params![lease.key().as_str(), lease.fencing_token().as_i64()];
        check_advanced(tx.execute(ADVANCE, fence)?.try_into()?)?;
        // Only now: an earlier holder may have paid up to this moment.
        let paid: Option<i64> = tx
            .query_row("SELECT cents FROM payments WHERE request = $1", [request], |row| row.get(0))
            .optional()?;
        match paid {
            Some(paid) if paid != cents => {
                return Err("the key was used for another payment".into());
            }
            Some(_) => {}
            None => {
                tx.execute("INSERT INTO payments VALUES ($1, $2)", params![request, cents])?;
                tx.execute("UPDATE account SET cents = cents - $1", [cents])?;
            }
        }
        tx.commit()?;
        Ok(format!("receipt {request}"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let db = Connection::open_in_memory()?;
    db.execute_batch(CREATE_TABLE)?;
    // The primary key is the last line of defence, should the lock or the fence be misused.
    db.execute_batch("CREATE TABLE payments (request TEXT PRIMARY KEY, cents BIGINT NOT NULL)")?;
    db.execute_batch("CREATE TABLE account (cents BIGINT); INSERT INTO account VALUES (1000)")?;
    let payments = Payments { client: client.clone(), db: Arc::new(Mutex::new(db)) };

    let (one, two) = tokio::join!(payments.pay(7, "a-1", 300), payments.pay(7, "a-1", 300));
    println!("twice at once: {}, {}", one?, two?);
    println!("the same key for more: {}", payments.pay(7, "a-1", 900).await.unwrap_err());

    let (user, request, short) = (7, "a-2", Duration::from_millis(200));
    let mutex = client.mutex(key!("payment:<user>:<request>")).with_ttl(short).without_renewal();
    let paused = mutex.lock().await?;
    paused.lost().await;
    println!("while it is paused, its retry: {}", payments.pay(user, request, 200).await?);
    println!("it wakes up: {}", payments.write(&paused, "7:a-2", 200).unwrap_err());

    let db = payments.db.lock().map_err(|_| "a thread panicked")?;
    let left: i64 = db.query_row("SELECT cents FROM account", [], |row| row.get(0))?;
    println!("left: {left}");
    Ok(())
}
