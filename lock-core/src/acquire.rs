//! One acquisition, from the wish to the guard.
//!
//! The record of the acquisition ([`Pending`]) exists *before* the first command is sent. Whatever
//! happens to the future after that, dropping the record hands the token to the next in line, or to the janitor.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::OwnedMutexGuard;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::bound::RunUntilLost;
use crate::client::Inner;
use crate::error::{Error, ErrorKind};
use crate::guard::MutexGuard;
use crate::held::{Granted, Held, Lease};
use crate::key::Key;
use crate::lease::{Chain, LeaseState, is_short};
use crate::options::{LockOptions, Terms, Wait};
use crate::registry::{Address, Handed, Pledge, Seat, Stand, Turn, Wants};
use crate::scope::{self, Holds, Scoped};
use crate::store::Token;
use crate::store::{AcquireContext, AcquireError, Claim, Grant, Name};
use crate::time::{Deadline, Instant, timeout_at};
use crate::tracker::TrackerToken;

/// A wait that is shorter than this is stretched to it: a round trip needs some time, too.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);
/// How much later than asked a store may give up; then the caller is told without it.
const GRACE: Duration = Duration::from_millis(50);
/// How long a claim without a wait stands behind a claim or release of the same key by this process.
const BEHIND_OWN_CLAIM: Duration = Duration::from_millis(500);

/// A wish that passed all checks that need no I/O.
pub(crate) struct Wish {
    pub(crate) client: Arc<Inner>,
    pub(crate) key: Key,
    pub(crate) address: Address,
    pub(crate) terms: Terms,
}

/// Takes a lock for a guard.
///
/// A future is copied whenever it moves: this one keeps the wish where it is, and holds no more than the common way needs.
#[allow(clippy::manual_async_fn)] // an async fn would hold the wish twice
pub(crate) fn lock(
    wish: Result<Wish, Error>,
) -> impl Future<Output = Result<MutexGuard, Error>> + Send + use<> {
    async move {
        let granted = match &wish {
            Ok(wish) => wish.ask_for_lease().await?,
            Err(error) => return Err(error.clone()),
        };
        let Wish { client, key, address, terms } = wish?;
        Ok(MutexGuard::new(Lease(Held::keep(client, key, address, terms, granted))))
    }
}

impl Wish {
    pub(crate) fn new(
        client: Arc<Inner>,
        key: Result<Key, Error>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let key = key?;
        let terms = options.or(client.defaults).terms()?;
        let address = client.registry.address(Name::new(&client.namespace, &key)?);
        Ok(Self { client, key, address, terms })
    }

    /// The same wish for one who does not wait.
    pub(crate) fn without_wait(mut self) -> Self {
        self.terms.wait = Wait::None;
        self
    }

    fn name(&self) -> &Name {
        self.address.name()
    }

    /// When to give up; `None`: never.
    fn until(&self, since: Instant) -> Option<Instant> {
        let wait = match self.terms.wait {
            Wait::Forever => return None,
            Wait::None => BEHIND_OWN_CLAIM,
            Wait::UpTo(wait) => wait.max(SHORTEST_WAIT),
        };
        Some(since.saturating_add(wait))
    }

    async fn ask_for_lease(&self) -> Result<Granted, Error> {
        self.client.ensure_running()?;
        if scope::find(self.client.id, self.name()).is_some() {
            return Err(Error::of(ErrorKind::WouldDeadlock));
        }
        let since = Instant::now();
        let span = tracing::debug_span!(
            target: "lock_core", "lock.acquire",
            key = self.key.label(), waited = Empty, fence = Empty, outcome = Empty,
        );
        if span.is_disabled() {
            drop(span);
            return self.acquire(since).await;
        }
        Box::pin(self.acquire_within(span, since)).await
    }

    /// Acquires within the span `lock.acquire`, which tells how long it took and what came of it.
    async fn acquire_within(&self, span: Span, since: Instant) -> Result<Granted, Error> {
        let result = self.acquire(since).instrument(span.clone()).await;
        let _here = span.enter();
        let (key, waited) = (self.key.label(), Instant::now().saturating_since(since));
        span.record("waited", tracing::field::debug(waited));
        match &result {
            Ok(granted) => {
                let fence = granted.chain.fence(self.terms.fencing);
                span.record("outcome", "acquired");
                span.record("fence", fence.get());
                tracing::debug!(target: "lock_core", key, ?waited, %fence, "lock acquired");
            }
            Err(error) => {
                span.record("outcome", tracing::field::debug(error.kind()));
                tracing::debug!(target: "lock_core", key, ?waited, %error, "lock not acquired");
            }
        }
        result
    }

