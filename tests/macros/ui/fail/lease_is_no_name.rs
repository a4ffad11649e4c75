use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", lease = "lease")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", lease = "10s")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", lease = user_id)]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", lease = 5)]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
