//! What the services of a layer share: its settings, and what they make of them.

use std::fmt;
use std::sync::Arc;

use http::{HeaderValue, Response};
use lock_core::{Key, LockClient, LockOptions, Mutex};

use crate::body::{self, LockBody, ReplyBody};
use crate::rejection::LockRejection;
use crate::waiters::{Bounds, Waiters};

type OnReject = dyn Fn(&LockRejection) -> Response<ReplyBody> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Settings<E> {
    pub(crate) extract: E,
    pub(crate) client: LockClient,
    pub(crate) options: LockOptions,
    pub(crate) allow_unkeyed: bool,
    pub(crate) hold_for_body: bool,
    pub(crate) shield: bool,
    pub(crate) bounds: Bounds,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) on_reject: Option<Arc<OnReject>>,
}

impl<E> Settings<E> {
    pub(crate) fn new(client: LockClient, extract: E) -> Self {
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

    pub(crate) fn mutex(&self, key: Key) -> Mutex {
        self.client.mutex(key).with_options(self.options)
    }

    /// The response to a refused request. It carries the rejection, also if `on_reject` made it.
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

// Not derived: a closure that extracts or replies has no `Debug`.
impl<E> fmt::Debug for Settings<E> {
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
        f.debug_struct("Settings")
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
