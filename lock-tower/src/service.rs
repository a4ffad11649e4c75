//! The service that the layer makes. See the crate documentation.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::LockBody;
use crate::future::{ResponseFuture, respond};
use crate::key::ExtractKey;
use crate::layer::LockLayer;

/// A service that handles one request at a time per key. Made by [`LockLayer`]; see the
/// [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct LockService<S, E> {
    inner: S,
    layer: Arc<LockLayer<E>>,
}

impl<S, E> LockService<S, E> {
    pub(crate) fn new(inner: S, layer: Arc<LockLayer<E>>) -> Self {
        Self { inner, layer }
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

    /// Always ready. Asking the inner service here would park what its readiness costs, such as a permit of a
    /// concurrency limit, on a request that waits for its lock.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is driven to readiness once the lock is held; `inner` itself never is, so nothing is swapped.
        let service = self.inner.clone();
        ResponseFuture::new(respond(Arc::clone(&self.layer), service, request))
    }
}
