//! The stores under the layer.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::store::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, Grant, MemoryStore, RedisStore,
    Release, ReleaseReply, Renewal, Renewed, Store,
};
use lock_core::{Error, LockClient, LockOptions};
use lock_testkit::RedisServer;

/// A store that several processes share; each client plays one of them.
pub(crate) enum World {
    Memory(MemoryStore),
    Redis(RedisServer),
}

impl World {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    pub(crate) async fn process(&self) -> LockClient {
        match self {
            Self::Memory(store) => client(store.clone()),
            Self::Redis(server) => client(RedisStore::connect(server.url()).await.unwrap()),
        }
    }
}

/// The ttl is far beyond the bound of any wait here: a key that becomes free was released.
fn client(store: impl Store) -> LockClient {
    let options = LockOptions::new().with_ttl(Duration::from_secs(60));
    LockClient::builder(store).with_namespace("test").with_defaults(options).build().unwrap()
}

/// Makes a module of each test, with one test per store in it.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* async fn $name:ident($world:ident: World) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            use super::*;

            async fn case($world: World) $body

            #[tokio::test]
            async fn memory() {
                case(World::memory()).await;
            }

            #[tokio::test]
            async fn redis() {
                case(World::redis()).await;
            }
        }
    )*};
}
pub(crate) use on_every_store;

/// Counts its claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountingStore {
    store: MemoryStore,
    claims: Arc<AtomicUsize>,
}

impl CountingStore {
    pub(crate) fn claims(&self) -> usize {
        self.claims.load(Ordering::SeqCst)
    }

    pub(crate) fn client(&self) -> LockClient {
        client(self.clone())
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that counts")
    }
}

impl Store for CountingStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.store.try_acquire(claim)
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.store.acquire(claim, waiting)
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        self.store.renew(renewals)
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        self.store.release(release)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
}

/// Fails in one of three ways.
#[derive(Clone, Debug)]
pub(crate) enum BrokenStore {
    /// Cannot be reached.
    Down,
    /// Was reached and did not answer.
    Silent,
    /// Grants, and cannot be reached when the release comes.
    DownAtRelease(MemoryStore),
}

impl BrokenStore {
    pub(crate) fn client(&self) -> LockClient {
        client(self.clone())
    }

    fn error(&self) -> Error {
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        match self {
            Self::Down | Self::DownAtRelease(_) => Error::unavailable("the store is down", source),
            Self::Silent => Error::unknown("the store did not answer", source),
        }
    }
}

impl fmt::Display for BrokenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a broken store")
    }
}

impl Store for BrokenStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        match self {
            Self::Down | Self::Silent => {
                Box::pin(std::future::ready(Err(AcquireError::definite(self.error()))))
            }
            Self::DownAtRelease(store) => store.try_acquire(claim),
        }
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        waiting: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        match self {
            Self::Down | Self::Silent => {
                Box::pin(std::future::ready(Err(AcquireError::definite(self.error()))))
            }
            Self::DownAtRelease(store) => store.acquire(claim, waiting),
        }
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        Box::pin(std::future::ready(renewals.iter().map(|_| Err(self.error())).collect()))
    }

    fn release<'a>(&'a self, _: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(std::future::ready(Err(self.error())))
    }

    fn capabilities(&self) -> Capabilities {
        MemoryStore::new().capabilities()
    }
}
