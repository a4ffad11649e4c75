// ShedLock#1284 (U13): one lock for all users by mistake.

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:user_id")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:#user_id")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<<user_id>>")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