    async fn acquire(&self, since: Instant) -> Result<Granted, Error> {
        let mut too_late = false;
        let outcome = self.acquire_in_time(since, &mut too_late).await;
        // Whatever came after a grant that was of no use.
        outcome.map_err(|error| {
            if too_late { error.in_doubt("an earlier claim got the lock, too late") } else { error }
        })
    }

    /// Tells in `too_late` whether a token got the lock when nothing was left of its lease.
    async fn acquire_in_time(&self, since: Instant, too_late: &mut bool) -> Result<Granted, Error> {
        let (until, waits) = (self.until(since), self.terms.wait != Wait::None);
        let wants = Wants { impatient: !waits, ttl: self.terms.ttl, fencing: self.terms.fencing };
        let mut timer = pin!(Deadline::default());
        let mut active = self.client.held.token();
        loop {
            let turn = match self.client.registry.stand(&self.address, wants)? {
                Stand::Seated(seat) => Turn::Seat(seat, None),
                Stand::InLine(mut waiter) => {
                    poll_fn(|cx| waiter.poll(until, timer.as_mut(), cx)).await?
                }
            };
            let (seat, pledge) = match turn {
                Turn::Seat(seat, pledge) => (seat, pledge),
                Turn::Lease(seat, lease, now) => return Ok(self.inherit(lease, seat, active, now)),
            };
            let mut pending = Pending::new(self, seat, pledge, active)?;
            let grant = pending.ask(until, timer.as_mut()).await?;
            let now = Instant::now();
            let state = LeaseState::granted(grant.since, grant.ttl, self.terms.max_hold, now);
            if let Ok(state) = state {
                if self.client.registry.is_draining() {
                    pending.give_back();
                    return Err(Error::of(ErrorKind::Draining));
                }
                return Ok(pending.granted(grant, state));
            }
            // The answer came too late for its lease. The token goes back; a new one may be in time.
            pending.give_back();
            *too_late = true;
            if !waits || until.is_some_and(|until| until <= now) {
                return Err(Error::plain(
                    ErrorKind::Unknown,
                    "the lock store answers too slowly for this ttl: the lease was over when it was \
                     granted",
                ));
            }
            active = self.client.held.token();
        }
    }

    /// A lease that its holder in this process handed on `now`.
    fn inherit(&self, lease: Handed, seat: Seat, active: TrackerToken, now: Instant) -> Granted {
        let Handed { token, chain, deadline, .. } = lease;
        let (ttl, max_hold) = (self.terms.ttl, self.terms.max_hold);
        Granted {
            token,
            chain: chain.next(ttl),
            state: LeaseState::handed_on(deadline, max_hold, now),
            is_short: is_short(now, deadline, ttl),
            seat,
            active,
        }
    }
}

/// An acquisition whose token may be in the store.
struct Pending<'a> {
    wish: &'a Wish,
    claim: Claim,
    /// The longest that was claimed with the token, by this task or by those who gave it up before.
    longest_ttl: Duration,
    /// `None` once the guard has it, or when nothing is left to release.
    seat: Option<Seat>,
    active: Option<TrackerToken>,
}

impl<'a> Pending<'a> {
    fn new(
        wish: &'a Wish,
        seat: Seat,
        pledge: Option<Pledge>,
        active: TrackerToken,
    ) -> Result<Self, Error> {
        let ttl = wish.terms.ttl;
        let (token, longest_ttl) = match pledge {
            Some(pledge) => (pledge.token, pledge.ttl.max(ttl)),
            #[cfg(lock_zoo)]
            None if mutant!("token-of-the-lock-object") => {
                (crate::zoo::token_of(wish.client.id, wish.name())?, ttl)
            }
            None => (Token::fresh()?, ttl),
        };
        let mut claim = Claim::new(wish.name().clone(), token, ttl);
        if !wish.terms.fencing {
            claim = claim.without_fencing();
        }
        Ok(Self { wish, claim, longest_ttl, seat: Some(seat), active: Some(active) })
    }

    /// Asks the store; until a little after `until`, or until the client drains, if it is a wish that waits.
    async fn ask(
        &mut self,
        until: Option<Instant>,
        mut timer: Pin<&mut Deadline>,
    ) -> Result<Grant, Error> {
        let (store, seat) = (&self.wish.client.store, self.seat.as_ref());
        let report = |progress| {
            if let Some(seat) = seat {
                seat.report(progress);
            }
        };
        let waiting = AcquireContext::new(until, &report);
        let waits = self.wish.terms.wait != Wait::None;
        let last_word = until.map(|until| until.saturating_add(GRACE));
        let answer = {
            let mut call = if waits {
                store.acquire(&self.claim, &waiting)
            } else {
                store.try_acquire(&self.claim)
            };
            poll_fn(|cx| {
                if let Poll::Ready(answer) = call.poll_unpin(cx) {
                    return Poll::Ready(answer);
                }
                if !waits {
                    return Poll::Pending;
                }
                if seat.is_some_and(|seat| seat.is_drained(cx)) {
                    return Poll::Ready(Err(AcquireError::in_doubt(Error::of(
                        ErrorKind::Draining,
                    ))));
                }
                ready!(timer.as_mut().poll_at(last_word, cx));
                Poll::Ready(Err(AcquireError::in_doubt(Error::of(ErrorKind::Unknown))))
            })
            .await
        };
        answer.map_err(|refusal| {
            if refusal.definite {
                self.seat = None;
            }
            refusal.error
        })
    }

