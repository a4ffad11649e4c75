//! The key in a request header.

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use lock_core::Key;

use super::extract::{ExtractKey, prefixed};
use super::rejection::KeyRejection;

/// Longer than any identifier or idempotency key in use, and too short to store a body in a key.
const MAX_LEN: usize = 255;

/// The key `prefix:<value>` from a request header, such as `Idempotency-Key`.
///
/// A client can write what it likes into a header. Use this for values that the client may choose.
/// To lock per *user*, take what authentication has put into the extensions
/// ([`ExtensionKey`](crate::ExtensionKey)); otherwise any client can hold any user's lock. For the
/// same reason there is no extractor for `X-Forwarded-For`.
///
/// A request without the header has no key: 400, unless the layer
/// [allows that](crate::LockLayer::allow_unkeyed). Always refused with 400: the header twice (two
/// readers would disagree about which one counts), an empty value, one over 255 bytes, and one with
/// anything but printable ASCII.
///
/// # Examples
///
/// ```
/// use lock_tower::HeaderKey;
///
/// let extractor = HeaderKey::new("payment", "idempotency-key");
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey {
    prefix: &'static str,
    /// The text that was given, if it is not a header name: then every request is a logged 500.
    name: Result<HeaderName, Box<str>>,
}

impl HeaderKey {
    /// The key is `prefix`, a colon, and the value of the header `name`.
    ///
    /// `name` is a string or a [`HeaderName`]. A string that is not a header name is a mistake in
    /// the setup: every request is answered with 500, and the mistake is logged.
    pub fn new(prefix: &'static str, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        Self { prefix, name: name.parse().map_err(|_| name.into()) }
    }

    fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, KeyRejection> {
        let name = self.name.as_ref().map_err(|given| {
            KeyRejection::misconfigured(format!(
                "{given:?}, given to a `HeaderKey`, is not the name of a header"
            ))
        })?;
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(KeyRejection::bad_request("the header that holds the key appears twice"));
        }
        if value.len() > MAX_LEN {
            return Err(KeyRejection::bad_request("the header that holds the key is too long"));
        }
        match std::str::from_utf8(value.as_bytes()) {
            Ok(value) if value.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                prefixed("HeaderKey", self.prefix, value).map(Some)
            }
            _ => Err(KeyRejection::bad_request(
                "the header that holds the key is not printable ASCII",
            )),
        }
    }
}

impl ExtractKey for HeaderKey {
    async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        self.key(&parts.headers)
    }
}
