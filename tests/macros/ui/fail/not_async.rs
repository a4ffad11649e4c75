// tracing#1863; ShedLock#5; alturkovic/distributed-lock#14 (U15): locks only a future's creation.

use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
fn f(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:<user_id>")]
fn future(user_id: u64) -> impl Future<Output = Result<u64, Error>> {
    async move { Ok(user_id) }
}

#[distributed_lock(key = "order:<user_id>")]
fn boxed(user_id: u64) -> std::pin::Pin<Box<dyn Future<Output = Result<u64, Error>>>> {
    let user_id = user_id + 1;
    Box::pin(async move { Ok(user_id) })
}

fn main() {}
