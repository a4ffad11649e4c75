//! Batching: commands that are ready at the same time share one call of a script.
//!
//! Entering Lua, reading the clock and minting a number cost the server more than the lock itself.
//! A call pays for them once, however many commands it carries.
//!
//! - A command that finds no other unanswered is sent by its caller, at once and alone.
//! - All others are queued: renewals before releases before claims, first come first served among
//!   each. The driver, one task per connection, collects from the queue and sends.
//! - The driver sends while fewer than [`MIN_IN_FLIGHT`] calls are in flight, or while only a few
//!   commands are unanswered. Two calls keep both sides busy: the server works on one while the
//!   client works on the replies to the other.
//! - Beyond that, up to a window of calls, it sends batches that are full, and batches that cannot
//!   grow because what is queued cannot share a call. The window grows by one with each quick reply
//!   and halves with each slow one, between [`MIN_IN_FLIGHT`] and [`MAX_IN_FLIGHT`].
//! - A batch is full at a share of what is unanswered, from [`MIN_BATCH`] to [`MAX_BATCH`]
//!   commands. If all went into one call, one side would be idle while the other works.
//!
//! A caller that goes away before its command is sent takes the command out of the queue. A call
//! that is refused because of one of its keys is split, and each command is sent once alone.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::iter;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::sync::{Notify, oneshot};

use super::command::{self, Command, EvalMode, Kind, Reply};
use super::link::{Health, Link};
use crate::metrics;
use crate::store::redis::error::Fault;
use crate::time::{Instant, timeout_at};

/// The commands of one connection, in the order in which they are sent.
pub(crate) struct Batcher {
    link: Arc<Link>,
    /// `None` once nothing sends the queue any more.
    queue: Mutex<Option<Backlog>>,
    wake: Notify,
    unanswered: AtomicUsize,
    /// How often the driver ran. A runtime that nothing drives sends nothing.
    turns: AtomicU64,
    /// Of each namespace, the channel on which this connection receives grants.
    inboxes: Mutex<Vec<(Arc<str>, Arc<str>)>>,
}

/// Counts a command as unanswered until it has its reply, or will have none.
struct Unanswered(Arc<Batcher>);

struct QueuedCommand {
    command: Command,
    reply: oneshot::Sender<Result<Reply, Fault>>,
    unanswered: Unanswered,
}

/// The commands that wait to be sent.
///
/// A release goes before a claim of another token for the same lock. It never meets a claim of its
/// own token, because its client has given that up by then.
#[derive(Default)]
struct Backlog {
    /// Before all others: leases do not wait. There are no more renewals than leases.
    renewals: VecDeque<QueuedCommand>,
    releases: VecDeque<QueuedCommand>,
    claims: VecDeque<QueuedCommand>,
}

/// The most commands in one call. The fixed price of a call is small by then, and the server does
/// not keep its other clients waiting.
const MAX_BATCH: usize = 64;
/// A call with fewer commands is not full.
const MIN_BATCH: usize = 8;
/// With this many calls in flight, commands are collected instead of sent.
const MIN_IN_FLIGHT: usize = 2;
/// Upper bound on calls in flight. Calls that the server has yet to execute delay renewals, and
/// other clients of the server want to be served as well.
const MAX_IN_FLIGHT: usize = 32;
/// A reply is quick if it takes no more than this part of the request timeout.
const QUICK: u32 = 8;
/// A queued command may wait for its reply up to this many request timeouts: the calls in flight
/// come first.
const MAX_QUEUED: u32 = 3;
/// Stop looking for commands that can share a call after skipping this many.
const MAX_SKIPPED: usize = 256;
/// With no more unanswered commands than this there is nothing to collect, and a call delays
/// nothing.
const FEW: usize = 4;

