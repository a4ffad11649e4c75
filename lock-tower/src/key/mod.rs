//! Where a request's key comes from.

mod extension;
mod header;
#[cfg(feature = "axum")]
mod path;

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;
use lock_core::private::Template;
use lock_core::{Error, IntoKey, Key, KeyPart};

pub use self::extension::ExtensionKey;
pub use self::header::HeaderKey;
#[cfg(feature = "axum")]
pub use self::path::{PartsKey, PathKey};
use crate::body::{self, BoxError, ReplyBody};
use crate::rejection::{LockRejection, Reason};

/// Finds the key of a request.
///
/// Closures `Fn(&Parts) -> Option<K>` are extractors too, and go to
/// [`LockLayer::from_fn`](crate::LockLayer::from_fn), where the type of their argument is inferred.
/// Implement the trait where finding the key takes an `await` or an answer of its own:
///
/// ```
/// use http::{Response, StatusCode, request::Parts};
/// use lock_core::{Key, key};
/// use lock_tower::{ExtractKey, NoKey};
///
/// #[derive(Clone)]
/// struct SessionKey;
///
/// # async fn look_up(_: &str) -> Option<u64> { Some(7) }
/// impl ExtractKey for SessionKey {
///     async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, NoKey> {
///         let Some(session) = parts.headers.get("session").and_then(|value| value.to_str().ok()) else {
///             return Ok(None); // 400, unless the layer allows unkeyed requests
///         };
///         let Some(user_id) = look_up(session).await else {
///             let mut refusal = Response::new("who are you?".to_owned());
///             *refusal.status_mut() = StatusCode::UNAUTHORIZED;
///             return Err(NoKey::response(refusal));
///         };
///         Ok(Some(key!("user:<user_id>")?))
///     }
/// }
/// ```
///
/// An extractor runs before anything is locked, and again for every request: what it awaits should be quick.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key extractor",
    label = "not a key extractor",
    note = "closures go to `LockLayer::from_fn(client, |parts| Some(key!(\"order:<id>\")))`",
    note = "ready extractors are `HeaderKey` and `ExtensionKey`, and with feature `axum` `PathKey` and `PartsKey`",
    note = "with `State` in a `PartsKey`, call `.with_state(state)`"
)]
pub trait ExtractKey: Clone + Send + Sync + 'static {
    /// The key of the request, or `None` if it has none.
    ///
    /// `None` is refused with 400, unless the layer was told to
    /// [allow unkeyed requests](crate::LockLayer::allow_unkeyed).
    ///
    /// # Errors
    ///
    /// When the request must be refused whatever the layer allows.
    fn extract(&self, parts: &mut Parts)
    -> impl Future<Output = Result<Option<Key>, NoKey>> + Send;
}

#[diagnostic::do_not_recommend]
impl<F, K> ExtractKey for F
where
    F: Fn(&Parts) -> Option<K> + Clone + Send + Sync + 'static,
    K: IntoKey,
{
    fn extract(
        &self,
        parts: &mut Parts,
    ) -> impl Future<Output = Result<Option<Key>, NoKey>> + Send {
        let key = self(&*parts).map(K::into_key).transpose();
        std::future::ready(key.map_err(NoKey::from))
    }
}

/// An extractor's refusal: the request cannot be handled, with or without a lock.
pub struct NoKey(pub(crate) Refusal);

pub(crate) enum Refusal {
    Rejection(LockRejection),
    /// Boxed so that an extractor's `Result` stays small.
    Response(Box<Response<ReplyBody>>),
}

impl NoKey {
    /// Refuses with 400 and this text, which the client sees.
    ///
    /// The text should name what is wrong, not repeat it. Characters that JSON or a header would have to escape are
    /// not allowed in it; a text with one is replaced by a general one.
    #[must_use]
    pub fn bad_request(detail: &'static str) -> Self {
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'%');
        let detail = if detail.bytes().all(plain) { detail } else { "the key cannot be used" };
        Self::from(Reason::BadKey(detail))
    }

    /// Refuses with 500 and logs the text, which the client does not see: the layer does not fit where it was put.
    #[must_use]
    pub fn misconfigured(what: &'static str) -> Self {
        Self::from(Reason::Misconfigured(what))
    }

    /// Refuses with a response of the extractor's own, which the layer passes on untouched.
    pub fn response<B>(response: Response<B>) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Refusal::Response(Box::new(response.map(body::boxed))))
    }
}

impl From<Reason> for NoKey {
    fn from(reason: Reason) -> Self {
        Self(Refusal::Rejection(reason.into()))
    }
}

/// A key that is malformed is the client's mistake, so 400; other kinds are answered as [`LockRejection`] has it.
impl From<Error> for NoKey {
    fn from(error: Error) -> Self {
        Self(Refusal::Rejection(error.into()))
    }
}

impl fmt::Debug for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Refusal::Rejection(rejection) => f.debug_tuple("NoKey").field(rejection).finish(),
            Refusal::Response(response) => {
                f.debug_tuple("NoKey").field(&response.status()).finish()
            }
        }
    }
}

/// `prefix:<part>`, the name that every ready extractor makes: the prefix keeps routes apart, the escaping of
/// [`KeyPart`] keeps values apart.
fn prefixed<T: KeyPart + ?Sized>(prefix: &'static str, part: &T) -> Result<Key, NoKey> {
    if prefix.is_empty() {
        return Err(NoKey::misconfigured("the prefix of a key extractor is empty"));
    }
    let mut template = Template::new(prefix);
    template.lit(prefix);
    template.lit(":");
    template.hole(part);
    Ok(template.done()?)
}
