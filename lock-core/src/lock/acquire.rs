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
use crate::lease::{HandOffChain, LeaseState, is_short};
use crate::options::{LockOptions, ResolvedOptions, Wait};
use crate::registry::{Admission, HandedClaim, HandedLease, LocalTurn, Wakeup};
use crate::state::ClientState;
use crate::store::{AcquireContext, AcquireError, Claim, Grant, Name, Token, WaitEvent};
use crate::time::{Deadline, Instant};
use crate::tracker::TrackerToken;

/// A shorter wait is extended to this: a round trip takes some time, too.
const MIN_WAIT: Duration = Duration::from_millis(50);
/// How much later than requested a store may end its wait. After that the caller gets an error
/// without the store's reply.
const GRACE: Duration = Duration::from_millis(50);
/// How long a claim without a wait queues behind a claim or release of the same key by this
/// process.
const BEHIND_OWN_CLAIM: Duration = Duration::from_millis(500);

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
        let options = options.or(client.defaults).resolve()?;
        let name = Name::new(&client.namespace, &key)?;
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

    async fn acquire(&self) -> Result<Granted, Error> {
        self.client.ensure_running()?;
        if held::find(self.client.id, &self.name).is_some() {
            return Err(Error::of(ErrorKind::WouldDeadlock));
        }
        let since = Instant::now();
        let waiting = self.client.metrics.of(self.key.label()).waiting(since);
        let result = self.acquire_traced(since).await;
        waiting.end(&result);
        result
    }

    async fn acquire_traced(&self, since: Instant) -> Result<Granted, Error> {
        let span = tracing::debug_span!(
            target: "lock_core", "lock.acquire",
            key = self.key.label(), waited_seconds = Empty, fence = Empty, outcome = Empty,
        );
        if span.is_disabled() {
            drop(span);
            return self.acquire_since(since).await;
        }
        Box::pin(self.acquire_in_span(span, since)).await
    }

    /// Acquires within the span `lock.acquire`, which records the duration and the outcome.
    async fn acquire_in_span(&self, span: Span, since: Instant) -> Result<Granted, Error> {
        let result = self.acquire_since(since).instrument(span.clone()).await;
        let _entered = span.enter();
        let key = self.key.label();
        let waited_seconds = Instant::now().saturating_since(since).as_secs_f64();
        span.record("waited_seconds", waited_seconds);
        match &result {
            Ok(granted) => {
                let fence = granted.chain.fence(self.options.fencing);
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

    async fn acquire_since(&self, since: Instant) -> Result<Granted, Error> {
        let mut late_grant = false;
        let outcome = self.acquire_with(since, &mut late_grant).await;
        // After a grant that came too late, "nothing was done" is no longer true of the
        // acquisition.
        outcome.map_err(|error| {
            if late_grant {
                error.in_doubt("an earlier claim got the lock, too late")
            } else {
                error
            }
        })
    }

    /// Sets `late_grant` if a token got the lock when too little of its lease was left.
    async fn acquire_with(&self, since: Instant, late_grant: &mut bool) -> Result<Granted, Error> {
        let until = self.until(since);
        let mut timer = pin!(Deadline::default());
        let mut tracked = self.client.held.token();
        loop {
            let wakeup = match self.client.registry.admit(&self.name, self.options)? {
                Admission::Turn(turn) => Wakeup::Turn(turn, None),
                Admission::Queued(mut waiter) => {
                    poll_fn(|cx| waiter.poll(until, timer.as_mut(), cx)).await?
                }
            };
            let (turn, claim) = match wakeup {
                Wakeup::Turn(turn, claim) => (turn, claim),
                Wakeup::Lease(turn, lease, now) => {
                    return Ok(self.enter_handed(lease, turn, tracked, now));
                }
            };
            let mut pending = Pending::new(self, turn, claim, tracked)?;
            let grant = pending.claim(until, timer.as_mut()).await?;
            let now = Instant::now();
            let state = LeaseState::granted(grant.since, grant.ttl, self.options.max_hold, now);
            if let Ok(state) = state {
                if self.client.registry.is_draining() {
                    pending.give_back();
                    return Err(Error::of(ErrorKind::Draining));
                }
                return Ok(pending.granted(grant, state));
            }
            // The reply came too late for its lease. The token goes back; a new one may be in time.
            pending.give_back();
            *late_grant = true;
            if !self.options.waits() || until.is_some_and(|until| until <= now) {
                return Err(Error::plain(
                    ErrorKind::Unknown,
                    "the lock store replies too slowly for this ttl: the lease had ended when it \
                     was granted",
                ));
            }
            tracked = self.client.held.token();
        }
    }

    /// Enters a lease that its holder in this process handed on `now`.
    fn enter_handed(
        &self,
        lease: HandedLease,
        turn: LocalTurn,
        tracked: TrackerToken,
        now: Instant,
    ) -> Granted {
        let HandedLease { token, chain, deadline, .. } = lease;
        let (ttl, max_hold) = (self.options.ttl, self.options.max_hold);
        Granted {
            token,
            chain: chain.next(ttl),
            state: LeaseState::handed_on(deadline, max_hold, now),
            is_short: is_short(now, deadline, ttl),
            is_handed_over: false,
            turn,
            tracked,
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
                turn.set_status(crate::registry::Status::Waiting(event));
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
        let number = if fencing { grant.fence } else { 0 };
        Granted {
            token: self.claim.token,
            chain: HandOffChain::new(number, state.granted_at(), self.longest_ttl),
            state,
            is_short: grant.ttl < ttl,
            is_handed_over: grant.is_handed_over,
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
