//! How do I run a job on one instance only?
//!
//! Every instance starts the job at the same time of day. One gets the lock, the others skip the
//! job. `min_hold` keeps the key for a while even if the job is quick, so that an instance with a
//! late clock does not run it again. An outage of Redis does not mean that another instance runs
//! the job: `on_error` handles it.

use lock_core::{Error, LockClient, distributed_lock, store};

#[distributed_lock(
    key = "nightly-report",
    wait = none,
    min_hold = "5s",
    on_busy = skip,
    on_error = alarm,
)]
async fn nightly_report(instance: u32) {
    println!("instance {instance}: report written");
}

fn skip(_: Error) {
    println!("another instance runs it");
}

fn alarm(error: Error) {
    println!("NOT run here, and perhaps nowhere: {error}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    LockClient::builder(store::connect(&url).await?).build()?.install()?;
    nightly_report(1).await;
    nightly_report(2).await;
    Ok(())
}
