//! Why a request was refused, and the response to it.
//!
//! Every refusal has one [`Reason`], and only this file derives status, text, `Retry-After` and
//! gRPC code from it. The texts are constants, so no key, holder or token can reach a client.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use lock_core::{Error, ErrorKind};

/// When to try again after a refusal that has no better figure: long enough to spare a store in
/// trouble.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The reason why [`LockLayer`](crate::LockLayer) did not let a request's handler run, or did not
/// let it finish.
///
/// It is the mapping from lock outcomes to HTTP, and reusable as such: it is made [from](From) a
/// [`lock_core::Error`] too, so an error enum or an `on_error` of your own can answer exactly as
/// the layer does.
///
/// | refusal | status | gRPC |
/// |---|---|---|
/// | another request holds the key | 409 with `Retry-After` | `ABORTED` |
/// | the store is down or silent, the client is draining, too many requests wait | 503 with `Retry-After` | `UNAVAILABLE` |
/// | the lock was lost while the handler ran, or the runtime ended meanwhile | 503 | `UNAVAILABLE` |
/// | no key, or one that cannot be used | 400 | `INVALID_ARGUMENT` |
/// | the layer or the store is set up wrongly | 500 | `INTERNAL` |
///
/// A refusal that came too late to stop the handler has no `Retry-After`: how much of the work was
/// done is unknown, and the client should not be invited to repeat it.
///
/// The layer puts the rejection into the extensions of the response, also when
/// [`on_reject`](crate::LockLayer::on_reject) replaced that response. It is also the error of a
/// body that [`hold_for_body`](crate::LockLayer::hold_for_body) cut short; downcast that error to
/// get it.
///
/// # Examples
///
/// ```
/// use http::StatusCode;
/// use lock_core::Key;
/// use lock_tower::LockRejection;
///
/// let error = Key::new("").unwrap_err();
/// let rejection = LockRejection::from(error);
/// assert_eq!(rejection.status(), StatusCode::BAD_REQUEST);
/// assert_eq!(rejection.into_http().headers()["content-type"], "application/problem+json");
/// ```
#[derive(Clone, Debug)]
pub struct LockRejection {
    reason: Reason,
    /// The content type of the reply, if the request was a gRPC call.
    grpc: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
pub(crate) enum Reason {
    Lock(Error),
    /// The extractor found no key.
    NoKey,
    /// The extractor found something that must not become a key; the text says what it is, never
    /// its value.
    BadKey(&'static str),
    /// The layer does not fit where it was put.
    Misconfigured(Cow<'static, str>),
    TooManyWaiters,
    /// The runtime ended while a shielded request ran.
    Stopped,
    /// The lock was lost while the response body was being sent.
    LostInBody,
}

impl LockRejection {
    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.reason {
            Reason::Lock(error) => status_of(error.kind()),
            Reason::NoKey | Reason::BadKey(_) => StatusCode::BAD_REQUEST,
            Reason::Misconfigured(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::TooManyWaiters | Reason::Stopped | Reason::LostInBody => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The lock error behind the refusal, if it was one.
    #[must_use]
    pub fn lock_error(&self) -> Option<&Error> {
        match &self.reason {
            Reason::Lock(error) => Some(error),
            _ => None,
        }
    }

    /// Whether another request, task or process holds the key.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.lock_error().is_some_and(Error::is_busy)
    }

    /// Whether the lock was lost after the handler had begun.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.reason, Reason::LostInBody) || self.lock_error().is_some_and(Error::is_lost)
    }

    /// Whether the request was a gRPC call, so that [`into_http`](Self::into_http) makes a gRPC
    /// reply.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.grpc.is_some()
    }

    /// When it is worth trying again: what `Retry-After` says before it is rounded up to seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.reason {
            Reason::Lock(error) => match error.kind() {
                ErrorKind::Busy { .. }
                | ErrorKind::Unavailable
                | ErrorKind::Unknown
                | ErrorKind::Draining => Some(error.retry_after().unwrap_or(DEFAULT_RETRY_AFTER)),
                _ => None,
            },
            Reason::TooManyWaiters => Some(DEFAULT_RETRY_AFTER),
            Reason::NoKey
            | Reason::BadKey(_)
            | Reason::Misconfigured(_)
            | Reason::LostInBody
            | Reason::Stopped => None,
        }
    }

    /// The response: `application/problem+json`, or for a gRPC call a reply of trailers only.
    ///
    /// With the feature `axum` the same response is what `IntoResponse::into_response` returns.
    #[doc(alias = "into_response")]
    #[must_use]
    pub fn into_http(self) -> Response<Full<Bytes>> {
        let mut response = match &self.grpc {
            Some(content_type) => self.grpc_reply(content_type.clone()),
            None => self.problem(),
        };
        response.extensions_mut().insert(self);
        response
    }

