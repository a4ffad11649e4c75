//! Batching: commands that are ready at the same time share one call of a script.
//!
//! Entering Lua, reading the clock and minting a number cost the server more than the lock itself.
//! A call pays for them once, however many commands it carries.
//!
//! - A command that finds no other unanswered is sent by its caller, at once and alone.
//! - All others are queued, as [`Backlog`] says. The driver, one task per connection, collects from
//!   the queue and sends.
//! - The driver sends while fewer than [`MIN_CALLS`] calls are in flight, or while only a few
//!   commands are unanswered. Two calls keep both sides busy: the server works on one while the
//!   client works on the replies to the other.
//! - Beyond that, up to a window of calls, it sends batches that are full, and batches that cannot
//!   grow because what is queued cannot share a call. The window grows by one with each quick reply
//!   and halves with each slow one, between [`MIN_CALLS`] and [`MAX_CALLS`].
//! - A batch is full at a share of what is unanswered, from [`MIN_BATCH`] to [`MAX_BATCH`]
//!   commands. If all went into one call, one side would be idle while the other works.
//!
//! A caller that goes away before its command is sent takes the command out of the queue. A call
//! that is refused because of one of its keys is split, and each command is sent once alone.

use std::future::{Future, poll_fn};
use std::iter;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::sync::{Notify, oneshot};

use super::backlog::{self, Backlog};
use super::command::{self, Command, EvalMode, Kind, Reply};
use super::link::{Health, Link, without_asking};
use crate::error::Error;
use crate::metrics;
use crate::store::redis::error::Fault;
use crate::time::{Instant, timeout_at};

/// The commands of one connection, in the order in which they are sent.
pub(crate) struct Batcher {
    link: Arc<Link>,
    /// `None` once nothing sends the queue any more.
    queue: Mutex<Option<Backlog<Unanswered>>>,
    wake: Notify,
    unanswered: AtomicUsize,
    /// How often the driver looked at the queue. A runtime that nothing drives sends nothing.
    rounds: AtomicU64,
    /// Of each namespace, the channel on which this connection receives grants.
    inboxes: Mutex<Vec<(Arc<str>, Arc<str>)>>,
}

/// Counts a command as unanswered until it has its reply, or will have none.
struct Unanswered(Arc<Batcher>);

type QueuedCommand = backlog::QueuedCommand<Unanswered>;

/// A command that is submitted.
pub(crate) enum Submitted<'a> {
    /// Sent by the call when that is polled first.
    Alone(BoxFuture<'a, Result<Reply, Fault>>),
    Queued(AwaitedReply),
}

/// The reply to a queued command.
pub(crate) struct AwaitedReply {
    reply: oneshot::Receiver<Result<Reply, Fault>>,
    /// When the caller gives it up.
    until: Instant,
    /// When the timeouts do.
    longest: Instant,
    /// How often the driver had looked at the queue before.
    rounds: u64,
}

/// The reply to a call.
#[derive(Default)]
struct CallReply {
    /// The server's time, in microseconds; 0 if the script did not read it.
    us: u64,
    /// One for each command.
    values: Vec<Value>,
    /// Why what it rests on may be lost with the server, if replicas are to have it.
    unconfirmed: Option<Error>,
}

/// The most commands in one call. The fixed price of a call is small by then, and the server does
/// not keep its other clients waiting.
const MAX_BATCH: usize = 64;
/// A call with fewer commands is not full.
const MIN_BATCH: usize = 8;
/// With this many calls in flight, commands are collected instead of sent.
const MIN_CALLS: usize = 2;
/// Upper bound on calls in flight. Calls that the server has yet to execute delay renewals, and
/// other clients of the server want to be served as well.
const MAX_CALLS: usize = 32;
/// A reply is quick if it takes no more than this part of the request timeout.
const QUICK: u32 = 8;
/// A queued command may wait for its reply up to this many request timeouts: the calls in flight
/// come first.
const MAX_QUEUED: u32 = 3;
/// With no more unanswered commands than this there is nothing to collect, and a call delays
/// nothing.
const FEW: usize = 4;

