use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<userid>", ttl = 10, waitt = "2s", on_lost = "finish")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
