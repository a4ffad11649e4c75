//! The ballots of one round that are under way.
//!
//! The caller of a round waits until a majority has answered; the rest goes on in the background. A
//! release of the token must not overtake any of them, so it ends them all first: a ballot that
//! was not written yet is never sent, and its member knows that the others may still arrive.

use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use futures_util::Stream as _;
use futures_util::stream::FuturesUnordered;

use crate::store::{BoxFuture, VoteError, Voted};

/// The reply of one member.
pub(super) type Answer = (usize, Result<Voted, VoteError>);

/// Ballots of which each belongs to another member.
pub(super) struct Flights(Mutex<UnderWay>);

struct UnderWay {
    ballots: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Which members have not replied.
    open: Vec<bool>,
    /// The task that waits for the next reply.
    waiting: Option<Waker>,
}

impl Flights {
    /// Ballots to `members` members, in their order.
    pub(super) fn new(
        members: usize,
        ballots: impl Iterator<Item = BoxFuture<'static, Answer>>,
    ) -> Self {
        let (ballots, open) = (ballots.collect(), vec![true; members]);
        Self(Mutex::new(UnderWay { ballots, open, waiting: None }))
    }

    /// The next reply; `None` if there will be no more. It is noted before anyone else can find
    /// that its ballot has ended.
    pub(super) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        note: impl FnOnce(&Answer),
    ) -> Poll<Option<Answer>> {
        let mut under_way = self.lock();
        let Poll::Ready(next) = Pin::new(&mut under_way.ballots).poll_next(cx) else {
            under_way.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if let Some(answer) = &next {
            under_way.open[answer.0] = false;
            note(answer);
        }
        Poll::Ready(next)
    }

    /// Ends what is under way. Returns which members have not replied.
    pub(super) fn cancel(&self) -> Vec<usize> {
        let mut under_way = self.lock();
        let ballots = std::mem::take(&mut under_way.ballots);
        // Under the lock: when this returns, each member knows of the ballot that it may receive.
        drop(ballots);
        if let Some(waiting) = under_way.waiting.take() {
            waiting.wake();
        }
        let open = under_way.open.iter_mut().map(std::mem::take).enumerate();
        open.filter_map(|(member, open)| open.then_some(member)).collect()
    }

    /// Whether nothing is under way. `false` while another task takes a reply: it has this locked,
    /// and is about to lock the table of tokens, which the caller may have locked.
    pub(super) fn is_over(&self) -> bool {
        match self.0.try_lock() {
            Ok(under_way) => under_way.ballots.is_empty(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().ballots.is_empty(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").finish_non_exhaustive()
    }
}
