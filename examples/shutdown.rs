//! How do I stop without leaving locks to their ttl?
//!
//! On SIGTERM: stop accepting work, then drain. Holders get time to finish, waiters get an error at
//! once, and the releases are confirmed before the process ends.

use std::time::Duration;

use lock_core::{LockClient, store::RedisStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = LockClient::builder(RedisStore::connect(url).await?).build()?;

    let mutex = client.mutex("import");
    let worker = tokio::spawn(async move {
        mutex.run(async |_| tokio::time::sleep(Duration::from_millis(300)).await).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await; // here: wait for SIGTERM

    let drained = client.drain(Duration::from_secs(5)).await;
    println!("clean: {}", drained.is_clean());
    println!("the worker finished: {}", worker.await?.is_ok());
    Ok(())
}
