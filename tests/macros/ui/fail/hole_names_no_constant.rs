use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:{USER_ID}")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
