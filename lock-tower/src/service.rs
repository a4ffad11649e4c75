//! The service that the layer makes. See the crate documentation.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::LockBody;
use crate::future::{ResponseFuture, respond};
use crate::key::ExtractKey;
use crate::settings::Settings;

/// A service that handles one request at a time per key. Made by
/// [`LockLayer`](crate::LockLayer); see the [crate documentation](crate).
///
/// # Examples
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use lock_core::{LockClient, store::MemoryStore};
/// use lock_tower::{HeaderKey, LockLayer, LockService};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).build()?;
/// let layer = LockLayer::new(client, HeaderKey::new("payment", "idempotency-key"));
/// let service: LockService<_, HeaderKey> = layer.layer(service_fn(async |_: Request<String>| {
///     Ok::<_, std::convert::Infallible>(Response::new("paid".to_owned()))
/// }));
/// let request = Request::post("/pay").header("idempotency-key", "a-1").body(String::new())?;
/// assert_eq!(service.oneshot(request).await?.status(), StatusCode::OK);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LockService<S, E> {
    inner: S,
    settings: Arc<Settings<E>>,
}

impl<S, E> LockService<S, E> {
    pub(crate) fn new(inner: S, settings: Arc<Settings<E>>) -> Self {
        Self { inner, settings }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, mutably.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Takes the lock off the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, E, B, RB> Service<Request<B>> for LockService<S, E>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    RB: Body + Send + 'static,
    E: ExtractKey,
{
    type Response = Response<LockBody<RB>>;
    type Error = S::Error;
    type Future = ResponseFuture<RB, S::Error>;

    /// Always ready. If the inner service were polled here, a request that waits for its lock would
    /// keep what that readiness costs, such as the permit of a concurrency limit.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is polled for readiness once the lock is held. `inner` itself never is, so it
        // need not be swapped with the clone.
        let service = self.inner.clone();
        ResponseFuture::new(respond(Arc::clone(&self.settings), service, request))
    }
}
