//! Every release that nobody awaits: dropped guards, cancelled claims, unknown outcomes.
//!
//! Each is repeated until the store has given a definite answer and no claim of the token can still take
//! effect, or until nothing of it can be left in the store.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;

use crate::client::Inner;
use crate::error::{Error, ErrorKind};
use crate::registry::Seat;
use crate::store::{Release, ReleaseReply, Released, Store};
use crate::time::{Instant, sleep_until};

/// A token that is on its way out.
#[derive(Debug)]
pub(crate) struct Job {
    release: Release,
    /// Given back when the first attempt is under way, so that this process claims the key only behind it.
    seat: Option<Seat>,
    /// For logs.
    label: &'static str,
    /// Whether it was held, or only asked for.
    was_held: bool,
    /// The lease's deadline, if it was good when the release began.
    good_until: Option<Instant>,
    /// When nothing of the token can be left in the store, even if no release ever arrives.
    hopeless_at: Instant,
    /// Attempts so far, and those of them that may have freed it without our hearing of it.
    attempts: u32,
    unanswered: u32,
}

/// A claim that is still on its way, or a release that nobody answers, is over after this long even if
/// its ttl were to start only then.
const LONGEST_FLIGHT: Duration = Duration::from_secs(30);

impl Job {
    /// The release of a lease that was held until `now`, and good until then if it has a deadline still. The store keeps it
    /// until `confirmed` at least, or for `ttl` after some renewal that was not answered.
    pub(crate) fn of_lease(
        release: Release,
        seat: Option<Seat>,
        label: &'static str,
        ttl: Duration,
        good_until: Option<Instant>,
        confirmed: Instant,
        now: Instant,
    ) -> Self {
        let last_sign = confirmed.max(now);
        let hopeless_at = last_sign.saturating_add(ttl).saturating_add(LONGEST_FLIGHT);
        Self {
            release,
            seat,
            label,
            was_held: true,
            good_until,
            hopeless_at,
            attempts: 0,
            unanswered: 0,
        }
    }

    /// The release of a token that was only asked for.
    pub(crate) fn of_claim(
        release: Release,
        seat: Option<Seat>,
        label: &'static str,
        ttl: Duration,
    ) -> Self {
        let hopeless_at = Instant::now().saturating_add(ttl).saturating_add(LONGEST_FLIGHT);
        Self {
            release,
            seat,
            label,
            was_held: false,
            good_until: None,
            hopeless_at,
            attempts: 0,
            unanswered: 0,
        }
    }

    /// What the store's answer means for the token.
    fn ending(&self, found: Released) -> Result<Released, Error> {
        if found == Released::InTime {
            return Ok(found);
        }
        if self.unanswered == 0 || mutant!("repeated-release-says-expired") {
            return Ok(found);
        }
        // An earlier attempt was not answered and may be the one that freed it. Before the deadline
        // nothing else can have; after it there is no telling.
        match self.good_until {
            Some(until) if Instant::now() < until => Ok(Released::InTime),
            Some(_) => Err(Error::plain(
                ErrorKind::Unknown,
                "the lock is no longer ours, but whether the release or the expiry ended that is unknown",
            )),
            None => Ok(found),
        }
    }
}

/// The tokens that are on their way out.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    queue: Mutex<Queue>,
    wake: Notify,
    emptied: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Waiting and being worked on, by the janitor's task or by an awaited release.
    backlog: usize,
    /// Whether anybody ever waited for all of it to be settled; until then nobody has to be told.
    watched: bool,
    /// How many tasks there are for it: one, none, or for a moment two.
    tasks: usize,
}

/// The janitor's task, from before its first poll.
struct Service(Arc<Janitor>);

impl Janitor {
    /// Counts a token that is about to be released, by [`push`](Self::push) or [`finish`](Self::finish).
    pub(crate) fn open(&self) {
        self.lock().backlog += 1;
    }

    /// Takes over a token that was opened. Does not block, spawn or panic, on any thread.
    pub(crate) fn push(&self, job: Job) {
        self.lock().waiting.push_back(job);
        self.wake.notify_one();
    }

    /// How many tokens are not settled yet.
    pub(crate) fn backlog(&self) -> usize {
        self.lock().backlog
    }