    /// The store has granted it the lock, and nobody will hold it. Not for the next in line: what is answered to that one
    /// tells nothing of this grant.
    fn give_back(mut self) {
        if let Some(seat) = self.seat.take() {
            self.pledge().give_back(seat);
        }
    }

    fn pledge(&self) -> Pledge {
        let (token, ttl) = (self.claim.token, self.longest_ttl);
        Pledge { token, ttl, label: self.wish.key.label() }
    }

    /// A lease that the store granted.
    fn granted(mut self, grant: Grant, state: LeaseState) -> Granted {
        let Terms { ttl, fencing, .. } = self.wish.terms;
        let number = if fencing { grant.fence } else { 0 };
        Granted {
            token: self.claim.token,
            chain: Chain::new(number, state.granted_at(), self.longest_ttl),
            state,
            is_short: grant.ttl < ttl,
            seat: self.seat.take().expect("BUG: the seat stays until the claim is settled"),
            active: self.active.take().expect("BUG: it goes with the seat"),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take()
            && !mutant!("dropped-claim-is-forgotten")
        {
            self.pledge().pass_on(seat);
        }
    }
}

/// A lock entered by `run` or the macro: taken, or shared with the task's outer holder.
#[derive(Debug)]
pub struct Entered {
    holds: Holds,
    how: How,
}

#[derive(Debug)]
enum How {
    Own(MutexGuard),
    /// The turn among the siblings that share the outer lease.
    Nested {
        _turn: OwnedMutexGuard<()>,
    },
}

impl Entered {
    pub(crate) async fn enter(wish: Result<Wish, Error>) -> Result<Self, Error> {
        let wish = wish?;
        let Some(outer) = scope::find(wish.client.id, wish.name()) else {
            let guard = lock(Ok(wish)).await?;
            return Ok(Self { holds: Holds::own(guard.lease()), how: How::Own(guard) });
        };
        let lease = outer.lease().clone();
        wish.client.ensure_running()?;
        lease.0.observe().map_err(Error::lost)?;
        // It may have ended while siblings had their turns.
        let busy = || lease.0.observe().map_or_else(Error::lost, Error::busy);
        let turn = match wish.until(Instant::now()) {
            _ if wish.terms.wait == Wait::None => {
                outer.child().try_lock_owned().map_err(|_| busy())?
            }
            None => outer.child().lock_owned().await,
            Some(until) => {
                timeout_at(until, outer.child().lock_owned()).await.map_err(|_| busy())?
            }
        };
        lease.0.observe().map_err(Error::lost)?;
        Ok(Self { holds: Holds::nested(lease), how: How::Nested { _turn: turn } })
    }

    /// The lease that the body runs under.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.holds.lease().clone()
    }

    /// Drives `body` while the lease is good. Does not borrow the entry.
    pub fn bound<F: Future>(&self, body: F) -> RunUntilLost<F> {
        RunUntilLost::new(self.lease(), Scoped::new(self.holds.clone(), body))
    }

    /// Drives `body` to its end, whatever becomes of the lease.
    ///
    /// # Errors
    ///
    /// None; a `Result` like that of [`bound`](Self::bound), so that the caller is the same.
    #[allow(clippy::future_not_send)] // up to the body
    pub fn scoped<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, Error>> + use<F> {
        let body = Scoped::new(self.holds.clone(), body);
        async move { Ok(body.await) }
    }

    /// The mutant that lets the failure of the release be the result.
    #[cfg(lock_zoo)]
    pub(crate) async fn release_or_fail(self) -> Result<crate::Released, Error> {
        let How::Own(guard) = self.how else { return Ok(crate::Released::InTime) };
        guard.release().await
    }

    /// Leaves, and waits for the release if the lock was taken here. The body's result is not ours to
    /// replace, so a failure goes to the log and the janitor goes on.
    pub async fn release(self) {
        let How::Own(guard) = self.how else { return };
        let label = guard.key().label();
        if let Err(error) = guard.release().await {
            tracing::warn!(target: "lock_core", key = label, %error, "release not confirmed yet");
        }
    }
}