impl Batcher {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            queue: Mutex::new(Some(Backlog::default())),
            wake: Notify::new(),
            unanswered: AtomicUsize::new(0),
            turns: AtomicU64::new(0),
            inboxes: Mutex::default(),
        }
    }

    /// Executes `command` and waits for its reply until `until`, but no longer than the timeouts
    /// allow. Commands that are handed over one after another arrive in that order.
    ///
    /// If the future is dropped before the call is written, nothing is sent.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        command: Command,
        until: Option<Instant>,
    ) -> Result<Reply, Fault> {
        let is_alone = self.unanswered.fetch_add(1, Ordering::AcqRel) == 0;
        let unanswered = Unanswered(Arc::clone(self));
        if is_alone {
            // Boxed, or every future would carry the room for this.
            return Box::pin(execute_alone(unanswered, command, until)).await;
        }
        let turns = self.turns.load(Ordering::Relaxed);
        let longest = Instant::now().saturating_add(self.longest_wait());
        let (sender, reply) = oneshot::channel();
        if self.push(QueuedCommand { command, reply: sender, unanswered }) {
            self.wake.notify_one();
        }
        let until = until.map_or(longest, |until| until.min(longest));
        let Ok(reply) = timeout_at(until, reply).await else {
            // Calls report how the connection fares, unless nothing drives it.
            if Instant::now() >= longest && turns == self.turns.load(Ordering::Relaxed) {
                self.link.report(Health::Broken);
            }
            return Err(self.link.silent());
        };
        // Dropped without a reply only with the connection.
        reply.unwrap_or_else(|_| Err(Fault::gone()))
    }

    /// How long a command that is handed over now may wait until it is sent.
    pub(crate) fn longest_delay(&self) -> Duration {
        if self.unanswered.load(Ordering::Acquire) <= MAX_BATCH {
            // It goes with the next call, or with the one after.
            return Duration::ZERO;
        }
        self.longest_wait()
    }

    fn longest_wait(&self) -> Duration {
        self.link.timeouts().request * MAX_QUEUED
    }

    /// Sends what is queued for as long as it is polled.
    pub(super) async fn drive(self: Arc<Self>) {
        let _closing = CloseOnDrop(&self);
        let mut calls = FuturesUnordered::new();
        let mut window = MIN_IN_FLIGHT;
        loop {
            tokio::select! {
                biased;
                Some(was_quick) = calls.next() => {
                    window = if was_quick { window + 1 } else { window / 2 };
                    window = window.clamp(MIN_IN_FLIGHT, MAX_IN_FLIGHT);
                }
                () = self.wake.notified() => {
                    // Let the tasks run that are ready now: some of them may queue a command, too.
                    tokio::task::yield_now().await;
                }
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
            while let Some(batch) = self.next_batch(calls.len(), window) {
                let mut call = Box::pin(self.send(batch));
                // Polled here, because the first poll writes the call and the order counts.
                if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending() {
                    calls.push(call);
                }
            }
        }
    }

    /// Sends a batch in one call and passes the replies on. Returns whether they came quickly.
    async fn send(&self, mut batch: Vec<QueuedCommand>) -> bool {
        let sent = Instant::now();
        match self.eval(&mut batch, None).await {
            Err(fault) if batch.len() > 1 && fault.is_about_one_key() => {
                self.send_each(batch).await;
            }
            replies => pass_on(batch, replies),
        }
        let took = Instant::now().saturating_since(sent);
        took < self.link.timeouts().request / QUICK
    }

    /// Sends the commands of a batch that was refused for the key of one of them, each alone, so
    /// that only the one concerned is refused.
    async fn send_each(&self, batch: Vec<QueuedCommand>) {
        let calls = batch.into_iter().map(|queued| async move {
            if queued.reply.is_closed() {
                return;
            }
            let mut alone = vec![queued];
            let replies = self.eval(&mut alone, None).await;
            pass_on(alone, replies);
        });
        // All are written by the first poll: what a caller sends when it is gone comes behind.
        tokio::task::unconstrained(join_all(calls)).await;
    }

    /// Runs the script of `batch` by its digest, and by its text if the server does not know it.
    async fn eval(
        &self,
        batch: &mut impl Batch,
        until: Option<Instant>,
    ) -> Result<(u64, Vec<Value>), Fault> {
        let values = self.call(batch, EvalMode::Digest, until).await;
        if !values.as_ref().is_err_and(Fault::is_unknown_script) {
            return values;
        }
        // The releases of callers that are gone may be ahead of this call by now, and would not be
        // repeated because of it.
        batch.drop_cancelled();
        self.call(batch, EvalMode::Text, until).await
    }

    async fn call(
        &self,
        batch: &impl Batch,
        mode: EvalMode,
        until: Option<Instant>,
    ) -> Result<(u64, Vec<Value>), Fault> {
        let Some(first) = batch.commands().next() else { return Ok((0, Vec::new())) };
        let kind = first.kind();
        let inbox = (kind == Kind::Release).then(|| self.inbox(first.namespace())).flatten();
        let Some(cmd) = command::call(batch.commands(), inbox.as_deref(), mode) else {
            return Ok((0, Vec::new()));
        };
        let count = batch.commands().count();
        let timer = metrics::request_of(count);
        let replies = self.link.request(&cmd, until, |value| command::replies(value, kind, count));
        let replies = replies.await;
        timer.end();
        replies
    }

    /// Records on which channel this connection receives the grants of `namespace`.
    pub(crate) fn set_inbox(&self, namespace: Arc<str>, channel: Arc<str>) {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.retain(|(known, _)| *known != namespace);
        inboxes.push((namespace, channel));
    }

    fn inbox(&self, namespace: &str) -> Option<Arc<str>> {
        let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = inboxes.iter().find(|(known, _)| **known == *namespace);
        found.map(|(_, channel)| Arc::clone(channel))
    }

    /// Queues a command. Returns whether the driver has to look at the queue.
    fn push(&self, queued: QueuedCommand) -> bool {
        let mut queue = self.lock();
        // Dropped if the queue is closed, which tells its caller.
        let Some(queue) = queue.as_mut() else { return false };
        match queued.command.kind() {
            Kind::Renew => queue.renewals.push_back(queued),
            Kind::Release => queue.releases.push_back(queued),
            Kind::Claim => queue.claims.push_back(queued),
        }
        let len = queue.len();
        len == 1 || len == self.full_batch()
    }

    /// The next batch to send, with `calls` in flight and room for `window` of them.
    fn next_batch(&self, calls: usize, window: usize) -> Option<Vec<QueuedCommand>> {
        let mut queue = self.lock();
        let queue = queue.as_mut()?;
        let full = self.full_batch();
        let may_send = calls < MIN_IN_FLIGHT
            || calls < window && (queue.len() >= full || queue.is_mixed())
            || self.unanswered.load(Ordering::Acquire) <= FEW;
        if !may_send {
            return None;
        }
        let mut kinds = [&mut queue.renewals, &mut queue.releases, &mut queue.claims].into_iter();
        kinds.find_map(|kind| take_batch(kind, full))
    }

    /// How many commands make a batch full now.
    fn full_batch(&self) -> usize {
        (self.unanswered.load(Ordering::Acquire) / MIN_IN_FLIGHT).clamp(MIN_BATCH, MAX_BATCH)
    }

    /// Sends nothing more, because the connection is given up. Callers with queued commands learn
    /// that at once.
    pub(super) fn close(&self) {
        let queue = self.lock().take();
        drop(queue);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Backlog>> {
        // Nothing that holds this lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the batcher when its driver ends: with the connection, or with the runtime.
struct CloseOnDrop<'a>(&'a Batcher);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn execute_alone(
    unanswered: Unanswered,
    mut command: Command,
    until: Option<Instant>,
) -> Result<Reply, Fault> {
    let (us, mut values) = unanswered.0.eval(&mut command, until).await?;
    values.pop().ok_or(Fault::Garbled).and_then(|value| Reply::new(us, value))
}

/// Gives each command of a batch its reply.
fn pass_on(batch: Vec<QueuedCommand>, replies: Result<(u64, Vec<Value>), Fault>) {
    let (us, values) = match replies {
        Ok((us, values)) => (us, values.into_iter().map(Ok).collect()),
        Err(fault) => (0, vec![Err(fault); batch.len()]),
    };
    for (QueuedCommand { reply, unanswered, .. }, value) in batch.into_iter().zip(values) {
        drop(unanswered);
        // Fails if the caller is gone, which needs no reply.
        drop(reply.send(value.and_then(|value| Reply::new(us, value))));
    }
}

/// Commands that share a call.
trait Batch: Sync {
    fn commands(&self) -> impl Iterator<Item = &Command> + Clone + Send;

    /// Removes the commands whose callers are gone.
    fn drop_cancelled(&mut self);
}

impl Batch for Vec<QueuedCommand> {
    fn commands(&self) -> impl Iterator<Item = &Command> + Clone + Send {
        self.iter().map(|queued| &queued.command)
    }

    fn drop_cancelled(&mut self) {
        self.retain(|queued| !queued.reply.is_closed());
    }
}

impl Batch for Command {
    fn commands(&self) -> impl Iterator<Item = &Self> + Clone + Send {
        iter::once(self)
    }

    /// Its caller polls this call, so the call ends with the caller.
    fn drop_cancelled(&mut self) {}
}

impl Backlog {
    /// Whether some of the commands cannot share a call.
    fn is_mixed(&self) -> bool {
        [&self.renewals, &self.releases, &self.claims].into_iter().any(|kind| {
            let ends = kind.front().zip(kind.back());
            ends.is_some_and(|(first, last)| !first.command.goes_with(&last.command))
        })
    }

    fn len(&self) -> usize {
        self.renewals.len() + self.releases.len() + self.claims.len()
    }
}

/// Takes the first command whose caller still waits, and those that can share a call with it, up to
/// `most` in all.
fn take_batch(queue: &mut VecDeque<QueuedCommand>, most: usize) -> Option<Vec<QueuedCommand>> {
    let mut batch: Vec<QueuedCommand> = Vec::new();
    let mut skipped = Vec::new();
    while batch.len() < most && skipped.len() < MAX_SKIPPED {
        let Some(queued) = queue.pop_front() else { break };
        if queued.reply.is_closed() {
            continue;
        }
        match batch.first() {
            Some(first) if !first.command.goes_with(&queued.command) => skipped.push(queued),
            _ => batch.push(queued),
        }
    }
    for queued in skipped.into_iter().rev() {
        queue.push_front(queued);
    }
    (!batch.is_empty()).then_some(batch)
}
