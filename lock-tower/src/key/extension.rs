//! The key in a request extension.

use std::marker::PhantomData;
use std::{any, fmt};

use http::request::Parts;
use lock_core::{Key, KeyPart};

use super::extract::{ExtractKey, prefixed};
use super::rejection::KeyRejection;

/// The key `prefix:<value>` from a typed request extension: the way to lock per user.
///
/// Authentication puts the value there, so the layer must be *inside* it: a request that fails
/// authentication never touches a user's lock. A request without the extension has not been through
/// it. That is a mistake in the setup, usually two layers in the wrong order, whatever
/// [`allow_unkeyed`](crate::LockLayer::allow_unkeyed) says: the request is answered with 500, and
/// the mistake is logged. Where authentication is optional, take the key by
/// [`from_fn`](crate::LockLayer::from_fn).
///
/// # Examples
///
/// ```
/// use lock_core::KeyPart;
/// use lock_tower::ExtensionKey;
///
/// #[derive(Clone, KeyPart)]
/// struct UserId(u64);
///
/// let extractor = ExtensionKey::<UserId>::new("user");
/// ```
pub struct ExtensionKey<T> {
    prefix: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> ExtensionKey<T> {
    /// The key is `prefix`, a colon, and the value of the extension `T`.
    // The bounds are on the function, where the compiler explains which one is not met.
    #[must_use]
    pub fn new(prefix: &'static str) -> Self
    where
        T: KeyPart + Clone + Send + Sync + 'static,
    {
        Self { prefix, value: PhantomData }
    }
}

impl<T> ExtractKey for ExtensionKey<T>
where
    T: KeyPart + Clone + Send + Sync + 'static,
{
    async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        let Some(value) = parts.extensions.get::<T>() else {
            return Err(KeyRejection::misconfigured(format!(
                "the request has no extension `{}`: put the lock layer inside of the layer that \
                 inserts it",
                any::type_name::<T>()
            )));
        };
        prefixed("ExtensionKey", self.prefix, value).map(Some)
    }
}

// Not derived: neither needs a bound on `T`.
impl<T> Clone for ExtensionKey<T> {
    fn clone(&self) -> Self {
        let Self { prefix, value } = *self;
        Self { prefix, value }
    }
}

impl<T> fmt::Debug for ExtensionKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionKey")
            .field("prefix", &self.prefix)
            .field("value", &any::type_name::<T>())
            .finish()
    }
}
