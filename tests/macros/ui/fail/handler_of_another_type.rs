use lock_core::{Error, distributed_lock};

fn skip(_: Error) -> String {
    String::new()
}

#[distributed_lock(key = "order:<user_id>", on_error = skip)]
async fn function(user_id: u64) -> u32 {
    user_id as u32
}

#[distributed_lock(key = "order:<user_id>", on_busy = |_| "busy")]
async fn closure(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id>", on_error = || 5)]
async fn arguments(user_id: u64) -> u64 {
    user_id
}

fn main() {}
