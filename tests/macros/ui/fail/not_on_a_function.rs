use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order")]
struct Orders;

#[distributed_lock(key = "order")]
impl Orders {
    async fn order(&self, user_id: u64) -> Result<u64, Error> {
        Ok(user_id)
    }
}

fn main() {}
