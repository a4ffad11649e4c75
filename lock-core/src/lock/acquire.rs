//! One acquisition, from the request to the guard.
//!
//! The record of an acquisition ([`Pending`]) exists *before* its first command is sent. If the
//! future is dropped at any point after that, dropping the record hands the token to the next local
//! waiter or to the releaser.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::guard::MutexGuard;
use crate::error::{Error, ErrorKind};
use crate::held::{self, Granted, Lease, LeaseInner};
use crate::key::Key;
use crate::lease::{HandOffChain, LeaseState, TooLate, is_short};
use crate::options::{LockOptions, ResolvedOptions, Wait};
use crate::registry::{Admission, Assignment, HandedClaim, HandedLease, LocalTurn, Status};
use crate::state::ClientState;
use crate::store::{AcquireContext, AcquireError, Claim, Grant, Name, Owner, Token, WaitEvent};
use crate::time::{Deadline, Instant, sleep_until};
use crate::tracker::TrackerToken;

/// A shorter wait is extended to this: a round trip takes some time, too.
const MIN_WAIT: Duration = Duration::from_millis(50);
/// How much later than requested a store may end its wait. After that the caller gets an error
/// without the store's reply.
const GRACE: Duration = Duration::from_millis(50);
/// How long a claim without a wait queues behind a claim or release of the same key by this
/// process.
const BEHIND_OWN_CLAIM: Duration = Duration::from_millis(500);

/// How often a process looks at a key that it leaves to others: their sections may be short, and
/// the key should not be idle behind them.
const LOOK: Duration = Duration::from_millis(1);

/// A validated request for a lock.
pub(crate) struct AcquireRequest {
    pub(crate) client: Arc<ClientState>,
    pub(crate) key: Key,
    pub(crate) name: Name,
    pub(crate) options: ResolvedOptions,
}

/// Takes a lock for a guard.
///
/// A future is copied whenever it moves. This one keeps the request in place, and holds no more
/// than the usual case needs.
#[allow(clippy::manual_async_fn)] // an async fn would hold the request twice
pub(crate) fn lock(
    request: Result<AcquireRequest, Error>,
) -> impl Future<Output = Result<MutexGuard, Error>> + Send + use<> {
    async move {
        let granted = match &request {
            Ok(request) => request.acquire().await?,
            Err(error) => return Err(error.clone()),
        };
        let AcquireRequest { client, key, name, options } = request?;
        Ok(MutexGuard::new(Lease(LeaseInner::keep(client, key, name, options, granted))))
    }
}

impl AcquireRequest {
    pub(crate) fn new(
        client: Arc<ClientState>,
        key: Result<Key, Error>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let key = key?;
        let options = options.or(client.defaults).resolve()?.within(client.longest_ttl)?;
        let name = Name::new(client.namespace.as_deref(), &key)?;
        Ok(Self { client, key, name, options })
    }

    /// The same request without a wait.
    pub(crate) fn without_wait(mut self) -> Self {
        self.options.wait = Wait::None;
        self
    }

    /// When to give up; `None`: never.
    pub(super) fn until(&self, since: Instant) -> Option<Instant> {
        let wait = match self.options.wait {
            Wait::Forever => return None,
            Wait::None => BEHIND_OWN_CLAIM,
            Wait::UpTo(wait) => wait.max(MIN_WAIT),
        };
        Some(since.saturating_add(wait))
    }

    /// Takes the lock, and tells operators how that went: by metrics, a warning if it was slow, and
    /// a span if a subscriber wants it.
    async fn acquire(&self) -> Result<Granted, Error> {
        let since = Instant::now();
        let waiting = self.client.metrics.of(self.key.label()).waiting(since);
        if let Err(error) = self.may_begin() {
            let refused = Err(error);
            waiting.end(&refused);
            return refused;
        }
        let limit = self.client.slow.wait;
        let mut slow = limit.map(|limit| SlowWait { request: self, since, limit, outcome: None });
        // The span is moved out of here at once: a binding of it would take its room in the future
        // of each acquisition, also of those that have none.
        let in_span = self.span().map(|span| Box::pin(self.acquire_in_span(span, since)));
        let result = match in_span {
            None => self.acquire_in_time(since).await,
            Some(acquired) => acquired.await,
        };
        if let Some(slow) = &mut slow {
            slow.outcome =
                Some(result.as_ref().map_or_else(|e| e.kind().outcome(), |_| "acquired"));
        }
        waiting.end(&result);
        result
    }

