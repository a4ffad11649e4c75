//! Releases that no caller awaits: dropped guards, cancelled claims, unknown outcomes.
//!
//! A [`PendingRelease`] is sent again until the store has given a definite reply and no claim of
//! its token can still take effect. It is given up
//!
//! - when nothing of the token can be left in the store: [`LONGEST_FLIGHT`] and the longest ttl
//!   that was requested with it after the lease ended, or after the claim was given up;
//! - when the store refuses it for good, at the second attempt at the earliest;
//! - at any other error than a failure of the store or the lack of a runtime;
//! - when the last handle of the client is gone and no task runs that would send it.
//!
//! One task per client does that for all of them. An awaited release is sent by its caller first;
//! when the caller gives up or is dropped, the release goes to the task. A part of the store may be
//! down, such as a node of a cluster: so releases that pause between two attempts, or are sent
//! again, take no room from those that are sent for the first time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::lease::{LeaseEnd, repeated_release};
use crate::metrics;
use crate::store::{Release, ReleaseReply, Released, Store};
use crate::time::{Instant, sleep_until};
use crate::tracker::{Tracker, TrackerToken};

/// A token that has to be released.
///
/// `T` is the right to use the key in this process: the registry's `LocalTurn`, which lies above.
#[derive(Debug)]
pub(crate) struct PendingRelease<T> {
    release: Release,
    /// Dropped once the first attempt is on its way, so that this process claims the key only
    /// behind it.
    turn: Option<T>,
    /// The key's name in logs.
    label: &'static str,
    /// The lease's deadline, if the lease was good when the release began.
    good_until: Option<Instant>,
    /// Whether the token was granted the lock, or only claimed it.
    was_held: bool,
    /// After this nothing of the token can be left in the store, even if no release arrives.
    hopeless_at: Instant,
    attempts: u32,
    /// Attempts without a reply: each may have freed the lock.
    unanswered: u32,
    _tracked: TrackerToken,
    _counted: metrics::PendingCount,
}

/// How long after it was sent a claim or release may still be executed. The ttl of a claim may
/// start only then, so it is added.
const LONGEST_FLIGHT: Duration = Duration::from_secs(30);
/// An awaited release is sent once more if its reply was lost. A caller should not wait for a store
/// that is down. A release that is refused for good is sent once more in the background at most.
const AWAITED_ATTEMPTS: u32 = 2;
/// More releases at a time would only queue in the connection.
const MAX_CALLS: usize = 1024;
/// The same for those that are sent again.
const MAX_REPEATED_CALLS: usize = 256;

/// The pending releases of a client.
#[derive(Debug)]
pub(crate) struct Releaser<T> {
    queue: Mutex<Queue<T>>,
    wake: Notify,
    closed: AtomicBool,
    pending: Arc<Tracker>,
}

#[derive(Debug)]
struct Queue<T> {
    releases: VecDeque<PendingRelease<T>>,
    /// How many tasks serve the queue: one, none, or two while one replaces the other.
    tasks: usize,
}

/// The releaser's task, from before its first poll.
struct Service<T>(Arc<Releaser<T>>);

/// A release that a caller or the task works on. Dropped unfinished, it goes back into the queue.
pub(crate) struct InProgress<'a, T> {
    releaser: &'a Releaser<T>,
    pending: Option<PendingRelease<T>>,
}

/// A release that the task sends until the token is gone.
struct Repeated<'a, T> {
    release: InProgress<'a, T>,
    backoff: Backoff,
}

enum Attempt {
    /// Nothing of the token is left in the store, or can still arrive.
    Done(Result<Released, Error>),
    /// Released, but a claim of the token may still arrive: release again at that time.
    Again(Result<Released, Error>, Instant),
    Failed(Error),
}

impl<T> Default for Releaser<T> {
    fn default() -> Self {
        Self {
            queue: Mutex::new(Queue { releases: VecDeque::new(), tasks: 0 }),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            pending: Arc::default(),
        }
    }
}