    fn problem(&self) -> Response<Full<Bytes>> {
        let status = self.status();
        // Both texts are constants of this crate and need no escaping.
        let body = format!(
            r#"{{"type":"about:blank","title":"{}","status":{},"detail":"{}"}}"#,
            status.canonical_reason().unwrap_or_default(),
            status.as_u16(),
            self.detail(),
        );
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
        // A cache must not replay this response to other clients.
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(delay) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, whole_seconds(delay).into());
        }
        response
    }

    /// gRPC over HTTP is always 200; a reply without messages carries its trailers in the head.
    fn grpc_reply(&self, content_type: HeaderValue) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert(GRPC_STATUS, self.grpc_code().into());
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(self.detail()));
        response
    }

    fn grpc_code(&self) -> u16 {
        const INVALID_ARGUMENT: u16 = 3;
        const ABORTED: u16 = 10;
        const INTERNAL: u16 = 13;
        const UNAVAILABLE: u16 = 14;
        match self.status() {
            StatusCode::BAD_REQUEST => INVALID_ARGUMENT,
            StatusCode::CONFLICT => ABORTED,
            StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
            _ => INTERNAL,
        }
    }

    /// Visible ASCII without `"`, `\` and `%`: it goes into JSON and into a header without
    /// escaping.
    fn detail(&self) -> &'static str {
        match &self.reason {
            Reason::BadKey(detail) => detail,
            Reason::NoKey => "the request does not say what it is about",
            Reason::TooManyWaiters => "too many requests are waiting",
            Reason::Stopped => "the server is shutting down",
            Reason::LostInBody => "the lock was lost while the response was being sent",
            Reason::Misconfigured(_) => INTERNAL,
            Reason::Lock(error) => match error.kind() {
                ErrorKind::Busy { .. } => "another request for the same resource is being handled",
                ErrorKind::Lost { .. } => "the lock was lost while the request was being handled",
                ErrorKind::InvalidKey => "what the request is about cannot be used as a key",
                ErrorKind::Draining => "the server is shutting down",
                ErrorKind::Unavailable | ErrorKind::Unknown => "the lock service cannot be reached",
                _ => INTERNAL,
            },
        }
    }

    /// Logs for the operator what the client must not see. Refusals that the client causes stay at
    /// debug.
    pub(crate) fn log(&self) {
        match &self.reason {
            Reason::Misconfigured(what) => {
                tracing::error!(target: "lock_tower", "the lock layer is set up wrongly: {what}");
            }
            Reason::Lock(error) if self.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(target: "lock_tower", error = with_causes(error), "the lock layer cannot lock");
            }
            Reason::Lock(error) if self.status() == StatusCode::SERVICE_UNAVAILABLE => {
                tracing::warn!(target: "lock_tower", error = with_causes(error), "request refused");
            }
            Reason::TooManyWaiters | Reason::Stopped | Reason::LostInBody => {
                tracing::warn!(target: "lock_tower", reason = self.detail(), "request refused");
            }
            Reason::Lock(_) | Reason::NoKey | Reason::BadKey(_) => {
                tracing::debug!(target: "lock_tower", reason = self.detail(), "request refused");
            }
        }
    }

    pub(crate) fn for_grpc(mut self, content_type: Option<HeaderValue>) -> Self {
        self.grpc = content_type;
        self
    }
}

/// The error as a subscriber records it together with its causes.
pub(crate) fn with_causes(error: &Error) -> &(dyn std::error::Error + 'static) {
    error
}

const INTERNAL: &str = "the server is not set up to handle this request";

impl From<Reason> for LockRejection {
    fn from(reason: Reason) -> Self {
        Self { reason, grpc: None }
    }
}

impl From<Error> for LockRejection {
    fn from(error: Error) -> Self {
        Reason::Lock(error).into()
    }
}

impl fmt::Display for LockRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Misconfigured(what) => f.write_str(what),
            _ => f.write_str(self.detail()),
        }
    }
}

impl std::error::Error for LockRejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.lock_error().map(|error| error as _)
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for LockRejection {
    fn into_response(self) -> axum::response::Response {
        self.into_http().map(axum::body::Body::new)
    }
}

fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Busy { .. } => StatusCode::CONFLICT,
        ErrorKind::InvalidKey => StatusCode::BAD_REQUEST,
        ErrorKind::Unavailable
        | ErrorKind::Unknown
        | ErrorKind::Lost { .. }
        | ErrorKind::Draining => StatusCode::SERVICE_UNAVAILABLE,
        // Kinds that no client can cause and no retry mends: wrong options, another type at the
        // key, no runtime.
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// At least one: zero would be an invitation to spin.
fn whole_seconds(delay: Duration) -> u64 {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    seconds.max(1)
}

/// The content type to answer with, if the request is a gRPC call (gRPC-Web included).
pub(crate) fn grpc_content_type(headers: &http::HeaderMap) -> Option<HeaderValue> {
    const PREFIX: &[u8] = b"application/grpc";
    let content_type = headers.get(header::CONTENT_TYPE)?;
    let (prefix, rest) = content_type.as_bytes().split_at_checked(PREFIX.len())?;
    let is_grpc = prefix.eq_ignore_ascii_case(PREFIX)
        && matches!(rest.first(), None | Some(b'+' | b'-' | b';' | b' '));
    is_grpc.then(|| content_type.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        for (delay, seconds) in [(0, 1), (1, 1), (999, 1), (1000, 1), (1001, 2), (9500, 10)] {
            assert_eq!(whole_seconds(Duration::from_millis(delay)), seconds, "{delay} ms");
        }
    }

    #[test]
    fn only_grpc_content_types_get_grpc_replies() {
        let cases = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC-web-text", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpcfoo", false),
            ("application/gr", false),
            ("application/json", false),
        ];
        for (content_type, expected) in cases {
            let mut headers = http::HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(grpc_content_type(&headers).is_some(), expected, "{content_type}");
        }
        assert!(grpc_content_type(&http::HeaderMap::new()).is_none());
    }

    #[test]
    fn every_detail_is_plain_visible_ascii() {
        let reasons = [
            Reason::NoKey,
            Reason::Misconfigured("no such parameter".into()),
            Reason::TooManyWaiters,
            Reason::Stopped,
            Reason::LostInBody,
        ];
        for reason in reasons {
            let rejection = LockRejection::from(reason);
            let detail = rejection.detail();
            let plain = |c: char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%');
            assert!(detail.chars().all(plain), "{detail}");
            assert!(!rejection.status().is_success());
        }
    }
}
