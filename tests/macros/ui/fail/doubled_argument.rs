use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", ttl = "2s", key = "b", ttl = "3s")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
