//! Waiting for a taken lock.
//!
//! Waiters that all asked every member would split the votes, so each waits for its turn in the
//! queue of one member, the *conductor*: the same for all clients as long as it answers. When the
//! conductor has the lock for a waiter, that is a hint and no more: the waiter asks all members,
//! with the same token, and their votes decide. The lock of a conductor alone is worth nothing, so
//! clients that disagree on the conductor lose the order of arrival and no more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::failure::Failure;
use super::rounds::{HAND_OFF_TRIES, Quorum};
use crate::backoff::{Backoff, jittered};
use crate::error::Error;
use crate::store::{
    AcquireContext, AcquireError, Claim, Contended, Grant, Member, Name, Token, WaitEvent,
};
use crate::time::{Instant, sleep_until};

/// What the waits of a store share.
#[derive(Debug)]
pub(super) struct Waits {
    contended: Contended,
    /// By member: until when it is not made the conductor.
    unfit: Mutex<Vec<Instant>>,
}

/// A conductor that fails so often in a row is left for the next one.
const MOST_FAILURES: u32 = 2;
/// For how long it is left.
const LEFT_FOR: Duration = Duration::from_secs(5);
/// How often a waiter looks whether the lock is free on a majority, while its conductor has it for
/// another: what a claim that failed, or a foreign client, has left on one member alone.
const LOOK: Duration = Duration::from_secs(5);
/// It looks again after this, since a lock that is handed on is free here and there for a moment.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long after the end of a wait the last replies may still come. Less than what the client
/// gives a store to end a wait.
const LAST_REPLY: Duration = Duration::from_millis(40);

/// How the wait at a conductor ended.
enum Turn {
    /// It has the lock for this claim.
    Come {
        is_handed_on: bool,
    },
    /// It fails.
    Left,
    Ended(AcquireError),
}

impl Waits {
    pub(super) fn new(members: usize) -> Self {
        let unfit = Mutex::new(vec![Instant::from_origin(Duration::ZERO); members]);
        Self { contended: Contended::default(), unfit }
    }

    /// Claims until the lock is granted or the caller's time is over.
    pub(super) async fn acquire(
        &self,
        quorum: &Arc<Quorum>,
        claim: &Claim,
        context: &AcquireContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let mut backoff = Backoff::default();
        let (mut is_first, mut was_left) = (true, false);
        loop {
            let begun = quorum.tokens.begin(claim.token).map_err(AcquireError::definite)?;
            let (inner, is_waiting) = begun;
            let is_contended = !is_first || is_waiting || self.contended.contains(&claim.name);
            // Where a conductor fails, what all members say counts.
            let waits = is_contended && !was_left;
            let pauses = waits || was_left;
            (is_first, was_left) = (false, false);
            let mut is_handed_on = false;
            if waits {
                match self.turn(quorum, claim, inner, context).await {
                    Turn::Come { is_handed_on: handed_on } => is_handed_on = handed_on,
                    Turn::Left => {
                        // The place there is given up, and so is its token.
                        quorum.give_up(&claim.name, claim.token);
                        was_left = true;
                        continue;
                    }
                    Turn::Ended(failed) => {
                        return Err(give_up(quorum, &claim.name, claim.token, failed.error));
                    }
                }
            }
            let last = context.until().map(|until| until.saturating_add(LAST_REPLY));
            let limit = last.unwrap_or_else(|| Instant::now().saturating_add(FOREVER));
            let tries = if waits { HAND_OFF_TRIES } else { 0 };
            let claimed = quorum.claim(claim, inner, limit, tries).await;
            if waits {
                quorum.standings.metrics.turn(claimed.is_ok());
            }
            let failure = match claimed {
                Ok(grant) if is_handed_on => return Ok(grant.handed_on()),
                Ok(grant) => return Ok(grant),
                Err(failure) => failure,
            };
            let error = failure.error().clone();
            if error.is_busy() {
                self.contended.insert(&claim.name);
            }
            if context.is_over() || !error.is_busy() && !error.is_retryable() {
                return Err(give_up(quorum, &claim.name, claim.token, error));
            }
            self.avoid(&failure);
            quorum.give_up(&claim.name, claim.token);
            context.report(match error.retry_after() {
                Some(_) if error.is_without_expiry() => WaitEvent::Busy(Duration::MAX),
                Some(left) => WaitEvent::Busy(left),
                None => WaitEvent::Failed(error),
            });
            if pauses {
                // The conductor has no more than a hint, and this one was wrong, or it fails.
                let pause = Instant::now().saturating_add(backoff.next_pause());
                sleep_until(context.until().map_or(pause, |until| until.min(pause))).await;
            }
        }
    }

