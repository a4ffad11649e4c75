#![deny(warnings)]

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>", lease = lease)]
async fn never_called(user_id: u64, unused: u64, mut unchanged: u64) -> Result<u64, Error> {
    let local = 1;
    Ok(unchanged)
}

fn main() {}
