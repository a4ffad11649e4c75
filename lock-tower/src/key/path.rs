//! Keys from what axum extracts: a path parameter, or anything that a handler could take.

use std::marker::PhantomData;
use std::{any, fmt};

use axum::extract::{FromRequestParts, RawPathParams};
use axum::response::IntoResponse;
use http::request::Parts;
use lock_core::{IntoKey, Key};

use super::extract::{ExtractKey, prefixed};
use super::rejection::KeyRejection;

/// The key `prefix:<value>` from a path parameter: `/orders/{id}` with `PathKey::new("order",
/// "id")`.
///
/// Path parameters are known after routing, so put the layer on the route
/// ([`Router::route_layer`](axum::Router::route_layer) or
/// [`MethodRouter::layer`](axum::routing::MethodRouter::layer)), not around the whole router. A
/// route without the parameter is a mistake in the setup, whatever
/// [`allow_unkeyed`](crate::LockLayer::allow_unkeyed) says: the request is answered with 500, and
/// the mistake is logged.
///
/// # Examples
///
/// ```
/// use lock_tower::PathKey;
///
/// let extractor = PathKey::new("order", "id");
/// ```
#[derive(Clone, Debug)]
pub struct PathKey {
    prefix: &'static str,
    name: &'static str,
}

impl PathKey {
    /// The key is `prefix`, a colon, and the value of the path parameter `name`.
    #[must_use]
    pub const fn new(prefix: &'static str, name: &'static str) -> Self {
        Self { prefix, name }
    }
}

impl ExtractKey for PathKey {
    async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        let no_parameter = || {
            KeyRejection::misconfigured(format!(
                "the route has no path parameter `{}`, which its `PathKey` names: put the layer on \
                 a route with it, by `route_layer`",
                self.name
            ))
        };
        let params = RawPathParams::from_request_parts(parts, &()).await.map_err(|rejection| {
            // A path that is not UTF-8 is the client's mistake, a route without parameters the
            // program's.
            if rejection.status().is_client_error() {
                KeyRejection::bad_request("the path is not UTF-8")
            } else {
                no_parameter()
            }
        })?;
        let mut named = params.iter().filter(|(name, _)| *name == self.name);
        let (_, value) = named.next().ok_or_else(no_parameter)?;
        prefixed("PathKey", self.prefix, value).map(Some)
    }
}

/// A key from anything that implements [`FromRequestParts`], the same as a handler's arguments.
///
/// If the extraction fails, its own rejection is the response (401 from an extractor that
/// authenticates, say). A rejection with 500 or more is also logged: such as that of an `Extension`
/// that no layer outside of this one inserts.
///
/// # Examples
///
/// ```
/// use axum::extract::{Path, State};
/// use lock_core::key;
/// use lock_tower::PartsKey;
///
/// #[derive(Clone)]
/// struct App {
///     shop: String,
/// }
///
/// let app = App { shop: "north".into() };
/// let extractor = PartsKey::new(|(State(app), Path(id)): (State<App>, Path<u64>)| {
///     Some(key!("order:<app.shop>:<id>"))
/// })
/// .with_state(app);
/// ```
pub struct PartsKey<F, T, S = ()> {
    to_key: F,
    state: S,
    parts: PhantomData<fn() -> T>,
}

impl<F, T> PartsKey<F, T> {
    /// Extracts a `T` and turns it into a key; `None` means that the request has none.
    pub fn new<K>(to_key: F) -> Self
    where
        F: Fn(T) -> Option<K>,
        K: IntoKey,
    {
        Self { to_key, state: (), parts: PhantomData }
    }

    /// Gives the state that [`State`](axum::extract::State) and the like extract from.
    pub fn with_state<S>(self, state: S) -> PartsKey<F, T, S> {
        let Self { to_key, state: (), parts } = self;
        PartsKey { to_key, state, parts }
    }
}

#[diagnostic::do_not_recommend]
impl<F, T, S, K> ExtractKey for PartsKey<F, T, S>
where
    F: Fn(T) -> Option<K> + Clone + Send + Sync + 'static,
    K: IntoKey,
    T: FromRequestParts<S> + 'static,
    S: Clone + Send + Sync + 'static,
{
    async fn extract(&self, parts: &mut Parts) -> Result<Option<Key>, KeyRejection> {
        let extracted = T::from_request_parts(parts, &self.state).await.map_err(|rejection| {
            let response = rejection.into_response();
            if response.status().is_server_error() {
                tracing::error!(
                    target: "lock_tower", status = response.status().as_u16(),
                    "the lock layer cannot extract `{}`: is it inside of the layer that inserts it?",
                    any::type_name::<T>()
                );
            }
            KeyRejection::response(response)
        })?;
        Ok((self.to_key)(extracted).map(K::into_key).transpose()?)
    }
}

// Not derived: `T` need not be `Clone`.
impl<F: Clone, T, S: Clone> Clone for PartsKey<F, T, S> {
    fn clone(&self) -> Self {
        let Self { to_key, state, parts } = self;
        Self { to_key: to_key.clone(), state: state.clone(), parts: *parts }
    }
}

impl<F, T, S> fmt::Debug for PartsKey<F, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsKey").field("parts", &any::type_name::<T>()).finish_non_exhaustive()
    }
}
