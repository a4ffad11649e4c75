//! How do I lock a service function?

use std::time::Duration;

use lock_core::{LockClient, distributed_lock, store};

#[distributed_lock(key = "order:<user_id>", ttl = "10s", wait = "2s")]
async fn create_order(user_id: u64) -> Result<String, lock_core::Error> {
    tokio::time::sleep(Duration::from_millis(100)).await; // check the stock, charge, insert
    Ok(format!("ordered for user {user_id}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    LockClient::builder(store::connect(&url).await?).build()?.install()?;
    let (one, two) = tokio::join!(create_order(7), create_order(7)); // one after the other
    println!("{}, {}", one?, two?);
    Ok(())
}
