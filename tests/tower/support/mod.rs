//! What the tests share: stores, a server, a client that speaks raw HTTP, and a handler that can be
//! held up.

mod desk;
mod http;
mod stores;

use std::future::Future;
use std::time::Duration;

use ::http::{Request, Response};
use http_body_util::BodyExt as _;
use lock_core::LockClient;

pub(crate) use self::desk::Desk;
pub(crate) use self::http::{Server, get, open, post, send};
pub(crate) use self::stores::{BrokenStore, CountingStore, World, on_every_store};

/// Far beyond what anything here takes: a test that reaches it has failed.
const BOUND: Duration = Duration::from_secs(20);

/// Awaits what must happen soon.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(BOUND, future).await.expect("this should have happened long ago")
}

/// Waits until `key` can be taken, well before any lease in these tests would run out by itself.
pub(crate) async fn is_released(client: &LockClient, key: &str) {
    let guard = client.mutex(key.to_owned()).with_wait(Duration::from_secs(5)).lock().await;
    guard.expect("the key should be free").release().await.unwrap();
}

pub(crate) fn request(path: &str) -> Request<String> {
    Request::post(path).body(String::new()).unwrap()
}

/// Reads a response to its end.
pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
