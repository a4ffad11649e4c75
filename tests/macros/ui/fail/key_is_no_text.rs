use lock_core::{Error, distributed_lock};

#[distributed_lock(key = user_id)]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = 5)]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = Some("x"))]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