    fn may_begin(&self) -> Result<(), Error> {
        self.client.ensure_running()?;
        match held::find(self.client.local_id, &self.name) {
            Some(_) => Err(Error::of(ErrorKind::WouldDeadlock)),
            None => Ok(()),
        }
    }

    fn span(&self) -> Option<Span> {
        let span = tracing::debug_span!(
            target: "lock_core", "lock.acquire",
            key = self.key.label(), waited_seconds = Empty, fence = Empty, outcome = Empty,
        );
        (!span.is_disabled()).then_some(span)
    }

    /// Acquires within the span `lock.acquire`, which records the duration and the outcome.
    async fn acquire_in_span(&self, span: Span, since: Instant) -> Result<Granted, Error> {
        let result = self.acquire_in_time(since).instrument(span.clone()).await;
        let _entered = span.enter();
        let key = self.key.label();
        let waited_seconds = Instant::now().saturating_since(since).as_secs_f64();
        span.record("waited_seconds", waited_seconds);
        match &result {
            Ok(granted) => {
                let fence = granted.chain.fencing_token(self.options.fencing);
                span.record("outcome", "acquired");
                span.record("fence", fence.get());
                tracing::debug!(target: "lock_core", key, waited_seconds, %fence, "lock acquired");
            }
            Err(error) => {
                span.record("outcome", error.kind().outcome());
                let error = error.with_causes();
                tracing::debug!(target: "lock_core", key, waited_seconds, error, "lock not acquired");
            }
        }
        result
    }

    fn warn_without_expiry(&self) {
        self.client.warn_without_expiry(&self.name, self.key.label());
    }

    /// Takes the lock while there is time. A grant that comes too late is given back, and the next
    /// attempt uses a new token.
    async fn acquire_in_time(&self, since: Instant) -> Result<Granted, Error> {
        let until = self.until(since);
        let mut timer = pin!(Deadline::default());
        let mut late_grant = false;
        let error = loop {
            match self.attempt(until, timer.as_mut()).await {
                Ok(Ok(granted)) => return Ok(granted),
                Ok(Err(TooLate)) => late_grant = true,
                Err(error) => break error,
            }
            if !self.options.waits() || until.is_some_and(|until| until <= Instant::now()) {
                break Error::plain(
                    ErrorKind::Unknown,
                    "the lock store replies too slowly for this ttl: too little of the lease was \
                     left when it was granted",
                );
            }
        };
        // After a late grant, "nothing was done" is no longer true of the acquisition.
        Err(if late_grant {
            error.in_doubt("an earlier claim got the lock, too late")
        } else {
            error
        })
    }

    /// Waits for the turn to act on the key, and claims the lock with one token. A lease that is
    /// handed on in this process comes with the turn.
    async fn attempt(
        &self,
        until: Option<Instant>,
        mut timer: Pin<&mut Deadline>,
    ) -> Result<Result<Granted, TooLate>, Error> {
        let tracked = self.client.held.token();
        let (turn, assignment) =
            match self.client.registry.admit(&self.name, self.key.label(), self.options)? {
                Admission::Turn(turn) => (turn, Assignment::Turn),
                Admission::Queued(mut waiter) => {
                    poll_fn(|cx| waiter.poll(until, timer.as_mut(), cx)).await?
                }
            };
        let claim = match assignment {
            Assignment::Turn => None,
            Assignment::Claim(claim) => Some(claim),
            Assignment::Lease(lease, now) => {
                return Ok(Ok(self.enter_handed(lease, turn, tracked, now)));
            }
        };
        if self.options.turns_for_others && claim.is_none() {
            // Boxed: most acquisitions need no room for it.
            Box::pin(self.stay_away(&turn, until)).await?;
        }
        let mut pending = Pending::new(self, turn, claim, tracked)?;
        let grant = pending.claim(until, timer).await?;
        let now = Instant::now();
        if self.options.turns_for_others {
            self.client.turns_for_others.had(&self.name, grant.behind_others, now);
        }
        match LeaseState::granted(grant.since, grant.ttl, self.options.max_hold, now) {
            Ok(_) if self.client.registry.is_draining() => {
                pending.give_back();
                Err(Error::of(ErrorKind::Draining))
            }
            Ok(state) => Ok(Ok(pending.granted(grant, state))),
            Err(late) => {
                pending.give_back();
                Ok(Err(late))
            }
        }
    }