impl Batcher {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            queue: Mutex::new(Some(Backlog::new())),
            wake: Notify::new(),
            unanswered: AtomicUsize::new(0),
            rounds: AtomicU64::new(0),
            inboxes: Mutex::default(),
        }
    }

    /// Submits `command`, whose reply is awaited until `until`, but no longer than the timeouts
    /// allow. Commands that are submitted one after another, each with its [`reply`](Self::reply)
    /// polled at once, arrive in that order.
    ///
    /// Apart from `reply`, whose future would keep room for the command while it waits.
    pub(crate) fn submit(
        self: &Arc<Self>,
        command: Command,
        until: Option<Instant>,
    ) -> Submitted<'static> {
        let is_alone = self.unanswered.fetch_add(1, Ordering::AcqRel) == 0;
        let unanswered = Unanswered(Arc::clone(self));
        if is_alone {
            return Submitted::Alone(Box::pin(execute_alone(unanswered, command, until)));
        }
        let rounds = self.rounds.load(Ordering::Relaxed);
        let longest = Instant::now().saturating_add(self.longest_wait());
        let (sender, reply) = oneshot::channel();
        if self.push(QueuedCommand { command, reply: sender, unanswered }) {
            self.wake.notify_one();
        }
        let until = until.map_or(longest, |until| until.min(longest));
        Submitted::Queued(AwaitedReply { reply, until, longest, rounds })
    }

    /// Waits for the reply to a submitted command.
    ///
    /// If the future is dropped before the call is written, nothing is sent.
    pub(crate) async fn reply(&self, submitted: Submitted<'_>) -> Result<Reply, Fault> {
        let AwaitedReply { reply, until, longest, rounds } = match submitted {
            Submitted::Alone(call) => return call.await,
            Submitted::Queued(awaited) => awaited,
        };
        let Ok(reply) = timeout_at(until, reply).await else {
            // Calls report how the connection fares, unless nothing drives it.
            if Instant::now() >= longest && rounds == self.rounds.load(Ordering::Relaxed) {
                self.link.report(Health::Broken);
            }
            return Err(self.link.silent());
        };
        // Dropped without a reply only with the connection.
        reply.unwrap_or_else(|_| Err(Fault::gone()))
    }

    /// Executes `command` at once and alone, at a node of a cluster that is about to take its slot.
    pub(crate) async fn execute_asking(
        &self,
        command: Command,
        until: Option<Instant>,
    ) -> Result<Reply, Fault> {
        let mut reply = self.call_asking(&command, EvalMode::Digest, until).await;
        if reply.as_ref().is_err_and(Fault::is_unknown_script) {
            reply = self.call_asking(&command, EvalMode::Text, until).await;
        }
        let CallReply { us, mut values, unconfirmed } = reply?;
        values.pop().ok_or(Fault::Garbled).and_then(|value| Reply::new(us, value, unconfirmed))
    }

    async fn call_asking(
        &self,
        command: &Command,
        mode: EvalMode,
        until: Option<Instant>,
    ) -> Result<CallReply, Fault> {
        let kind = command.kind();
        let cmd = command::call(iter::once(command), None, mode).ok_or(Fault::Garbled)?;
        let acks = self.link.acks().filter(|_| kind != Kind::Release);
        let pipeline = match acks {
            Some(acks) => acks.pipeline(cmd, until, true),
            None => {
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.cmd("ASKING").add_command(cmd);
                pipeline
            }
        };
        let read = |replies| {
            let mut replies = without_asking(replies)?;
            let (reply, unconfirmed) = match acks {
                Some(acks) => acks.read(replies)?,
                None => {
                    let reply = replies.pop().ok_or(Fault::Garbled)?;
                    (reply.extract_error().map_err(Fault::refused)?, None)
                }
            };
            let (us, values) = command::replies(reply, kind, 1)?;
            Ok(CallReply { us, values, unconfirmed })
        };
        self.link.request_all(&pipeline, until, read).await
    }

    /// How long a command that is submitted now may wait until it is sent.
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
        // While replicas confirm a call, the server executes none of those behind it.
        let most = if self.link.acks().is_some() { MIN_CALLS } else { MAX_CALLS };
        let mut window = MIN_CALLS;
        loop {
            tokio::select! {
                biased;
                Some(was_quick) = calls.next() => {
                    window = if was_quick { window + 1 } else { window / 2 };
                    window = window.clamp(MIN_CALLS, most);
                }
                () = self.wake.notified() => {
                    // Let the tasks run that are ready now: some of them may queue a command, too.
                    tokio::task::yield_now().await;
                }
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
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
    ) -> Result<CallReply, Fault> {
        let values = self.call(batch, EvalMode::Digest, until).await;
        if !values.as_ref().is_err_and(Fault::is_unknown_script) {
            return values;
        }
        // A caller that gave up has sent a release, perhaps ahead of this call. Its claim must not
        // be sent behind that: nothing would release it.
        batch.drop_cancelled();
        self.call(batch, EvalMode::Text, until).await
    }

    async fn call(
        &self,
        batch: &impl Batch,
        mode: EvalMode,
        until: Option<Instant>,
    ) -> Result<CallReply, Fault> {
        let Some(first) = batch.commands().next() else { return Ok(CallReply::default()) };
        let kind = first.kind();
        let inbox = (kind == Kind::Release).then(|| self.inbox(first.namespace())).flatten();
        let Some(cmd) = command::call(batch.commands(), inbox.as_deref(), mode) else {
            return Ok(CallReply::default());
        };
        let count = batch.commands().count();
        let timer = metrics::request_of(count);
        let read = |value| command::replies(value, kind, count);
        // Releases are not confirmed: one that is lost leaves the lock to its ttl.
        let reply = match self.link.acks().filter(|_| kind != Kind::Release) {
            None => {
                let replies = self.link.request(&cmd, until, read).await;
                replies.map(|(us, values)| CallReply { us, values, unconfirmed: None })
            }
            Some(acks) => {
                let read = |replies| {
                    let (reply, unconfirmed) = acks.read(replies)?;
                    read(reply).map(|(us, values)| CallReply { us, values, unconfirmed })
                };
                let pipeline = acks.pipeline(cmd, until, false);
                // Boxed, or every call would carry the room for this.
                Box::pin(self.link.request_all(&pipeline, until, read)).await
            }
        };
        timer.end();
        reply
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
        queue.push(queued);
        let len = queue.len();
        len == 1 || len == self.full_batch()
    }

    /// The next batch to send, with `calls` in flight and room for `window` of them.
    fn next_batch(&self, calls: usize, window: usize) -> Option<Vec<QueuedCommand>> {
        let mut queue = self.lock();
        let queue = queue.as_mut()?;
        let full = self.full_batch();
        let may_send = calls < MIN_CALLS
            || calls < window && (queue.len() >= full || queue.is_mixed())
            || self.unanswered.load(Ordering::Acquire) <= FEW;
        if !may_send {
            return None;
        }
        queue.take(full)
    }

    /// How many commands make a batch full now.
    fn full_batch(&self) -> usize {
        (self.unanswered.load(Ordering::Acquire) / MIN_CALLS).clamp(MIN_BATCH, MAX_BATCH)
    }

    /// Sends nothing more, because the connection is given up. Callers with queued commands learn
    /// that at once.
    pub(super) fn close(&self) {
        let queue = self.lock().take();
        drop(queue);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Backlog<Unanswered>>> {
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
    let CallReply { us, mut values, unconfirmed } = unanswered.0.eval(&mut command, until).await?;
    values.pop().ok_or(Fault::Garbled).and_then(|value| Reply::new(us, value, unconfirmed))
}

/// Gives each command of a batch its reply.
fn pass_on(batch: Vec<QueuedCommand>, reply: Result<CallReply, Fault>) {
    let (us, values, unconfirmed) = match reply {
        Ok(CallReply { us, values, unconfirmed }) => {
            (us, values.into_iter().map(Ok).collect(), unconfirmed)
        }
        Err(fault) => (0, vec![Err(fault); batch.len()], None),
    };
    for (QueuedCommand { reply, unanswered, .. }, value) in batch.into_iter().zip(values) {
        drop(unanswered);
        // Fails if the caller is gone, which needs no reply.
        drop(reply.send(value.and_then(|value| Reply::new(us, value, unconfirmed.clone()))));
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
