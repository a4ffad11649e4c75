use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "a", timeout = "2s")]
async fn f1(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", tll = "2s")]
async fn f2(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(name = "a", expire = "2s", colour = "red")]
async fn f3(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "a", watchdog = false, guard = g)]
async fn f4(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
