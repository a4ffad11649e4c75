//! The key in a request header.

use std::future::Future;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use lock_core::Key;

use super::{ExtractKey, NoKey, prefixed};

/// Longer than any identifier or idempotency key in use, and short enough that nobody stores a body in a key.
const MAX_LEN: usize = 255;

/// The key `prefix:<value>` from a request header, such as `Idempotency-Key`.
///
/// A client can write what it likes into a header. Use this for values that the client may choose; to lock per
/// *user*, take what authentication has put into the extensions ([`ExtensionKey`](crate::ExtensionKey)), or anybody
/// can hold anybody's lock. For the same reason there is no extractor for `X-Forwarded-For`.
///
/// A request without the header has no key: 400, unless the layer
/// [allows that](crate::LockLayer::allow_unkeyed). Refused with 400 always: the header twice (two readers would
/// disagree about which one counts), an empty value, one over 255 bytes, and one with anything but printable ASCII.
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
    /// `None` if what was given is not a header name: then every request is a logged 500.
    name: Option<HeaderName>,
}

impl HeaderKey {
    /// The key is `prefix`, a colon, and the value of the header `name`.
    ///
    /// `name` is a string or a [`HeaderName`]. One that cannot be a header name is a mistake in the setup, so every
    /// request is answered 500, and it is logged.
    pub fn new(prefix: &'static str, name: impl TryInto<HeaderName>) -> Self {
        Self { prefix, name: name.try_into().ok() }
    }

    fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, NoKey> {
        let Some(name) = &self.name else {
            return Err(NoKey::misconfigured("the name given to `HeaderKey` is not a header name"));
        };
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(NoKey::bad_request("the header that holds the key is there twice"));
        }
        if value.len() > MAX_LEN {
            return Err(NoKey::bad_request("the header that holds the key is too long"));
        }
        match std::str::from_utf8(value.as_bytes()) {
            Ok(value) if value.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                prefixed(self.prefix, value).map(Some)
            }
            _ => Err(NoKey::bad_request("the header that holds the key is not printable ASCII")),
        }
    }
}

impl ExtractKey for HeaderKey {
    fn extract(
        &self,
        parts: &mut Parts,
    ) -> impl Future<Output = Result<Option<Key>, NoKey>> + Send {
        std::future::ready(self.key(&parts.headers))
    }
}
