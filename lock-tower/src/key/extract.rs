//! The trait of key extractors, and the one way in which the ready ones build their keys.

use std::future::Future;

use http::request::Parts;
use lock_core::private::Template;
use lock_core::{IntoKey, Key, KeyPart};

use super::rejection::KeyRejection;

/// Finds the key of a request.
///
/// Closures `Fn(&Parts) -> Option<K>` are extractors too, and go to
/// [`LockLayer::from_fn`](crate::LockLayer::from_fn), where the type of their argument is inferred.
/// Implement the trait if finding the key takes an `await` or a response of its own:
///
/// ```
/// use http::{Response, StatusCode, request::Parts};
/// use lock_core::{Key, key};
/// use lock_tower::{ExtractKey, KeyRejection};
///
/// #[derive(Clone)]
/// struct SessionKey;
///
/// # async fn look_up(_: &str) -> Option<u64> { Some(7) }
/// impl ExtractKey for SessionKey {
///     async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
///         let session = parts.headers.get("session").and_then(|value| value.to_str().ok());
///         let Some(session) = session else {
///             return Ok(None); // 400, unless the layer allows unkeyed requests
///         };
///         let Some(user_id) = look_up(session).await else {
///             let mut response = Response::new("who are you?".to_owned());
///             *response.status_mut() = StatusCode::UNAUTHORIZED;
///             return Err(KeyRejection::response(response));
///         };
///         Ok(Some(key!("user:<user_id>")?))
///     }
/// }
/// ```
///
/// An extractor runs for every request, before anything is locked: what it awaits should be quick.
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
    /// `None` is refused with 400, unless the layer
    /// [allows unkeyed requests](crate::LockLayer::allow_unkeyed).
    ///
    /// # Errors
    ///
    /// If the request must be refused whatever the layer allows.
    fn extract(
        &self,
        parts: &mut Parts,
    ) -> impl Future<Output = Result<Option<Key>, KeyRejection>> + Send;
}

#[diagnostic::do_not_recommend]
impl<F, K> ExtractKey for F
where
    F: Fn(&Parts) -> Option<K> + Clone + Send + Sync + 'static,
    K: IntoKey,
{
    async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        Ok(self(&*parts).map(K::into_key).transpose()?)
    }
}

/// `prefix:<part>`, the name that every ready extractor makes: the prefix keeps routes apart, and
/// the escaping of [`KeyPart`] keeps values apart.
///
/// A prefix that no key can begin with is the mistake of the program that gave it to `extractor`,
/// whatever the request holds. What is wrong with the key after that check is the part.
pub(super) fn prefixed<T>(
    extractor: &'static str,
    prefix: &'static str,
    part: &T,
) -> Result<Key, KeyRejection>
where
    T: KeyPart + ?Sized,
{
    let problem = match prefix.len() {
        0 => "is empty: two routes would share keys",
        _ if prefix.starts_with('{') => "begins with `{`, which no key may",
        length if length > MAX_PREFIX_LEN => "is too long for a key",
        _ => {
            let mut template = Template::new(prefix);
            template.lit(prefix);
            template.lit(":");
            template.hole(part);
            return Ok(template.done()?);
        }
    };
    Err(KeyRejection::misconfigured(format!("the prefix of an `{extractor}` {problem}")))
}

/// What the longest namespace (64 bytes), the longest part (65) and two colons leave of the 512
/// bytes of a name.
const MAX_PREFIX_LEN: usize = 512 - 64 - 65 - 2;
