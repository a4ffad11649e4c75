// The lock would be free while the stream is read, or when the future runs.

use std::future::Future;
use std::pin::Pin;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, empty};
use lock_core::{Error, distributed_lock};

#[distributed_lock(key = "order:<user_id>")]
async fn in_a_result(user_id: u64) -> Result<impl Stream<Item = u64>, Error> {
    Ok(empty())
}

#[distributed_lock(key = "order:<user_id>")]
async fn boxed(user_id: u64) -> Result<Option<Pin<Box<dyn Stream<Item = u64> + Send>>>, Error> {
    Ok(None)
}

#[distributed_lock(key = "order:<user_id>")]
async fn by_its_alias(user_id: u64) -> Result<BoxStream<'static, u64>, Error> {
    Ok(Box::pin(empty()))
}

#[distributed_lock(key = "order:<user_id>", on_error = |_| empty())]
async fn alone(user_id: u64) -> impl Stream<Item = u64> {
    empty()
}

#[distributed_lock(key = "order:<user_id>")]
fn not_even_async(user_id: u64) -> impl Stream<Item = u64> {
    empty()
}

#[distributed_lock(key = "order:<user_id>")]
async fn future(user_id: u64) -> Result<impl Future<Output = u64>, Error> {
    Ok(async { 7 })
}

#[distributed_lock(key = "order:<user_id>")]
async fn futures(user_id: u64) -> Result<Vec<BoxFuture<'static, u64>>, Error> {
    Ok(Vec::new())
}

fn main() {}
