//! Things that are asked at the same time travel together: many in one call of a script.
//!
//! Entering Lua, reading the clock and minting cost the server more than the lock itself, and are paid once for each call. One
//! who is alone is not delayed, nor are a few: only what is asked while two calls are under way is collected.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::ConnectionLike;
use redis::{RedisError, Value};
use tokio::sync::{Notify, oneshot};

use super::ask::{self, Answer, Ask, By, Kind};
use super::connection::{Connection, Health};
use super::connector::Wire;
use super::error::Fault;
use crate::time::{Instant, Late, timeout_at};

/// What waits to be sent on a connection.
pub(super) struct Lane {
    connection: Wire,
    /// Whom to tell how calls fare on this connection.
    owner: Weak<Connection>,
    generation: u64,
    /// `None` once nobody sends it any more.
    queue: Mutex<Option<Queue>>,
    wake: Notify,
    under_way: AtomicUsize,
    /// How often the driver was polled: a runtime that nobody runs sends nothing.
    turns: AtomicU64,
}

/// Something that was handed over and is not answered yet.
pub(super) struct UnderWay(Arc<Lane>);

struct Item {
    ask: Ask,
    answer: oneshot::Sender<Result<Answer, Fault>>,
    /// Until the answer is here, or will not come, nothing overtakes it.
    under_way: UnderWay,
}

/// What waits to be sent, in the order in which it was asked.
///
/// A release goes before a claim of another token for the same lock; it never meets a claim of its own token, which is given up
/// by then.
#[derive(Default)]
struct Queue {
    /// First of all: leases do not wait, and there are no more of these than leases.
    renewals: VecDeque<Item>,
    releases: VecDeque<Item>,
    claims: VecDeque<Item>,
}

/// What may travel in one call: the price of a call is small by then, and the server does not keep its other clients waiting.
const MOST: usize = 64;
/// While so many calls are under way, what is asked is collected: the server works on one while we work on the answers to the
/// other, and small calls grow together.
const CALLS: usize = 2;
/// Full ones need not grow, nor do those wait for each other that cannot travel together. As many as are answered quickly: what
/// is on its way to a server that has much to do holds up renewals. Not more, for other clients want to be served as well.
const MOST_CALLS: usize = 32;
/// A quick answer takes no more than this part of what an answer may take.
const QUICK: u32 = 8;
/// So many times the limit for an answer may pass until something that is collected has its own: its turn comes after the calls
/// that are under way.
const LONGEST_TURN: u32 = 3;
/// A call of less is not full.
const LEAST: usize = 8;
/// Behind so many that cannot travel with the first, nobody is looked for who can.
const SEARCH: usize = 256;
/// With no more than this under way there is nothing to collect, and nobody is held up.
const FEW: usize = 4;

impl Lane {
    pub(super) fn new(connection: Wire, owner: Weak<Connection>, generation: u64) -> Self {
        Self {
            connection,
            owner,
            generation,
            queue: Mutex::new(Some(Queue::default())),
            wake: Notify::new(),
            under_way: AtomicUsize::new(0),
            turns: AtomicU64::new(0),
        }
    }

    /// Asks, and waits for the answer until `until`, but no longer than for any answer. Things that are asked one after another
    /// arrive in that order.
    ///
    /// If the future is dropped before the call is written, nothing is sent.
    pub(super) async fn ask(
        self: &Arc<Self>,
        ask: Ask,
        until: Option<Instant>,
    ) -> Result<Answer, Fault> {
        let alone = self.under_way.fetch_add(1, Ordering::AcqRel) == 0;
        let under_way = UnderWay(Arc::clone(self));
        if alone {
            // Boxed, or every future would carry the room for this.
            return Box::pin(ask_alone(under_way, ask, until)).await;
        }
        let owner = self.owner.upgrade().ok_or_else(Fault::gone)?;
        let turns = self.turns.load(Ordering::Relaxed);
        let longest = Instant::now().saturating_add(owner.request_timeout() * LONGEST_TURN);
        let (sender, answer) = oneshot::channel();
        if self.push(Item { ask, answer: sender, under_way }) {
            self.wake.notify_one();
        }
        let until = until.map_or(longest, |until| until.min(longest));
        let Ok(answer) = timeout_at(until, answer).await else {
            // The calls tell how the connection fares, but for one that nobody drives.
            if Instant::now() >= longest && turns == self.turns.load(Ordering::Relaxed) {
                owner.note(self.generation, Health::Broken);
            }
            return Err(Fault::silent(owner.label()));
        };
        // Dropped without an answer only with the connection.
        answer.unwrap_or_else(|_| Err(Fault::gone()))
    }