    /// Waits in the conductor's queue.
    async fn turn(
        &self,
        quorum: &Arc<Quorum>,
        claim: &Claim,
        inner: Token,
        context: &AcquireContext<'_>,
    ) -> Turn {
        let conductor = self.conductor(&claim.name);
        if !quorum.tokens.touch(claim.token, inner, conductor, claim.ttl) {
            return Turn::Ended(AcquireError::in_doubt(Failure::released().into_error()));
        }
        let member = &quorum.members[conductor];
        let claim = Claim::new(claim.name.clone(), inner, claim.ttl).without_fencing();
        let (failures, left) = (AtomicU32::new(0), Notify::new());
        let listener = |event: WaitEvent| {
            match &event {
                WaitEvent::Busy(_) => failures.store(0, Ordering::Relaxed),
                WaitEvent::Failed(_) => {
                    if failures.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_FAILURES {
                        left.notify_one();
                    }
                }
            }
            context.report(event);
        };
        let inside = AcquireContext::new(context.until(), &listener);
        let leave = || {
            self.avoid_until(conductor, Instant::now().saturating_add(LEFT_FOR));
            Turn::Left
        };
        tokio::select! {
            biased;
            reply = member.acquire(&claim, &inside) => match reply {
                Ok(grant) => Turn::Come { is_handed_on: grant.is_from_hand_off },
                Err(failed) if !failed.error.is_busy() && !context.is_over() => leave(),
                Err(failed) => Turn::Ended(failed),
            },
            () = left.notified() => leave(),
            () = until_free(quorum, &claim.name) => leave(),
        }
    }

    /// The member in whose queue clients wait for the lock.
    fn conductor(&self, name: &Name) -> usize {
        let now = Instant::now();
        let unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first_conductor(name, unfit.len());
        let order = (0..unfit.len()).map(|next| (first + next) % unfit.len());
        order.clone().find(|member| unfit[*member] <= now).unwrap_or(first)
    }

    /// Members in quarantine have lost their locks and their queues.
    fn avoid(&self, failure: &Failure) {
        for (member, left) in failure.quarantined() {
            self.avoid_until(*member, Instant::now().saturating_add(*left));
        }
    }

    fn avoid_until(&self, member: usize, until: Instant) {
        let mut unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        unfit[member] = unfit[member].max(until);
    }
}

/// A claim without an end of its wait is given up after this, and claimed anew.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Ends when the lock was free on a majority of the members twice in a row.
async fn until_free(quorum: &Quorum, name: &Name) {
    let mut pause = LOOK;
    loop {
        sleep_until(Instant::now().saturating_add(jittered(pause))).await;
        let look = async |member: &dyn Member| match member.inspector() {
            Some(inspector) => inspector.inspect(name).await.is_ok_and(|it| it.owner.is_none()),
            None => false,
        };
        let looks = join_all(quorum.members.iter().map(|member| look(&**member))).await;
        pause = match looks.into_iter().filter(|is_free| *is_free).count() >= quorum.majority() {
            true if pause == LOOK_AGAIN => return,
            true => LOOK_AGAIN,
            false => LOOK,
        };
    }
}

/// The same for all clients, of all versions: FNV-1a of the name.
fn first_conductor(name: &Name, members: usize) -> usize {
    let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let members = u64::try_from(members).unwrap_or(1).max(1);
    usize::try_from(hash % members).unwrap_or(0)
}

/// Gives up a claim that failed with `error`. What a minority may have is released, and the client
/// repeats that, so that it waits for the replies before it ends.
pub(super) fn give_up(
    quorum: &Arc<Quorum>,
    name: &Name,
    token: Token,
    error: Error,
) -> AcquireError {
    quorum.give_up(name, token);
    let endings = quorum.tokens.endings(token);
    if endings.iter().all(|ending| ending.is_over()) {
        quorum.tokens.forget(token);
        return AcquireError::definite(error);
    }
    AcquireError::in_doubt(error)
}
