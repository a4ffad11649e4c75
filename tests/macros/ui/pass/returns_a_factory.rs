// What it makes may take a lock of its own.

use futures_util::future::BoxFuture;
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
pub async fn closure(user_id: u64) -> Result<Box<dyn Fn(u64) -> BoxFuture<'static, u64>>, Error> {
    Ok(Box::new(|id| Box::pin(async move { id })))
}

#[distributed_lock(key = "order:<user_id>")]
pub async fn pointer(user_id: u64) -> Result<fn(u64) -> BoxFuture<'static, u64>, Error> {
    Ok(|id| Box::pin(async move { id }))
}

fn main() {}