    /// Waits while this process leaves the key to clients of other libraries.
    async fn stay_away(&self, turn: &LocalTurn, until: Option<Instant>) -> Result<(), Error> {
        let (client, now) = (&self.client, Instant::now());
        let Some(open_until) = client.turns_for_others.open_until(&self.name, now) else {
            return Ok(());
        };
        let left = open_until.saturating_since(now);
        if !self.options.waits() {
            return Err(Error::busy(left));
        }
        turn.set_status(Status::Waiting(WaitEvent::Busy(left)));
        let mut watch = pin!(self.watch_others(open_until, until));
        let (was_used, waiting) = poll_fn(|cx| {
            if let Poll::Ready(seen) = watch.as_mut().poll(cx) {
                return Poll::Ready(Ok(seen));
            }
            if turn.is_draining(cx) {
                return Poll::Ready(Err(Error::of(ErrorKind::Draining)));
            }
            Poll::Pending
        })
        .await?;
        client.turns_for_others.close(&self.name, was_used, waiting, Instant::now());
        turn.set_status(Status::Claiming);
        Ok(())
    }

    /// Looks at the key until another client has it, or it is this process's turn again. Returns
    /// whether one had it, and how many processes waited. The claim looks for the end of its turn.
    async fn watch_others(&self, open_until: Instant, until: Option<Instant>) -> (bool, u64) {
        let Some(inspector) = self.client.store.inspector() else { return (false, 0) };
        let mut waiting = 0;
        let until = until.map_or(open_until, |until| until.min(open_until));
        while Instant::now() < until {
            let record = tokio::select! {
                record = inspector.inspect(&self.name) => record,
                () = sleep_until(until) => break,
            };
            // What is wrong with the store, the claim meets as well.
            let Ok(record) = record else { return (true, waiting) };
            waiting = record.waiting.unwrap_or(0);
            match record.owner {
                None => {}
                // The release is on its way, or keeps the key a moment longer.
                Some(owner) if self.is_own(&owner) => {}
                // Also if a waiter of another process has it: the turn was not in vain.
                Some(_) => return (true, waiting),
            }
            sleep_until(Instant::now().saturating_add(LOOK)).await;
        }
        // A caller with less time says nothing about the others.
        (until < open_until, waiting)
    }

    fn is_own(&self, owner: &Owner) -> bool {
        owner.token.is_some_and(|token| token.client() == self.client.client_id)
    }

    /// Enters a lease that its holder in this process handed on, and that was taken at `now`.
    #[allow(clippy::needless_pass_by_value)] // it is entered once
    fn enter_handed(
        &self,
        lease: HandedLease,
        turn: LocalTurn,
        tracked: TrackerToken,
        now: Instant,
    ) -> Granted {
        let HandedLease { token, chain, confirmed_until, .. } = lease;
        let (ttl, max_hold) = (self.options.ttl, self.options.max_hold);
        Granted {
            token,
            chain: chain.next(ttl),
            state: LeaseState::handed_on(confirmed_until, max_hold, now),
            is_short: is_short(now, confirmed_until, ttl),
            is_from_hand_off: false,
            turn,
            tracked,
        }
    }
}

/// Logs a warning if the acquisition took longer than `limit`, also if its future is dropped.
struct SlowWait<'a> {
    request: &'a AcquireRequest,
    since: Instant,
    limit: Duration,
    outcome: Option<&'static str>,
}

impl Drop for SlowWait<'_> {
    fn drop(&mut self) {
        let waited = Instant::now().saturating_since(self.since);
        if waited > self.limit {
            tracing::warn!(
                target: "lock_core", key = self.request.key.label(),
                waited_seconds = waited.as_secs_f64(), limit_seconds = self.limit.as_secs_f64(),
                outcome = self.outcome.unwrap_or("cancelled"),
                "the lock was waited for longer than the limit for a warning"
            );
        }
    }
}

