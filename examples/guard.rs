//! How do I lock something that is not a function or a route?

use lock_core::{LockClient, key, store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(store::connect(&url).await?).build()?;
    let account = 42;

    let guard = client.mutex(key!("account:<account>")).lock().await?;
    println!("held, fencing token {}", guard.fencing_token());
    println!("released: {:?}", guard.release().await?);

    let mutex = client.mutex(key!("account:<account>"));
    let sum = mutex.run(async |lease| if lease.is_valid() { 2 + 2 } else { 0 }).await?;
    println!("computed under the lock: {sum}");
    Ok(())
}
