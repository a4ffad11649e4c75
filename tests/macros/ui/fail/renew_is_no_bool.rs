use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", renew = "no")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", fencing = 0)]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", renew = user_id)]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
