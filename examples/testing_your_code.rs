//! How do I test code that locks, without Redis?
//!
//! Two clients on clones of one `MemoryStore` behave like two processes on one server.
//! `LockClient::scope` takes the place of `install`, so that each test has its own client. With the
//! feature `test-util`, leases follow a paused tokio clock.

use lock_core::{Error, LockClient, distributed_lock, store::MemoryStore};

#[distributed_lock(key = "coupon:<user_id>", wait = none)]
async fn claim_coupon(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = MemoryStore::new();
    let here = LockClient::builder(server.clone()).build()?;
    let elsewhere = LockClient::builder(server).build()?;

    let held = elsewhere.mutex("coupon:7").lock().await?;
    let refused = here.scope(claim_coupon(7)).await.expect_err("held elsewhere");
    println!("while another process holds it: {refused}");

    held.release().await?;
    println!("afterwards: {:?}", here.scope(claim_coupon(7)).await);
    Ok(())
}
