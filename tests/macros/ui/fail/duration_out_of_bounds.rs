use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", ttl = "0s")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "99ms")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", ttl = "25h")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", wait = "0s")]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", max_hold = "0s")]
async fn f5(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", min_hold = "0ms")]
async fn f6(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", max_hold = "1m", min_hold = "2m")]
async fn f7(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", wait = "25h")]
async fn f8(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", max_hold = "25h")]
async fn f9(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
