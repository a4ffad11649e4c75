//! What the current task holds.
//!
//! `run`, the macro, the layer and [`MutexGuard::bind`](crate::MutexGuard::bind) put their lease into a
//! task-local chain while they drive their body. A spawned task does not inherit it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

use crate::client::LockClient;
use crate::held::Lease;
use crate::key::IntoKey;
use crate::store::Name;

tokio::task_local! {
    static HOLDS: Arc<Node>;
    static CLIENT: LockClient;
}

/// Nested entries of a key go through here one at a time, so that siblings (`join!`) exclude each other as they would
/// without the outer lock.
pub(crate) type ChildSlot = Arc<tokio::sync::Mutex<()>>;

/// One lease of the chain.
#[derive(Debug)]
pub(crate) struct Node {
    lease: Lease,
    outer: Option<Arc<Self>>,
    child: ChildSlot,
}

impl Node {
    /// A node for `lease` on top of what the task holds.
    pub(crate) fn of(lease: Lease) -> Arc<Self> {
        Self::with_child(lease, ChildSlot::default())
    }

    /// The same, with a child slot that is shared with other nodes of the lease.
    pub(crate) fn with_child(lease: Lease, child: ChildSlot) -> Arc<Self> {
        let outer = HOLDS.try_with(Arc::clone).ok();
        Arc::new(Self { lease, outer, child })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn child(&self) -> ChildSlot {
        Arc::clone(&self.child)
    }
}

/// The innermost node of this task for `name` of the client with this `id`.
pub(crate) fn find(id: u64, name: &Name) -> Option<Arc<Node>> {
    let mut node = HOLDS.try_with(Arc::clone).ok()?;
    loop {
        let held = &node.lease.0;
        if held.client.id == id && held.name() == name {
            return Some(node);
        }
        node = Arc::clone(node.outer.as_ref()?);
    }
}

/// The lease that the current task works under: the innermost of `run`, the macro or the layer.
///
/// `None` outside of them, and in tasks spawned from within.
#[must_use]
pub fn current() -> Option<Lease> {
    HOLDS.try_with(|node| node.lease.clone()).ok()
}

/// Fails loudly when code that needs a lock runs without it. Goes by the key alone, whichever client it was locked through.
///
/// # Panics
///
/// If the current task does not hold `key` through `run`, the macro or the layer, or if the lease is over.
#[track_caller]
pub fn assert_locked(key: impl IntoKey) {
    let key = match key.into_key() {
        Ok(key) => key,
        Err(error) => panic!("assert_locked: {error}"),
    };
    let mut node = HOLDS.try_with(Arc::clone).ok();
    while let Some(here) = node {
        if *here.lease.key() == key {
            assert!(here.lease.is_valid(), "the lock that this code needs was lost: {key:?}");
            return;
        }
        node = here.outer.clone();
    }
    panic!("this code needs a lock that its task does not hold: {key:?}");
}

/// The client named by [`LockClient::scope`], if the task is in one.
pub(crate) fn client() -> Option<LockClient> {
    CLIENT.try_with(LockClient::clone).ok()
}

pub(crate) fn with_client<F: Future>(
    client: LockClient,
    future: F,
) -> TaskLocalFuture<LockClient, F> {
    CLIENT.scope(client, future)
}

pin_project! {
    /// A future that runs with a node on top of the chain.
    pub(crate) struct Scoped<F> {
        #[pin]
        future: TaskLocalFuture<Arc<Node>, F>,
    }
}

impl<F> Scoped<F> {
    pub(crate) fn new(node: Arc<Node>, future: F) -> Self
    where
        F: Future,
    {
        Self { future: HOLDS.scope(node, future) }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}
