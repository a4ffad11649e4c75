//! The layer and its settings. See the crate documentation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body::Body;
use lock_core::{IntoKey, Key, LockClient, LockOptions, Mutex};
use tower_layer::Layer;

use crate::body::{self, BoxError, LockBody, ReplyBody};
use crate::key::ExtractKey;
use crate::rejection::LockRejection;
use crate::service::LockService;
use crate::waiters::{Bounds, Waiters};

type OnReject = dyn Fn(&LockRejection) -> Response<ReplyBody> + Send + Sync;

/// Handles one request at a time per key, across processes. See the [crate documentation](crate) for the rules.
///
/// The layer is its own builder. Settings made on a clone do not reach the services that were made before; the
/// counts behind [`max_waiters`](Self::max_waiters) are shared by all of them.
#[derive(Clone)]
pub struct LockLayer<E> {
    pub(crate) extract: E,
    client: LockClient,
    options: LockOptions,
    pub(crate) allow_unkeyed: bool,
    pub(crate) hold_for_body: bool,
    pub(crate) shield: bool,
    pub(crate) bounds: Bounds,
    pub(crate) waiters: Arc<Waiters>,
    on_reject: Option<Arc<OnReject>>,
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
        Self::with(client, extract)
    }
}

impl<F> LockLayer<F> {
    /// A layer that locks the key that a closure makes of the head of a request; `None` means that it has none.
    ///
    /// The closure cannot wait. For a key from something asynchronous implement [`ExtractKey`], or take the lock in
    /// middleware of your own (the [crate documentation](crate#a-key-from-anything-asynchronous) shows how).
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
        Self::with(client, to_key)
    }
}

impl<E> LockLayer<E> {
    fn with(client: LockClient, extract: E) -> Self {
        Self {
            extract,
            client,
            options: LockOptions::new().without_wait(),
            allow_unkeyed: false,
            hold_for_body: false,
            shield: false,
            bounds: Bounds::default(),
            waiters: Arc::default(),
            on_reject: None,
        }
    }

    /// How long a request may wait for the one before it. Without this it does not wait: busy is 409 at once.
    ///
    /// A request that waits costs a connection and a task; bound their number with
    /// [`max_waiters`](Self::max_waiters) and [`max_waiters_per_key`](Self::max_waiters_per_key).
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.options = self.options.with_wait(wait);
        self
    }

    /// Options for the locks of this layer. What they leave open comes from the client; only `wait` does not: a layer
    /// has none unless it is set here or by [`with_wait`](Self::with_wait). Where both set a thing, the later call
    /// counts.
    ///
    /// Options that cannot be used answer every request with 500, and are logged.
    #[must_use]
    pub fn with_options(mut self, options: LockOptions) -> Self {
        self.options = options.or(self.options);
        self
    }

    /// The most requests that may be after a lock at the same time, over all keys; one more gets 503 before the store
    /// is touched.
    ///
    /// A request counts from when its key is known until it has the lock or gives up: also while the single answer is
    /// awaited that a request without a wait needs. There is no bound unless one is set.
    #[must_use]
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.bounds.total = Some(most);
        self
    }

    /// The most requests that may be after one key at the same time; one more gets 503 before the store is touched.
    ///
    /// Counted as in [`max_waiters`](Self::max_waiters). It keeps a retry storm on one key from using up the places
    /// of all.
    #[must_use]
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.bounds.per_key = Some(most);
        self
    }

    /// Lets requests without a key pass, *without a lock*.
    ///
    /// Unless this is set they are refused with 400. Mind that a `?` on an `Option` in a closure makes a request
    /// unkeyed too.
    #[must_use]
    pub fn allow_unkeyed(mut self) -> Self {
        self.allow_unkeyed = true;
        self
    }

    /// Keeps the lock until the response body is sent, instead of until the handler has returned it.
    ///
    /// For handlers that do their work while they stream. The body ends with an error as soon as the lock is lost. A
    /// client that reads slowly keeps the key for as long: set a `max_hold`.
    #[must_use]
    pub fn hold_for_body(mut self) -> Self {
        self.hold_for_body = true;
        self
    }

    /// Runs lock and handler in a task of their own, which goes on when the client hangs up.
    ///
    /// The current tracing span comes along; task-locals do not, except those that the handler's own middleware sets.
    /// A client that hangs up while its request waits does not take the request back: it runs when its turn comes.
    #[must_use]
    pub fn shield(mut self) -> Self {
        self.shield = true;
        self
    }

    /// Replaces the response to a refused request.
    ///
    /// The closure sees why, and may build upon [`LockRejection::into_http`]. It is asked for gRPC calls as well
    /// ([`LockRejection::is_grpc`]), and not for responses that an extractor made itself.
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
    /// let layer = LockLayer::new(client, HeaderKey::new("payment", "idempotency-key")).on_reject(|rejection| {
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
        self.on_reject = Some(Arc::new(move |rejection| to_response(rejection).map(body::boxed)));
        self
    }

    pub(crate) fn mutex(&self, key: Key) -> Mutex {
        self.client.mutex(key).with_options(self.options)
    }

    /// The refusal as a response that carries its reason, whoever made it.
    pub(crate) fn reject<B>(
        &self,
        rejection: LockRejection,
        grpc: Option<HeaderValue>,
    ) -> Response<LockBody<B>> {
        let rejection = rejection.for_grpc(grpc);
        rejection.log();
        let mut response = match &self.on_reject {
            Some(to_response) => to_response(&rejection),
            None => rejection.clone().into_http().map(body::boxed),
        };
        response.extensions_mut().insert(rejection);
        response.map(LockBody::reply)
    }
}

impl<S, E: Clone> Layer<S> for LockLayer<E> {
    type Service = LockService<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, Arc::new(self.clone()))
    }
}

impl<E> fmt::Debug for LockLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            extract: _,
            client,
            options,
            allow_unkeyed,
            hold_for_body,
            shield,
            bounds,
            waiters: _,
            on_reject,
        } = self;
        f.debug_struct("LockLayer")
            .field("client", client)
            .field("options", options)
            .field("allow_unkeyed", allow_unkeyed)
            .field("hold_for_body", hold_for_body)
            .field("shield", shield)
            .field("bounds", bounds)
            .field("on_reject", &on_reject.as_ref().map(|_| "..."))
            .finish_non_exhaustive()
    }
}
