//! The layer, which is its own builder. See the crate documentation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body;
use lock_core::{IntoKey, LockClient, LockOptions};
use tower_layer::Layer;

use crate::body::{self, BoxError};
use crate::key::ExtractKey;
use crate::rejection::LockRejection;
use crate::service::LockService;
use crate::settings::Settings;

/// Handles one request at a time per key, across processes. See the [crate documentation](crate)
/// for the rules.
///
/// The layer is its own builder. Settings made on a clone do not reach the services that were made
/// before; the counts behind [`max_waiters`](Self::max_waiters) are shared by all of them.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockClient, store::MemoryStore};
/// use lock_tower::{HeaderKey, LockLayer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = LockClient::builder(MemoryStore::new()).build()?;
/// let layer = LockLayer::new(client, HeaderKey::new("payment", "idempotency-key"))
///     .with_wait(Duration::from_secs(1))
///     .max_waiters(1_000);
/// # drop(layer); Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockLayer<E> {
    settings: Settings<E>,
}

impl<E: ExtractKey> LockLayer<E> {
    /// A layer that locks what `extract` finds.
    ///
    /// For a closure use [`from_fn`](Self::from_fn), where the type of its argument is inferred.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LockClient, store::MemoryStore};
    /// use lock_tower::{HeaderKey, LockLayer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let layer = LockLayer::new(client, HeaderKey::new("payment", "idempotency-key"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(client: LockClient, extract: E) -> Self {
        Self { settings: Settings::new(client, extract) }
    }
}

impl<F> LockLayer<F> {
    /// A layer that locks the key that a closure makes of the head of a request; `None` means that
    /// the request has none.
    ///
    /// A request whose extension is missing has no key for a closure, and is refused with 400;
    /// [`ExtensionKey`](crate::ExtensionKey) reports the layers that are in the wrong order.
    ///
    /// The closure cannot wait. For a key from something asynchronous implement [`ExtractKey`], or
    /// take the lock in middleware of your own
    /// (the [crate documentation](crate#a-key-from-anything-asynchronous) shows how).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::{LockClient, key, store::MemoryStore};
    /// use lock_tower::LockLayer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone)] struct User { id: u64 }
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let layer = LockLayer::from_fn(client, |parts| {
    ///     let user = parts.extensions.get::<User>()?;
    ///     Some(key!("user:<user.id>"))
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_fn<K>(client: LockClient, to_key: F) -> Self
    where
        F: Fn(&Parts) -> Option<K> + Clone + Send + Sync + 'static,
        K: IntoKey,
    {
        Self { settings: Settings::new(client, to_key) }
    }
}

impl<E> LockLayer<E> {
    /// How long a request may wait for the one before it. Without this it does not wait: busy is
    /// 409 at once.
    ///
    /// A request that waits costs a connection and a task; bound their number with
    /// [`max_waiters`](Self::max_waiters) and [`max_waiters_per_key`](Self::max_waiters_per_key).
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.settings.options = self.settings.options.with_wait(wait);
        self
    }

    /// Options for the locks of this layer. An option that is not set comes from the client, except
    /// `wait`: a layer has none unless it is set here or by [`with_wait`](Self::with_wait). If both
    /// set it, the later call counts.
    ///
    /// With invalid options every request is answered with 500, and the error is logged.
    #[must_use]
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.settings.options = options.or(self.settings.options);
        self
    }

    /// The most requests that may wait for a lock at the same time, over all keys; one more gets
    /// 503 before the store is touched.
    ///
    /// A request counts from when its key is known until it has the lock or gives up. Without a
    /// wait it counts as well, while it awaits the store's single reply. There is no bound unless
    /// one is set.
    #[must_use]
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.bounds.total = Some(most);
        self
    }

    /// The most requests that may wait for one key at the same time; one more gets 503 before the
    /// store is touched.
    ///
    /// Counted as in [`max_waiters`](Self::max_waiters). It keeps a retry storm on one key from
    /// using up that bound for all keys.
    #[must_use]
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.settings.bounds.per_key = Some(most);
        self
    }

    /// Lets requests without a key pass, *without a lock*.
    ///
    /// Unless this is set they are refused with 400. Mind that a `?` on an `Option` in a closure
    /// makes a request unkeyed too.
    #[must_use]
    pub fn allow_unkeyed(mut self) -> Self {
        self.settings.allow_unkeyed = true;
        self
    }

    /// Keeps the lock until the response body is sent, instead of until the handler has returned
    /// it.
    ///
    /// For handlers that do their work while they stream. The body ends with an error as soon as
    /// the lock is lost. A client that reads slowly keeps the key for as long: set a `max_hold`.
    #[must_use]
    pub fn hold_for_body(mut self) -> Self {
        self.settings.hold_for_body = true;
        self
    }

    /// Runs lock and handler in a task of their own, which goes on when the client hangs up.
    ///
    /// The current tracing span comes along; task-locals do not, except those that the handler's
    /// own middleware sets. If the client hangs up while its request waits, the request stays in
    /// the queue and runs when its turn comes.
    #[must_use]
    pub fn shield(mut self) -> Self {
        self.settings.shield = true;
        self
    }

    /// Replaces the response to a refused request.
    ///
    /// The closure gets the reason, and may build upon [`LockRejection::into_http`]. It is called
    /// for gRPC calls as well ([`LockRejection::is_grpc`]), and not for responses that an extractor
    /// made itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Response;
    /// use lock_core::{LockClient, store::MemoryStore};
    /// use lock_tower::{HeaderKey, LockLayer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::builder(MemoryStore::new()).build()?;
    /// let extractor = HeaderKey::new("payment", "idempotency-key");
    /// let layer = LockLayer::new(client, extractor).on_reject(|rejection| {
    ///     if rejection.is_grpc() {
    ///         return rejection.clone().into_http();
    ///     }
    ///     let mut response = Response::new("not now, please".into());
    ///     *response.status_mut() = rejection.status();
    ///     response
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_reject<B, F>(mut self, to_response: F) -> Self
    where
        F: Fn(&LockRejection) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.settings.on_reject =
            Some(Arc::new(move |rejection| to_response(rejection).map(body::boxed)));
        self
    }
}

impl<S, E: Clone> Layer<S> for LockLayer<E> {
    type Service = LockService<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, Arc::new(self.settings.clone()))
    }
}

impl<E> fmt::Debug for LockLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").field("settings", &self.settings).finish()
    }
}
