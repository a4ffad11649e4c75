//! The body of a response that went through the layer.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use lock_core::MutexGuard;
use pin_project_lite::pin_project;

use crate::rejection::{LockRejection, Reason};
use crate::release::release;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// A body that did not come from the inner service.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Item = Result<Frame<Bytes>, BoxError>;

pin_project! {
    /// The response body of [`LockService`](crate::LockService): the inner service's, or the
    /// layer's refusal.
    ///
    /// Under [`hold_for_body`](crate::LockLayer::hold_for_body) it also owns the lock. It then
    /// reads the clock before each frame, ends with a [`LockRejection`] as its error once the lock
    /// is lost, and releases the lock *before* it returns its last frame or its end, so that a
    /// client that has the whole response finds the key free. Dropped early, it releases in the
    /// background.
    ///
    /// The default is an empty body, for middleware outside the layer that makes responses of its
    /// own.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, Full};
    /// use lock_tower::LockBody;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let body = LockBody::<Full<Bytes>>::default(); // of a timeout outside of the layer, say
    /// assert!(body.collect().await?.to_bytes().is_empty());
    /// # Ok(()) }
    /// ```
    pub struct LockBody<B> {
        // In this order: the inner body is dropped before the lock is released.
        #[pin]
        inner: Inner<B>,
        hold: Option<Hold>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Body { #[pin] body: B },
        Reply { #[pin] body: ReplyBody },
        Empty,
    }
}

/// What keeps the key taken while the body is sent.
enum Hold {
    Lease {
        guard: MutexGuard,
        lost: BoxFuture,
    },
    /// The inner body is finished; `last` is returned once the release is done.
    Releasing {
        release: BoxFuture,
        last: Option<Item>,
    },
}

impl<B> LockBody<B> {
    pub(crate) fn plain(body: B) -> Self {
        Self { inner: Inner::Body { body }, hold: None }
    }

    pub(crate) fn held(body: B, guard: MutexGuard) -> Self {
        let lease = guard.lease();
        let lost = Box::pin(async move {
            lease.lost().await;
        });
        Self { inner: Inner::Body { body }, hold: Some(Hold::Lease { guard, lost }) }
    }

    pub(crate) fn reply(body: ReplyBody) -> Self {
        Self { inner: Inner::Reply { body }, hold: None }
    }
}

pub(crate) fn boxed<B>(body: B) -> ReplyBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

impl<B> Body for LockBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut this = self.project();
        loop {
            match this.hold.take() {
                None => return this.inner.poll_frame(cx),
                Some(Hold::Lease { guard, mut lost }) => {
                    if !guard.is_valid() || lost.as_mut().poll(cx).is_ready() {
                        this.inner.set(Inner::Empty);
                        drop(guard);
                        let rejection = LockRejection::from(Reason::LostInBody);
                        rejection.log();
                        return Poll::Ready(Some(Err(rejection.into())));
                    }
                    let Poll::Ready(item) = this.inner.as_mut().poll_frame(cx) else {
                        *this.hold = Some(Hold::Lease { guard, lost });
                        return Poll::Pending;
                    };
                    if matches!(item, Some(Ok(_))) && !this.inner.is_end_stream() {
                        *this.hold = Some(Hold::Lease { guard, lost });
                        return Poll::Ready(item);
                    }
                    // The end, an error, or the last frame: drop the inner body, release the lock,
                    // then return the item.
                    this.inner.set(Inner::Empty);
                    let release = Box::pin(release(guard));
                    *this.hold = Some(Hold::Releasing { release, last: item });
                }
                Some(Hold::Releasing { mut release, last }) => {
                    if release.as_mut().poll(cx).is_pending() {
                        *this.hold = Some(Hold::Releasing { release, last });
                        return Poll::Pending;
                    }
                    return Poll::Ready(last);
                }
            }
        }
    }

    /// False while the lock is held: a server that expects no more frames would drop the body
    /// instead of polling it.
    fn is_end_stream(&self) -> bool {
        self.hold.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.hold {
            Some(Hold::Releasing { last, .. }) => {
                let frame = last.as_ref().and_then(|item| item.as_ref().ok());
                let data = frame.and_then(Frame::data_ref);
                SizeHint::with_exact(data.map_or(0, |data| data.len() as u64))
            }
            Some(Hold::Lease { .. }) | None => self.inner.size_hint(),
        }
    }
}

impl<B> Body for Inner<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        match self.project() {
            InnerProj::Body { body } => {
                Poll::Ready(ready!(body.poll_frame(cx)).map(|item| item.map_err(Into::into)))
            }
            InnerProj::Reply { body } => body.poll_frame(cx),
            InnerProj::Empty => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Body { body } => body.is_end_stream(),
            Self::Reply { body } => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Body { body } => body.size_hint(),
            Self::Reply { body } => body.size_hint(),
            Self::Empty => SizeHint::with_exact(0),
        }
    }
}

// Not derived: the default needs no `B: Default`.
impl<B> Default for LockBody<B> {
    fn default() -> Self {
        Self { inner: Inner::Empty, hold: None }
    }
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBody").field("holds_lock", &self.hold.is_some()).finish_non_exhaustive()
    }
}