    /// How long something that is asked now may have to wait until it is sent.
    pub(super) fn longest_turn(&self) -> Duration {
        if self.under_way.load(Ordering::Acquire) <= MOST {
            // It goes with the next call, or the one after.
            return Duration::ZERO;
        }
        self.owner.upgrade().map_or(Duration::ZERO, |owner| owner.request_timeout() * LONGEST_TURN)
    }

    /// Sends what is collected, as long as it is polled.
    pub(super) async fn drive(self: Arc<Self>) {
        let _closing = Closing(&self);
        let mut calls = FuturesUnordered::new();
        let mut window = CALLS;
        loop {
            tokio::select! {
                biased;
                Some(was_quick) = calls.next() => {
                    window = if was_quick { window + 1 } else { window / 2 };
                    window = window.clamp(CALLS, MOST_CALLS);
                }
                () = self.wake.notified() => {
                    // Behind the tasks that are ready now, some of which may have something to ask, too.
                    tokio::task::yield_now().await;
                }
            }
            self.turns.fetch_add(1, Ordering::Relaxed);
            while let Some(batch) = self.next_batch(calls.len(), window) {
                let mut call = Box::pin(self.deliver(batch));
                // Handed over here, since the order counts.
                if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending() {
                    calls.push(call);
                }
            }
        }
    }

    /// Asks all of a batch in one call, and gives each its answer. Tells whether that took no longer than it should.
    async fn deliver(&self, mut batch: Vec<Item>) -> bool {
        let sent = Instant::now();
        let mut answers = self.call(&batch, By::Digest, None).await;
        if answers.as_ref().is_err_and(Fault::is_unknown_script) {
            // The release of one who is gone may be ahead of us by now, and would not be repeated for this.
            batch.retain(|item| !item.answer.is_closed());
            answers = self.call(&batch, By::Text, None).await;
        }
        match answers {
            Ok((us, answers)) => {
                for (item, answer) in batch.into_iter().zip(answers) {
                    let Item { answer: to, under_way, .. } = item;
                    drop(under_way);
                    // One that is gone needs no answer.
                    drop(to.send(Answer::of(us, answer)));
                }
            }
            Err(fault) => {
                for Item { answer: to, under_way, .. } in batch {
                    drop(under_way);
                    drop(to.send(Err(fault.clone())));
                }
            }
        }
        let took = Instant::now().saturating_since(sent);
        self.owner.upgrade().is_some_and(|owner| took < owner.request_timeout() / QUICK)
    }

    /// Sends one call for all of `batch`, and waits for its answer until `until`, but no longer than for any answer.
    async fn call<T: AsRef<Ask> + Sync>(
        &self,
        batch: &[T],
        by: By,
        until: Option<Instant>,
    ) -> Result<(u64, Vec<Value>), Fault> {
        let Some(owner) = self.owner.upgrade() else { return Err(Fault::gone()) };
        let releases = batch.first().map(AsRef::as_ref).filter(|ask| ask.kind() == Kind::Release);
        let inbox =
            releases.and_then(|ask| owner.inbox().pushed_to(self.generation, ask.namespace()));
        let asks = batch.iter().map(AsRef::as_ref);
        let Some(cmd) = ask::command(asks, inbox.as_deref(), by) else {
            return Ok((0, Vec::new()));
        };
        let until = owner.patience(until);
        let patience = until.remaining();
        let mut connection = self.connection.clone();
        let answers = match timeout_at(until, connection.req_packed_command(&cmd)).await {
            Ok(Ok(Value::ServerError(error))) => Err(Fault::Refused(RedisError::from(error))),
            Ok(Ok(value)) => {
                let kind = batch[0].as_ref().kind();
                ask::answers(value, kind, batch.len())
            }
            Ok(Err(error)) => Err(Fault::of(error)),
            Err(Late) => {
                owner.note(self.generation, owner.health_of_silence(patience));
                return Err(Fault::silent(owner.label()));
            }
        };
        owner.note(self.generation, Health::of(&answers));
        answers
    }