    /// Waits until all tokens are settled.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            let settled = {
                let mut queue = self.lock();
                queue.watched = true;
                queue.backlog == 0
            };
            if settled {
                return;
            }
            emptied.await;
        }
    }

    /// No more tokens will come: the task ends when it has settled those it has. Without one nobody ever will.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
        self.abandon_unserved();
    }

    /// With the client gone nobody starts the task again, and what waits here would hold up itself.
    fn abandon_unserved(&self) {
        let mut queue = self.lock();
        if queue.tasks > 0 || !self.closed.load(Ordering::Acquire) {
            return;
        }
        let jobs = std::mem::take(&mut queue.waiting);
        // Not under the lock: each tells those behind it.
        drop(queue);
        drop(jobs);
    }

    /// Releases in the caller's task, at most twice; then, and if the future is dropped, the janitor takes over.
    pub(crate) async fn finish(&self, job: Job, client: &Inner) -> Result<Released, Error> {
        let mut work = Work { janitor: self, job: Some(job) };
        client.ensure_running()?;
        let (mut attempt, mut earlier) = (1, None);
        loop {
            match work.attempt(&*client.store).await {
                Attempt::Settled(ending) | Attempt::Again(ending, _) => {
                    if mutant!("awaited-release-is-final") {
                        work.done();
                    }
                    return ending;
                }
                Attempt::Failed(error) if error.is_retryable() && attempt < AWAITED_ATTEMPTS => {
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

    /// The janitor's task.
    pub(crate) fn run(self: Arc<Self>, store: Arc<dyn Store>) -> impl Future<Output = ()> {
        self.lock().tasks += 1;
        let service = Service(self);
        async move { service.0.serve(store).await }
    }

    async fn serve(&self, store: Arc<dyn Store>) {
        let mut at_work = FuturesUnordered::new();
        loop {
            while at_work.len() < MOST_AT_WORK {
                let Some(job) = self.lock().waiting.pop_front() else { break };
                let work = Work { janitor: self, job: Some(job) };
                at_work.push(work.settle(&*store));
            }
            if at_work.is_empty() && self.closed.load(Ordering::Acquire) {
                if self.lock().waiting.is_empty() {
                    return;
                }
                continue;
            }
            tokio::select! {
                biased;
                Some(()) = at_work.next() => {}
                () = self.wake.notified(), if at_work.len() < MOST_AT_WORK => {}
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One more than one, for an answer that was lost; a caller should not wait for a store that is down.
const AWAITED_ATTEMPTS: usize = 2;
/// More releases at a time would only queue in the connection.
const MOST_AT_WORK: usize = 1024;
/// The first pause after a failure; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// A store that is back is noticed this soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_000);

/// A job that someone works on. Dropped unfinished, it goes back into the queue.
struct Work<'a> {
    janitor: &'a Janitor,
    job: Option<Job>,
}

enum Attempt {
    /// Nothing of the token is or can come to be in the store.
    Settled(Result<Released, Error>),
    /// Done, but a claim may still arrive.
    Again(Result<Released, Error>, Instant),
    Failed(Error),
}

impl Work<'_> {
    async fn attempt(&mut self, store: &dyn Store) -> Attempt {
        let Some(job) = &mut self.job else {
            return Attempt::Failed(Error::of(ErrorKind::Unknown));
        };
        job.attempts = job.attempts.saturating_add(1);
        let answer = {
            let mut release = store.release(&job.release);
            // The first poll hands the command over, if there is a connection. What this process sends for the key from then on
            // comes behind it, so the next in line need not wait for the answer: its claim may go in the same write.
            let first = poll_fn(|cx| Poll::Ready(release.poll_unpin(cx))).await;
            drop(job.seat.take());
            match first {
                Poll::Ready(answer) => answer,
                Poll::Pending => release.await,
            }
        };
        if answer.as_ref().is_err_and(Error::is_unknown) {
            job.unanswered = job.unanswered.saturating_add(1);
        }
        match answer {
            Ok(ReleaseReply { released, retry_at: None }) => {
                let ending = job.ending(released);
                self.done();
                Attempt::Settled(ending)
            }
            Ok(ReleaseReply { released, retry_at: Some(at) }) => {
                Attempt::Again(job.ending(released), at)
            }
            Err(error) => Attempt::Failed(error),
        }
    }

    async fn settle(mut self, store: &dyn Store) {
        let mut pause = FIRST_PAUSE;
        loop {
            let next = match self.attempt(store).await {
                Attempt::Settled(ending) => {
                    return tracing::trace!(target: "lock_core", ?ending, "token settled");
                }
                Attempt::Again(_, at) => match &self.job {
                    Some(job) if at < job.hopeless_at => at,
                    _ => return self.done(),
                },
                Attempt::Failed(error) => {
                    let Some(job) = &self.job else { return };
                    if job.attempts == 1 {
                        tracing::debug!(
                            target: "lock_core", key = job.label, %error,
                            "release not confirmed; trying again"
                        );
                    }
                    if Instant::now() >= job.hopeless_at || !(error.is_store_failure()) {
                        tracing::warn!(
                            target: "lock_core", key = job.label, held = job.was_held, %error,
                            "release given up; its ttl frees the lock"
                        );
                        return self.done();
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Instant::now().saturating_add(pause)
                }
            };
            sleep_until(next).await;
        }
    }

    fn done(&mut self) {
        if self.job.take().is_some() {
            let mut queue = self.janitor.lock();
            queue.backlog -= 1;
            let tell = queue.backlog == 0 && queue.watched;
            drop(queue);
            if tell {
                self.janitor.emptied.notify_waiters();
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.lock().tasks -= 1;
        self.0.abandon_unserved();
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // With the client gone nobody starts the task again.
        if let Some(job) = self.job.take()
            && !self.janitor.closed.load(Ordering::Acquire)
        {
            self.janitor.push(job);
        }
    }
}