/// An acquisition whose token may be in the store.
struct Pending<'a> {
    request: &'a AcquireRequest,
    claim: Claim,
    /// The longest ttl claimed with the token, by this task or by the tasks that gave it up before.
    longest_ttl: Duration,
    /// `None` once the guard has it, or when nothing is left to release.
    turn: Option<LocalTurn>,
    tracked: Option<TrackerToken>,
}

impl<'a> Pending<'a> {
    fn new(
        request: &'a AcquireRequest,
        turn: LocalTurn,
        claim: Option<HandedClaim>,
        tracked: TrackerToken,
    ) -> Result<Self, Error> {
        let ttl = request.options.ttl;
        let (token, longest_ttl) = match claim {
            Some(claim) => (claim.token, claim.longest_ttl.max(ttl)),
            None => (Token::of(request.client.client_id)?, ttl),
        };
        let mut claim = Claim::new(request.name.clone(), token, ttl);
        if !request.options.fencing {
            claim = claim.without_fencing();
        }
        if request.options.turns_for_others {
            claim = claim.beside_others();
        }
        Ok(Self { request, claim, longest_ttl, turn: Some(turn), tracked: Some(tracked) })
    }

    /// Claims the lock. A request that waits ends a little after `until`, or when the client
    /// drains.
    async fn claim(
        &mut self,
        until: Option<Instant>,
        mut timer: Pin<&mut Deadline>,
    ) -> Result<Grant, Error> {
        let (store, turn) = (&self.request.client.store, self.turn.as_ref());
        let report = |event: WaitEvent| {
            if matches!(event, WaitEvent::Busy(Duration::MAX)) {
                self.request.warn_without_expiry();
            }
            if let Some(turn) = turn {
                turn.set_status(Status::Waiting(event));
            }
        };
        let context = AcquireContext::new(until, &report);
        let waits = self.request.options.waits();
        let give_up = until.map(|until| until.saturating_add(GRACE));
        let reply = {
            let mut call = if waits {
                store.acquire(&self.claim, &context)
            } else {
                store.try_acquire(&self.claim)
            };
            poll_fn(|cx| {
                if let Poll::Ready(reply) = call.poll_unpin(cx) {
                    return Poll::Ready(reply);
                }
                if !waits {
                    return Poll::Pending;
                }
                if turn.is_some_and(|turn| turn.is_draining(cx)) {
                    return Poll::Ready(Err(AcquireError::in_doubt(Error::of(
                        ErrorKind::Draining,
                    ))));
                }
                ready!(timer.as_mut().poll_at(give_up, cx));
                Poll::Ready(Err(AcquireError::in_doubt(Error::of(ErrorKind::Unknown))))
            })
            .await
        };
        reply.map_err(|failed| {
            if failed.error.is_without_expiry() {
                self.request.warn_without_expiry();
            }
            if failed.definite {
                self.turn = None;
            }
            failed.error
        })
    }

    /// Gives back a grant that this process will not use. The next local waiter claims anew: its
    /// errors must not depend on this grant.
    fn give_back(mut self) {
        if let Some(turn) = self.turn.take() {
            turn.give_back_claim(self.handed_claim());
        }
    }

    fn handed_claim(&self) -> HandedClaim {
        let (token, longest_ttl) = (self.claim.token, self.longest_ttl);
        HandedClaim { token, longest_ttl, label: self.request.key.label() }
    }

    /// The store has granted the claim.
    fn granted(mut self, grant: Grant, state: LeaseState) -> Granted {
        let ResolvedOptions { ttl, fencing, .. } = self.request.options;
        let number = if fencing { grant.number } else { 0 };
        Granted {
            token: self.claim.token,
            chain: HandOffChain::new(number, state.granted_at(), self.longest_ttl),
            state,
            is_short: grant.ttl < ttl,
            is_from_hand_off: grant.is_from_hand_off,
            turn: self.turn.take().expect("BUG: the turn stays until the claim is decided"),
            tracked: self.tracked.take().expect("BUG: it goes with the turn"),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            turn.pass_on_claim(self.handed_claim());
        }
    }
}
