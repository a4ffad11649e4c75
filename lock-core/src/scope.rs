//! What the current task holds.
//!
//! `run`, the macro, the layer and [`MutexGuard::run_until_lost`](crate::MutexGuard::run_until_lost) put their lease into a
//! task-local chain while they drive their body. A spawned task does not inherit it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

use crate::client::LockClient;
use crate::held::Lease;
use crate::key::IntoKey;
use crate::store::Name;

tokio::task_local! {
    static HOLDS: Holds;
    static CLIENT: LockClient;
}

/// Nested entries of a key go through here one at a time, so that siblings (`join!`) exclude each other as they would
/// without the outer lock.
pub(crate) type ChildSlot = Arc<tokio::sync::Mutex<()>>;

/// A lease that the task holds, on top of others.
#[derive(Clone, Debug)]
pub(crate) enum Holds {
    /// Its first entry, whose place in a chain is part of its record.
    First(Lease),
    /// One more entry, in another chain or deeper in the same.
    More(Arc<Entry>),
}

/// A place in the chain.
#[derive(Debug, Default)]
pub(crate) struct Place {
    outer: Option<Holds>,
    child: OnceLock<ChildSlot>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    lease: Lease,
    place: Place,
    /// Whether what it nests takes turns with what the first entry nests.
    is_sibling: bool,
}

impl Holds {
    /// An entry of a lease by its holder. All of them share one child slot.
    pub(crate) fn own(lease: Lease) -> Self {
        match lease.0.place.set(Place::here()) {
            Ok(()) => Self::First(lease),
            Err(place) => Self::More(Arc::new(Entry { lease, place, is_sibling: true })),
        }
    }

    /// An entry within another one of the same lease.
    pub(crate) fn nested(lease: Lease) -> Self {
        Self::More(Arc::new(Entry { lease, place: Place::here(), is_sibling: false }))
    }

    pub(crate) fn lease(&self) -> &Lease {
        match self {
            Self::First(lease) => lease,
            Self::More(entry) => &entry.lease,
        }
    }

    pub(crate) fn child(&self) -> ChildSlot {
        let place = match self {
            Self::More(entry) if !entry.is_sibling => &entry.place,
            _ => self.lease().0.place.get_or_init(Place::default),
        };
        Arc::clone(place.child.get_or_init(ChildSlot::default))
    }

    fn outer(&self) -> Option<&Self> {
        let place = match self {
            Self::First(lease) => lease.0.place.get()?,
            Self::More(entry) => &entry.place,
        };
        place.outer.as_ref()
    }
}

impl Place {
    /// On top of what the task holds.
    fn here() -> Self {
        Self { outer: HOLDS.try_with(Holds::clone).ok(), child: OnceLock::new() }
    }
}

/// The innermost entry of this task for `name` of the client with this `id`.
pub(crate) fn find(id: u64, name: &Name) -> Option<Holds> {
    let is_it = |holds: &Holds| {
        let held = &holds.lease().0;
        held.client.id == id && held.name() == name
    };
    search(is_it, Holds::clone)
}

/// What `see` sees in the innermost entry of this task that `is_it`.
fn search<R>(is_it: impl Fn(&Holds) -> bool, see: impl FnOnce(&Holds) -> R) -> Option<R> {
    let found = HOLDS.try_with(|innermost| {
        let mut holds = innermost;
        loop {
            if is_it(holds) {
                return Some(see(holds));
            }
            holds = holds.outer()?;
        }
    });
    found.ok().flatten()
}

/// The lease that the current task works under: the innermost of `run`, the macro or the layer.
///
/// `None` outside of them, and in tasks spawned from within.
#[must_use]
pub fn current() -> Option<Lease> {
    HOLDS.try_with(|holds| holds.lease().clone()).ok()
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
    match search(|holds| *holds.lease().key() == key, |holds| holds.lease().is_valid()) {
        Some(true) => {}
        Some(false) => panic!("the lock that this code needs was lost: {key:?}"),
        None => panic!("this code needs a lock that its task does not hold: {key:?}"),
    }
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
    /// A future that runs with an entry on top of the chain.
    pub(crate) struct Scoped<F> {
        #[pin]
        future: TaskLocalFuture<Holds, F>,
    }
}

impl<F> Scoped<F> {
    pub(crate) fn new(holds: Holds, future: F) -> Self
    where
        F: Future,
    {
        Self { future: HOLDS.scope(holds, future) }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}
