use lock_core::distributed_lock;

pub enum OrderError {
    SoldOut,
}

#[distributed_lock(key = "order:<user_id>")]
async fn order(user_id: u64) -> Result<u64, OrderError> {
    if user_id == 0 { Err(OrderError::SoldOut) } else { Ok(user_id) }
}

fn main() {}
