use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", on_busy = skip())]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", on_error = Self::skip(5))]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", on_busy = async |_| Ok(1))]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", on_busy = "skip")]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
