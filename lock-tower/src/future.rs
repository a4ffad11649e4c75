//! A request's way through the layer: key, lock, handler, release, response.
//!
//! It may be dropped at every `await`: the lock, or the claim for it, belongs to a guard or to a
//! future of `lock-core`, which gives it back.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use lock_core::Key;
use tokio::runtime::Handle;
use tower_service::Service;
use tracing::instrument::WithSubscriber as _;
use tracing::{Instrument as _, Span};

use crate::body::LockBody;
use crate::key::{ExtractKey, KeyRejection, Reply};
use crate::rejection::{LockRejection, Reason, grpc_content_type};
use crate::release::release;
use crate::settings::Settings;

/// The response future of [`LockService`](crate::LockService).
///
/// Dropping it drops the handler and releases the lock in the background; a
/// [`shield`](crate::LockLayer::shield)ed request goes on.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<B, E> {
    inner: Pin<Box<dyn Future<Output = Outcome<B, E>> + Send>>,
}

type Outcome<B, E> = Result<Response<LockBody<B>>, E>;

impl<B, E> ResponseFuture<B, E> {
    pub(crate) fn new<F>(future: F) -> Self
    where
        F: Future<Output = Outcome<B, E>> + Send + 'static,
    {
        Self { inner: Box::pin(future) }
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Outcome<B, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Everything that happens to one request.
pub(crate) async fn respond<S, E, B, RB>(
    settings: Arc<Settings<E>>,
    service: S,
    request: Request<B>,
) -> Outcome<RB, S::Error>
where
    S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    RB: Body + Send + 'static,
    E: ExtractKey,
{
    // Taken apart and put together again, so that the handler gets this very request, with its
    // extensions.
    let (mut parts, body) = request.into_parts();
    let grpc = grpc_content_type(&parts.headers);
    let key = match settings.extract.extract(&mut parts).await {
        Ok(Some(key)) => key,
        Ok(None) if settings.allow_unkeyed => {
            let response = oneshot(service, Request::from_parts(parts, body)).await?;
            return Ok(response.map(LockBody::plain));
        }
        Ok(None) => return Ok(settings.reject(Reason::NoKey.into(), grpc)),
        Err(KeyRejection(Reply::Rejection(rejection))) => {
            return Ok(settings.reject(rejection, grpc));
        }
        Err(KeyRejection(Reply::Response(response))) => return Ok(response.map(LockBody::reply)),
    };
    let work = locked(Arc::clone(&settings), key, service, Request::from_parts(parts, body));
    let outcome = if settings.shield { shielded(work).await } else { work.await };
    outcome.unwrap_or_else(|rejection| Ok(settings.reject(rejection, grpc)))
}

/// Runs the handler under the lock. The outer error is why it did not run, or not to its end; the
/// inner error is the handler's own.
async fn locked<S, E, B, RB>(
    settings: Arc<Settings<E>>,
    key: Key,
    service: S,
    mut request: Request<B>,
) -> Result<Outcome<RB, S::Error>, LockRejection>
where
    S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    RB: Body + Send + 'static,
    E: ExtractKey,
{
    let place = settings.waiters.enter(settings.bounds, &key).ok_or(Reason::TooManyWaiters)?;
    let guard = settings.mutex(key).lock().await?;
    drop(place);

    request.extensions_mut().insert(guard.lease());
    let response = match guard.run_until_lost(oneshot(service, request)).await? {
        Ok(response) => response,
        Err(error) => {
            release(guard).await;
            return Ok(Err(error));
        }
    };
    if settings.hold_for_body && !response.body().is_end_stream() {
        return Ok(Ok(response.map(|body| LockBody::held(body, guard))));
    }
    release(guard).await;
    Ok(Ok(response.map(LockBody::plain)))
}

/// Runs `work` in a task of its own, so that it completes even if the caller is dropped.
async fn shielded<T, F>(work: F) -> Result<T, LockRejection>
where
    F: Future<Output = Result<T, LockRejection>> + Send + 'static,
    T: Send + 'static,
{
    // Without a runtime there is nothing to spawn on; taking the lock then fails and says so.
    let Ok(runtime) = Handle::try_current() else { return work.await };
    let task = runtime.spawn(work.instrument(Span::current()).with_current_subscriber());
    task.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(Reason::Stopped.into()),
    })
}

/// Calls the service as soon as it is ready, with no other await in between: a service that is
/// ready may hold a permit.
async fn oneshot<S, R>(mut service: S, request: R) -> Result<S::Response, S::Error>
where
    S: Service<R>,
{
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
