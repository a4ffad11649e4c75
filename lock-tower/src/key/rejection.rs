//! The error of a key extractor.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use lock_core::Error;

use crate::body::{self, BoxError, ReplyBody};
use crate::rejection::{LockRejection, Reason};

/// The error of a key extractor: the request cannot be handled, with or without a lock.
///
/// # Examples
///
/// ```
/// use http::request::Parts;
/// use lock_core::{Key, key};
/// use lock_tower::{ExtractKey, KeyRejection};
///
/// /// Locks `/orders/42` by the number in its path.
/// #[derive(Clone)]
/// struct OrderKey;
///
/// impl ExtractKey for OrderKey {
///     async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
///         let Some(number) = parts.uri.path().strip_prefix("/orders/") else {
///             return Err(KeyRejection::misconfigured("the layer is on a route without orders"));
///         };
///         let number: u64 = number
///             .parse()
///             .map_err(|_| KeyRejection::bad_request("the order has no number"))?;
///         Ok(Some(key!("order:<number>")?)) // a bad key is 400 as well
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (mut parts, ()) = http::Request::get("/orders/42").body(()).unwrap().into_parts();
/// let key = OrderKey.extract(&mut parts).await.unwrap();
/// assert_eq!(key.unwrap().as_str(), "order:42");
///
/// parts.uri = "/orders/x".parse().unwrap();
/// assert!(OrderKey.extract(&mut parts).await.is_err());
/// # }
/// ```
pub struct KeyRejection(pub(crate) Reply);

/// What the client gets.
pub(crate) enum Reply {
    Rejection(LockRejection),
    /// Boxed so that an extractor's `Result` stays small.
    Response(Box<Response<ReplyBody>>),
}

impl KeyRejection {
    /// Refuses with 400 and this text, which the client sees.
    ///
    /// The text should name what is wrong, not repeat it. It must not contain characters that JSON
    /// or a header would have to escape; such a text is replaced by a general one.
    #[must_use]
    pub fn bad_request(detail: &'static str) -> Self {
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'%');
        let detail = if detail.bytes().all(plain) { detail } else { "the key cannot be used" };
        Self::from(Reason::BadKey(detail))
    }

    /// Refuses with 500 and logs the text, which the client does not see: the layer does not fit
    /// where it was put.
    ///
    /// The text should name what is missing, such as an extension or a parameter of the path, and
    /// no value of the request.
    pub fn misconfigured(what: impl Into<Cow<'static, str>>) -> Self {
        Self::from(Reason::Misconfigured(what.into()))
    }

    /// Refuses with a response of the extractor's own, which the layer passes on unchanged.
    pub fn response<B>(response: Response<B>) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Reply::Response(Box::new(response.map(body::boxed))))
    }
}

impl From<Reason> for KeyRejection {
    fn from(reason: Reason) -> Self {
        Self(Reply::Rejection(reason.into()))
    }
}

/// A malformed key is the client's mistake: 400. Other kinds get the status that [`LockRejection`]
/// gives them.
impl From<Error> for KeyRejection {
    fn from(error: Error) -> Self {
        Self(Reply::Rejection(error.into()))
    }
}

impl fmt::Debug for KeyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("KeyRejection");
        match &self.0 {
            Reply::Rejection(rejection) => tuple.field(rejection),
            Reply::Response(response) => tuple.field(&response.status()),
        };
        tuple.finish()
    }
}