    /// Whether the driver has to look at it.
    fn push(&self, item: Item) -> bool {
        let mut queue = self.lock();
        // Dropped if it is closed, which tells the one who asks.
        let Some(queue) = queue.as_mut() else { return false };
        match item.ask.kind() {
            Kind::Renew => queue.renewals.push_back(item),
            Kind::Release => queue.releases.push_back(item),
            Kind::Claim => queue.claims.push_back(item),
        }
        let len = queue.len();
        len == 1 || len == self.most()
    }

    /// What goes next, with `calls` under way, and no more than `window` of full ones to be.
    fn next_batch(&self, calls: usize, window: usize) -> Option<Vec<Item>> {
        let mut queue = self.lock();
        let queue = queue.as_mut()?;
        let most = self.most();
        let may_go = calls < CALLS
            || calls < window && (queue.len() >= most || queue.is_mixed())
            || self.under_way.load(Ordering::Acquire) <= FEW;
        if !may_go {
            return None;
        }
        let mut kinds = [&mut queue.renewals, &mut queue.releases, &mut queue.claims].into_iter();
        kinds.find_map(|items| take_alike(items, most))
    }

    /// What may travel in one call now: a part of what is under way, or all would soon be in one call, and one side be idle while
    /// the other works.
    fn most(&self) -> usize {
        (self.under_way.load(Ordering::Acquire) / CALLS).clamp(LEAST, MOST)
    }

    /// Sends nothing more: the connection is given up. Those who wait to be sent are told.
    pub(super) fn close(&self) {
        let items = self.lock().take();
        drop(items);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Queue>> {
        // Nothing that holds this lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the lane when its driver ends: with the connection, or with the runtime.
struct Closing<'a>(&'a Lane);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn ask_alone(under_way: UnderWay, ask: Ask, until: Option<Instant>) -> Result<Answer, Fault> {
    let lane = &under_way.0;
    let ask = [ask];
    let mut answers = lane.call(&ask, By::Digest, until).await;
    if answers.as_ref().is_err_and(Fault::is_unknown_script) {
        answers = lane.call(&ask, By::Text, until).await;
    }
    let (us, mut answers) = answers?;
    answers.pop().ok_or(Fault::Garbled).and_then(|answer| Answer::of(us, answer))
}

impl Queue {
    /// Whether what waits cannot travel together.
    fn is_mixed(&self) -> bool {
        [&self.renewals, &self.releases, &self.claims].into_iter().any(|items| {
            let ends = items.front().zip(items.back());
            ends.is_some_and(|(first, last)| !first.ask.goes_with(&last.ask))
        })
    }

    fn len(&self) -> usize {
        self.renewals.len() + self.releases.len() + self.claims.len()
    }
}

/// The first of `items` whose answer is still awaited, and those that can travel with it, `most` in all.
fn take_alike(items: &mut VecDeque<Item>, most: usize) -> Option<Vec<Item>> {
    let mut batch: Vec<Item> = Vec::new();
    let mut passed = Vec::new();
    while batch.len() < most && passed.len() < SEARCH {
        let Some(item) = items.pop_front() else { break };
        if item.answer.is_closed() {
            continue;
        }
        match batch.first() {
            Some(first) if !first.ask.goes_with(&item.ask) => passed.push(item),
            _ => batch.push(item),
        }
    }
    for item in passed.into_iter().rev() {
        items.push_front(item);
    }
    (!batch.is_empty()).then_some(batch)
}

impl AsRef<Ask> for Item {
    fn as_ref(&self) -> &Ask {
        &self.ask
    }
}
