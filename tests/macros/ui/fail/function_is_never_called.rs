#![deny(dead_code)]

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
async fn never_called(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
