use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", crate = "lock_core")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", crate = 5)]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
