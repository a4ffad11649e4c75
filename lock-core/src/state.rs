//! What all handles, guards and leases of one client share.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::activity::RecentLosses;
use crate::driver::{BackgroundTask, Releaser, Renewer};
use crate::error::{ConfigError, Error};
use crate::metrics::LockMetricsByLabel;
use crate::options::{LockOptions, ResolvedOptions};
use crate::registry::{LocalTurn, Registry, TurnsForOthers};
use crate::runtime::{self, EnterGuard};
use crate::store::{ClientId, Name, Store};
use crate::time::Instant;
use crate::tracker::Tracker;

/// Of more locks than these it is not logged that they have a value without an expiry.
const MOST_LOGGED: usize = 256;

/// What is so slow that it is logged as a warning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slow {
    pub(crate) wait: Option<Duration>,
    pub(crate) hold: Option<Duration>,
}

/// The state of a client.
pub(crate) struct ClientState {
    /// Unique within the process, by a counter: a task re-enters only leases of the same client.
    pub(crate) local_id: u64,
    /// Random, the first part of each token: from it people find the client across processes.
    pub(crate) client_id: ClientId,
    pub(crate) store: Arc<dyn Store>,
    /// `None`: the names of locks are their keys.
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) defaults: LockOptions,
    /// The defaults with the library's below.
    pub(crate) resolved: ResolvedOptions,
    /// The longest time for which the store keeps a lock without a renewal.
    pub(crate) longest_ttl: Option<Duration>,
    pub(crate) slow: Slow,
    pub(crate) registry: Registry,
    pub(crate) turns_for_others: TurnsForOthers,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) releaser: Arc<Releaser<LocalTurn>>,
    /// Counts acquisitions under way and leases that are held, each from before its first command
    /// until its release is pending.
    pub(crate) held: Arc<Tracker>,
    /// When the client began to drain, for those that wait for it.
    draining: watch::Sender<Option<Instant>>,
    pub(crate) metrics: LockMetricsByLabel,
    pub(crate) losses: RecentLosses,
    /// The locks whose value without an expiry was logged.
    without_expiry: Mutex<HashSet<Name>>,
    renewing: BackgroundTask,
    releasing: BackgroundTask,
}

impl ClientState {
    pub(crate) fn new(
        (local_id, client_id): (u64, ClientId),
        store: Arc<dyn Store>,
        namespace: Option<Arc<str>>,
        defaults: LockOptions,
        slow: Slow,
        runtime: Option<Handle>,
    ) -> Result<Self, ConfigError> {
        let longest_ttl = store.capabilities().longest_ttl;
        let resolved = defaults.resolve()?.within(longest_ttl)?;
        let releaser = Arc::default();
        Ok(Self {
            local_id,
            client_id,
            store,
            namespace,
            defaults,
            resolved,
            longest_ttl,
            slow,
            registry: Registry::new(Arc::clone(&releaser)),
            turns_for_others: TurnsForOthers::default(),
            renewer: Arc::default(),
            releaser,
            held: Arc::default(),
            draining: watch::Sender::new(None),
            metrics: LockMetricsByLabel::new(),
            losses: RecentLosses::default(),
            without_expiry: Mutex::default(),
            renewing: BackgroundTask::new(runtime.clone()),
            releasing: BackgroundTask::new(runtime),
        })
    }

    /// Rejects all tasks that wait, and all newcomers, and tells those that asked.
    pub(crate) fn begin_drain(&self) {
        self.registry.drain();
        self.draining.send_if_modified(|began| {
            let is_first = began.is_none();
            began.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Logs that the lock of `name` has a value without an expiry, once for each.
    pub(crate) fn warn_without_expiry(&self, name: &Name, label: &'static str) {
        let mut known = self.without_expiry.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_LOGGED || !known.insert(name.clone()) {
            return;
        }
        tracing::warn!(
            target: "lock_core", key = label,
            "the lock is held by a value without an expiry, so it never becomes free by itself: \
             delete it, or give it an expiry (PEXPIRE)"
        );
    }

    /// Waits until the client begins to drain, and returns when it began.
    pub(crate) async fn draining(self: Arc<Self>) -> Instant {
        let mut draining = self.draining.subscribe();
        // The sender lives as long as `self`.
        let began = draining.wait_for(Option::is_some).await.ok().and_then(|began| *began);
        began.unwrap_or_else(Instant::now)
    }

    /// Starts the background tasks unless they run. An error outside a runtime: the caller needs
    /// one for its timers, wherever the tasks run.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        self.start_tasks()?;
        runtime::current().map(drop)
    }

    /// The same for a caller that ends a lease, on which no clock counts any more.
    pub(crate) fn ensure_releasing(&self) -> Result<(), Error> {
        self.start_tasks()?;
        runtime::with_timers().map(drop)
    }

    fn start_tasks(&self) -> Result<(), Error> {
        if !self.renewing.is_alive() {
            self.renewing.start(|| Arc::clone(&self.renewer).run(Arc::clone(&self.store)))?;
        }
        if !self.releasing.is_alive() {
            self.releasing.start(|| Arc::clone(&self.releaser).run(Arc::clone(&self.store)))?;
        }
        Ok(())
    }

    /// Runs `future` for a caller that blocks: a thread of `spawn_blocking`, or a thread outside
    /// any runtime. On the latter, the background tasks must run already, since they outlive the
    /// call.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        if let Ok(runtime) = Handle::try_current() {
            return Ok(runtime.block_on(future));
        }
        self.start_tasks()?;
        // Not the tasks' runtime: if that is a `current_thread` one, no thread may be driving it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::unavailable("no runtime to wait in", error))?;
        // This runtime ends with the call, so connections that outlive it are spawned on the other.
        let _entered = EnterGuard::enter(self.renewing.started());
        Ok(runtime.block_on(future))
    }
}

/// When the last handle, guard and lease is gone, the tasks end as soon as their queues are empty.
impl Drop for ClientState {
    fn drop(&mut self) {
        self.renewer.close();
        self.releaser.close();
    }
}
