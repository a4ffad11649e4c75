// tracing#1633; rust-analyzer#10520 (U15): the function stays, and the compiler reports its errors.

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
async fn f(user_id: u64) -> Result<u64, Error> {
    let next = user_id.
    Ok(next)
}

#[distributed_lock(key = "order:<user_id>")]
async fn g(user_id: u64) -> Result<u64, Error> {
    let next = user_id + ;
    Ok(next)
}

fn main() {}
