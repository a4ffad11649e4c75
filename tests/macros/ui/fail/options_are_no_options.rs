use std::time::Duration;

use lock_core::{Error, LockOptions, Wait, distributed_lock};

#[distributed_lock(key = "a", options = "10s")]
async fn literal(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", options = ttl)]
async fn duration(ttl: Duration) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", settings = options)]
async fn named_otherwise(options: LockOptions) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = seconds)]
async fn number(seconds: u64) -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = wait)]
async fn wait_as_hold(wait: Wait) -> Result<(), Error> {
    Ok(())
}

fn main() {}