impl<T> Releaser<T> {
    /// A token to release: of a lease that `ended`, or `None` if the token only claimed the lock.
    /// The store was asked to keep the lock for `longest_ttl` at most.
    pub(crate) fn pending(
        &self,
        release: Release,
        turn: Option<T>,
        label: &'static str,
        longest_ttl: Duration,
        ended: Option<LeaseEnd>,
    ) -> PendingRelease<T> {
        let last_sign = match ended {
            Some(LeaseEnd { confirmed_until, at, .. }) => confirmed_until.max(at),
            None => Instant::now(),
        };
        PendingRelease {
            release,
            turn,
            label,
            good_until: ended.and_then(|ended| ended.good_until),
            was_held: ended.is_some(),
            hopeless_at: last_sign.saturating_add(longest_ttl).saturating_add(LONGEST_FLIGHT),
            attempts: 0,
            unanswered: 0,
            _tracked: self.pending.token(),
            _counted: metrics::PendingCount::new(),
        }
    }

    /// Leaves a release to the task. Does not block, spawn or panic, on any thread.
    pub(crate) fn push(&self, pending: PendingRelease<T>) {
        self.lock().releases.push_back(pending);
        self.wake.notify_one();
    }

    /// A release that the caller awaits.
    pub(crate) fn begin(&self, pending: PendingRelease<T>) -> InProgress<'_, T> {
        InProgress { releaser: self, pending: Some(pending) }
    }

    /// How many releases the store has not confirmed yet.
    pub(crate) fn pending_count(&self) -> usize {
        self.pending.count()
    }

    /// Waits until the store has confirmed all releases, or they were given up.
    pub(crate) async fn idle(&self) {
        self.pending.emptied().await;
    }

    /// No more releases will come. The task ends when its queue is empty.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
        self.abandon_unserved();
    }

    /// Drops what is queued if no task will serve it: a closed client starts none. Each pending
    /// release refers to the client's registry, which refers to this queue.
    fn abandon_unserved(&self) {
        let mut queue = self.lock();
        if queue.tasks > 0 || !self.closed.load(Ordering::Acquire) {
            return;
        }
        let releases = std::mem::take(&mut queue.releases);
        // Unlocked before the drop: each wakes the tasks that wait for its key.
        drop(queue);
        drop(releases);
    }

    /// The releaser's task.
    pub(crate) fn run(self: Arc<Self>, store: Arc<dyn Store>) -> impl Future<Output = ()> {
        self.lock().tasks += 1;
        let service = Service(self);
        async move { service.0.serve(store).await }
    }

    async fn serve(&self, store: Arc<dyn Store>) {
        let (mut first, mut again) = (FuturesUnordered::new(), FuturesUnordered::new());
        // Those that pause before they are sent again, and those that are to be sent again.
        let (mut pausing, mut due) = (FuturesUnordered::new(), VecDeque::<Repeated<'_, T>>::new());
        loop {
            while first.len() < MAX_CALLS {
                let Some(pending) = self.lock().releases.pop_front() else { break };
                let release =
                    Repeated { release: self.begin(pending), backoff: Backoff::default() };
                first.push(release.send(&*store));
            }
            while again.len() < MAX_REPEATED_CALLS {
                let Some(release) = due.pop_front() else { break };
                again.push(release.send(&*store));
            }
            let is_idle = first.is_empty() && again.is_empty() && pausing.is_empty();
            if is_idle && self.closed.load(Ordering::Acquire) {
                if self.lock().releases.is_empty() {
                    return;
                }
                continue;
            }
            let failed = tokio::select! {
                biased;
                Some(failed) = first.next() => failed,
                Some(failed) = again.next() => failed,
                Some(release) = pausing.next() => {
                    due.push_back(release);
                    None
                }
                () = self.wake.notified(), if first.len() < MAX_CALLS => None,
            };
            if let Some((release, at)) = failed {
                pausing.push(async move {
                    sleep_until(at).await;
                    release
                });
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> PendingRelease<T> {
    /// What the store's reply means for the token.
    fn outcome(&self, found: Released) -> Result<Released, Error> {
        if self.unanswered == 0 {
            return Ok(found);
        }
        repeated_release(found, self.good_until, Instant::now()).ok_or_else(|| {
            Error::plain(
                ErrorKind::Unknown,
                "the lock is no longer held, but whether the release or the expiry ended it is unknown",
            )
        })
    }
}

impl<T> InProgress<'_, T> {
    /// Releases in the caller's task, at most twice. If it was not released when this is dropped,
    /// the releaser goes on in the background.
    pub(crate) async fn finish(&mut self, store: &dyn Store) -> Result<Released, Error> {
        let (mut attempt, mut earlier) = (1, None);
        loop {
            match self.attempt(store).await {
                Attempt::Done(outcome) | Attempt::Again(outcome, _) => return outcome,
                Attempt::Failed(error)
                    if error.is_store_failure() && attempt < AWAITED_ATTEMPTS =>
                {
                    earlier = Some(error);
                }
                Attempt::Failed(error) => {
                    return Err(match earlier {
                        Some(earlier) => error.after(&earlier),
                        None => error,
                    });
                }
            }
            attempt += 1;
        }
    }

    async fn attempt(&mut self, store: &dyn Store) -> Attempt {
        let Some(pending) = &mut self.pending else {
            return Attempt::Failed(Error::of(ErrorKind::Unknown));
        };
        if pending.attempts > 0 {
            metrics::release_retried();
        }
        pending.attempts = pending.attempts.saturating_add(1);
        let reply = {
            let mut release = store.release(&pending.release);
            // The first poll hands the command to the connection, if there is one. Commands that
            // this process sends for the key afterwards follow it, so the next local waiter need
            // not wait for the reply: its claim may go in the same write.
            let first = poll_fn(|cx| Poll::Ready(release.poll_unpin(cx))).await;
            drop(pending.turn.take());
            match first {
                Poll::Ready(reply) => reply,
                Poll::Pending => release.await,
            }
        };
        if reply.as_ref().is_err_and(Error::is_unknown) {
            pending.unanswered = pending.unanswered.saturating_add(1);
        }
        match reply {
            Ok(ReleaseReply { released, retry_at: None }) => {
                let outcome = pending.outcome(released);
                self.done();
                Attempt::Done(outcome)
            }
            Ok(ReleaseReply { released, retry_at: Some(at) }) => {
                Attempt::Again(pending.outcome(released), at)
            }
            Err(error) => Attempt::Failed(error),
        }
    }

    fn done(&mut self) {
        self.pending = None;
    }
}

impl<T> Repeated<'_, T> {
    /// Sends the release once. Returns it, and when to send it again, unless that is over: the
    /// token is gone, or the release is given up.
    async fn send(mut self, store: &dyn Store) -> Option<(Self, Instant)> {
        let attempt = self.release.attempt(store).await;
        let next = match (attempt, &self.release.pending) {
            (Attempt::Again(_, at), Some(pending)) if at < pending.hopeless_at => at,
            (Attempt::Failed(error), Some(pending)) => {
                if pending.attempts == 1 {
                    tracing::debug!(
                        target: "lock_core", key = pending.label, error = error.with_causes(),
                        "release not confirmed; trying again"
                    );
                }
                let may_pass = error.is_store_failure() || error.kind() == ErrorKind::NoRuntime;
                let is_refused =
                    !may_pass || error.is_permanent() && pending.attempts >= AWAITED_ATTEMPTS;
                if is_refused || Instant::now() >= pending.hopeless_at {
                    tracing::warn!(
                        target: "lock_core", key = pending.label, held = pending.was_held,
                        error = error.with_causes(),
                        "gave up releasing the lock; it will expire after its ttl"
                    );
                    self.release.done();
                    return None;
                }
                Instant::now().saturating_add(self.backoff.next_pause())
            }
            (Attempt::Done(outcome), _) => {
                tracing::trace!(target: "lock_core", ?outcome, "token released");
                return None;
            }
            (Attempt::Again(..) | Attempt::Failed(_), _) => {
                self.release.done();
                return None;
            }
        };
        Some((self, next))
    }
}

impl<T> Drop for Service<T> {
    fn drop(&mut self) {
        self.0.lock().tasks -= 1;
        self.0.abandon_unserved();
    }
}

impl<T> Drop for InProgress<'_, T> {
    fn drop(&mut self) {
        // A closed client starts no task that would serve the queue.
        if let Some(pending) = self.pending.take()
            && !self.releaser.closed.load(Ordering::Acquire)
        {
            self.releaser.push(pending);
        }
    }
}
