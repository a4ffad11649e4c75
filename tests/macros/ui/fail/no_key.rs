use lock_core::{Error, distributed_lock};

#[distributed_lock]
async fn f(user_id: u64) -> Result<(), Error> {
    drop(user_id);
    Ok(())
}

#[distributed_lock(ttl = "10s")]
async fn g(user_id: u64) -> Result<(), Error> {
    drop(user_id);
    Ok(())
}

fn main() {}
