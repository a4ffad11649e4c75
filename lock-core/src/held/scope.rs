//! The leases that the current task holds.
//!
//! `run`, the macro, the layer and
//! [`MutexGuard::run_until_lost`](crate::MutexGuard::run_until_lost) enter their lease into
//! the task's scope while they drive their body. A spawned task does not inherit it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

use super::inner::{ChildSlot, Entry, LeaseInner, ScopeEntry, ScopeLink};
use super::lease::Lease;
use crate::key::IntoKey;
use crate::store::Name;

tokio::task_local! {
    static SCOPE: ScopeEntry;
}

impl ScopeEntry {
    /// An entry of a lease by its holder. All entries of one holder share one child slot.
    pub(crate) fn own(lease: Lease) -> Self {
        match lease.0.link.set(ScopeLink::here()) {
            Ok(()) => Self::First(lease.0),
            Err(link) => Self::More(Arc::new(Entry { lease: lease.0, link, shares_slot: true })),
        }
    }

    /// An entry within another one of the same lease.
    pub(crate) fn nested(lease: Lease) -> Self {
        let link = ScopeLink::here();
        Self::More(Arc::new(Entry { lease: lease.0, link, shares_slot: false }))
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease(Arc::clone(self.inner()))
    }

    /// The slot that nested entries enter one at a time.
    pub(crate) fn child(&self) -> ChildSlot {
        let link = match self {
            Self::More(entry) if !entry.shares_slot => &entry.link,
            _ => self.inner().link.get_or_init(ScopeLink::default),
        };
        Arc::clone(link.child.get_or_init(ChildSlot::default))
    }

    fn inner(&self) -> &Arc<LeaseInner> {
        match self {
            Self::First(lease) => lease,
            Self::More(entry) => &entry.lease,
        }
    }

    fn outer(&self) -> Option<&Self> {
        let link = match self {
            Self::First(lease) => lease.link.get()?,
            Self::More(entry) => &entry.link,
        };
        link.outer.as_ref()
    }
}

impl ScopeLink {
    /// Within what the task holds.
    fn here() -> Self {
        Self { outer: SCOPE.try_with(ScopeEntry::clone).ok(), child: OnceLock::new() }
    }
}

/// The innermost entry of this task for `name` of the client with this `id`.
pub(crate) fn find(id: u64, name: &Name) -> Option<ScopeEntry> {
    let matches = |entry: &ScopeEntry| {
        let lease = entry.inner();
        lease.client.local_id == id && lease.name() == name
    };
    search(matches, ScopeEntry::clone)
}

/// Applies `get` to the innermost entry of this task that `matches`.
fn search<R>(
    matches: impl Fn(&ScopeEntry) -> bool,
    get: impl FnOnce(&ScopeEntry) -> R,
) -> Option<R> {
    let found = SCOPE.try_with(|innermost| {
        let mut entry = innermost;
        loop {
            if matches(entry) {
                return Some(get(entry));
            }
            entry = entry.outer()?;
        }
    });
    found.ok().flatten()
}

/// The lease that the current task works under: the innermost of `run`, the macro or the layer.
///
/// `None` outside of them, and in tasks spawned from within.
#[must_use]
pub fn current() -> Option<Lease> {
    SCOPE.try_with(ScopeEntry::lease).ok()
}

/// Panics when code that needs a lock runs without it. Compares the key alone, so the lock may have
/// been taken through any client.
///
/// # Panics
///
/// If the current task does not hold `key` through `run`, the macro or the layer, or if the lease
/// has ended.
#[track_caller]
pub fn assert_locked(key: impl IntoKey) {
    let key = match key.into_key() {
        Ok(key) => key,
        Err(error) => panic!("assert_locked: {error}"),
    };
    let found = search(|entry| entry.inner().key == key, |entry| entry.inner().observe().is_ok());
    match found {
        Some(true) => {}
        Some(false) => panic!("the lock that this code needs was lost: {key:?}"),
        None => panic!("this code needs a lock that its task does not hold: {key:?}"),
    }
}

pin_project! {
    /// A future that runs with one more entry in its scope.
    pub(crate) struct Scoped<F> {
        #[pin]
        future: TaskLocalFuture<ScopeEntry, F>,
    }
}

impl<F> Scoped<F> {
    pub(crate) fn new(entry: ScopeEntry, future: F) -> Self
    where
        F: Future,
    {
        Self { future: SCOPE.scope(entry, future) }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}
