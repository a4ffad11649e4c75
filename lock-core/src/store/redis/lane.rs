//! Things that are asked at the same time travel together: many in one call of a script.
//!
//! Entering Lua, reading the clock and minting cost the server more than the lock itself, and are paid once for each call. One
//! who is alone is not delayed: only what is asked while other answers are awaited is collected, until the
//! tasks that are ready now have had their turn.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{RedisError, Value};
use tokio::sync::{Notify, oneshot};

use super::ask::{self, Answer, Ask, By};
use super::error::Fault;

/// What waits to be sent on a connection.
#[derive(Debug, Default)]
pub(super) struct Lane {
    queue: Mutex<Vec<Item>>,
    wake: Notify,
    under_way: AtomicUsize,
}

/// Something that was handed over and is not answered yet.
#[derive(Debug)]
struct UnderWay(Arc<Lane>);

#[derive(Debug)]
struct Item {
    ask: Ask,
    answer: oneshot::Sender<Result<Answer, Fault>>,
    /// Until the answer is here, or will not come, nothing overtakes it.
    under_way: UnderWay,
}

/// More in one call would keep the server from its other clients for too long: about a third of a millisecond.
const MOST: usize = 128;

impl Lane {
    /// Asks, and waits for the answer. Things that are asked one after another arrive in that order.
    ///
    /// If the future is dropped before the call is written, nothing is sent.
    pub(super) async fn ask(
        self: &Arc<Self>,
        connection: &MultiplexedConnection,
        ask: Ask,
    ) -> Result<Answer, Fault> {
        let alone = self.under_way.fetch_add(1, Ordering::AcqRel) == 0;
        let under_way = UnderWay(Arc::clone(self));
        if alone {
            let _under_way = under_way;
            let mut connection = connection.clone();
            let mut answers = call(&mut connection, std::slice::from_ref(&ask), By::Digest).await;
            if answers.as_ref().is_err_and(Fault::is_unknown_script) {
                answers = call(&mut connection, std::slice::from_ref(&ask), By::Text).await;
            }
            let (us, mut answers) = answers?;
            return answers.pop().ok_or(Fault::Garbled).and_then(|answer| Answer::of(us, answer));
        }
        let (sender, answer) = oneshot::channel();
        if self.push(Item { ask, answer: sender, under_way }) {
            self.wake.notify_one();
        }
        // Dropped without an answer only with the connection.
        answer.await.unwrap_or_else(|_| Err(Fault::gone()))
    }

    /// Sends what is collected, as long as it is polled.
    pub(super) async fn drive(self: Arc<Self>, connection: MultiplexedConnection) {
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = self.wake.notified() => {
                    // Behind the tasks that are ready now, some of which may have something to ask, too.
                    tokio::task::yield_now().await;
                    for batch in self.take() {
                        let mut call = Box::pin(deliver(connection.clone(), batch));
                        // Handed over here, since the order counts.
                        if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending() {
                            calls.push(call);
                        }
                    }
                }
                Some(()) = calls.next() => {}
            }
        }
    }

    /// Whether it is the first one.
    fn push(&self, item: Item) -> bool {
        let mut queue = self.lock();
        queue.push(item);
        queue.len() == 1
    }

    /// What waits, in calls to be sent in this order. A release goes before a claim of another token for the same lock; it never
    /// meets a claim of its own token, which is given up by then.
    fn take(&self) -> Vec<Vec<Item>> {
        let mut items = std::mem::take(&mut *self.lock());
        items.retain(|item| !item.answer.is_closed());
        items.sort_by_key(|item| item.ask.likeness());
        let mut batches: Vec<Vec<Item>> = Vec::new();
        for item in items {
            match batches.last_mut() {
                Some(batch) if batch.len() < MOST && batch[0].ask.goes_with(&item.ask) => {
                    batch.push(item);
                }
                _ => batches.push(vec![item]),
            }
        }
        batches
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Item>> {
        // Nothing that holds this lock panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Asks all of a batch in one call, and gives each its answer.
async fn deliver(mut connection: MultiplexedConnection, mut batch: Vec<Item>) {
    let mut answers = call(&mut connection, &batch, By::Digest).await;
    if answers.as_ref().is_err_and(Fault::is_unknown_script) {
        // The release of one who is gone may be ahead of us by now, and would not be repeated for this.
        batch.retain(|item| !item.answer.is_closed());
        answers = call(&mut connection, &batch, By::Text).await;
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
}

/// Sends one call for all of `batch`.
async fn call<T: AsRef<Ask> + Sync>(
    connection: &mut MultiplexedConnection,
    batch: &[T],
    by: By,
) -> Result<(u64, Vec<Value>), Fault> {
    let Some(first) = batch.first() else { return Ok((0, Vec::new())) };
    let kind = first.as_ref().kind();
    let Some(cmd) = ask::command(batch.iter().map(AsRef::as_ref), by) else {
        return Ok((0, Vec::new()));
    };
    match connection.req_packed_command(&cmd).await {
        Ok(Value::ServerError(error)) => Err(Fault::Refused(RedisError::from(error))),
        Ok(value) => ask::answers(value, kind, batch.len()),
        Err(error) => Err(Fault::of(error)),
    }
}

impl AsRef<Ask> for Item {
    fn as_ref(&self) -> &Ask {
        &self.ask
    }
}
