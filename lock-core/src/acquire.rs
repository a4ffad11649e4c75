//! One acquisition, from the wish to the guard.
//!
//! The record of the acquisition ([`Pending`]) exists *before* the first command is sent. Whatever
//! happens to the future after that, dropping the record hands the token to the janitor.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tracing::Instrument;
use tracing::field::Empty;

use crate::bound::LeaseBound;
use crate::client::{Active, Inner};
use crate::driver::Job;
use crate::error::{Error, ErrorKind};
use crate::guard::MutexGuard;
use crate::held::{Granted, Held, Lease};
use crate::key::Key;
use crate::lease::{Chain, LeaseState, is_short};
use crate::options::{LockOptions, Terms, Wait};
use crate::registry::{Address, Handed, Seat, Situation, Turn, Wants};
use crate::scope::{self, Node, Scoped};
use crate::store::{Claim, Grant, Name, Refusal, Release, Waiting};
use crate::time::{Instant, sleep_until_some, timeout_at};
use crate::token::Token;

/// A wait that is shorter than this is stretched to it: a round trip needs some time, too.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);
/// How much later than asked a store may give up; then the caller is told without it.
const GRACE: Duration = Duration::from_millis(50);
/// How long a claim without a wait stands behind a claim or release of the same key by this process.
const BEHIND_OWN_CLAIM: Duration = Duration::from_millis(500);

/// A wish that passed all checks that need no I/O.
struct Wish {
    client: Arc<Inner>,
    key: Key,
    address: Address,
    terms: Terms,
    since: Instant,
}

impl Wish {
    fn new(
        client: Arc<Inner>,
        key: Result<Key, Error>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let key = key?;
        let terms = options.or(client.defaults).terms()?;
        let name = Name::new(&client.namespace, &key)?;
        let address = client.registry.address(name);
        client.ensure_running()?;
        Ok(Self { client, key, address, terms, since: Instant::now() })
    }

    /// When to give up; `None`: never.
    fn until(&self) -> Option<Instant> {
        let wait = match self.terms.wait {
            Wait::Forever => return None,
            Wait::None => BEHIND_OWN_CLAIM,
            Wait::UpTo(wait) => wait.max(SHORTEST_WAIT),
        };
        Some(self.since.saturating_add(wait))
    }

    /// Acquires within the span `lock.acquire`, which tells how long it took and what came of it.
    async fn acquire(self) -> Result<MutexGuard, Error> {
        let span = tracing::debug_span!(
            target: "lock_core", "lock.acquire",
            key = self.key.label(), waited = Empty, fence = Empty, outcome = Empty,
        );
        let (key, since) = (self.key.label(), self.since);
        let result = self.acquire_unreported().instrument(span.clone()).await;
        if span.is_disabled() {
            return result;
        }
        let _here = span.enter();
        let waited = Instant::now().saturating_since(since);
        span.record("waited", tracing::field::debug(waited));
        match &result {
            Ok(guard) => {
                let fence = guard.fencing_token();
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

    async fn acquire_unreported(self) -> Result<MutexGuard, Error> {
        let (until, waits) = (self.until(), self.terms.wait != Wait::None);
        let wants = Wants { impatient: !waits, ttl: self.terms.ttl, fencing: self.terms.fencing };
        let mut active = self.client.held.enter();
        loop {
            let seat = match self.client.registry.enter(&self.address, wants, until).await? {
                Turn::Seat(seat) => seat,
                Turn::Lease(seat, lease, now) => return Ok(self.inherit(lease, seat, active, now)),
            };
            let mut claim = Claim::exclusive(self.name().clone(), Token::fresh()?, self.terms.ttl);
            if !self.terms.fencing {
                claim = claim.without_fencing();
            }
            let mut pending =
                Pending { wish: &self, claim, seat: Some(seat), active: Some(active) };
            let grant = if waits { pending.wait(until).await? } else { pending.ask().await? };
            let now = Instant::now();
            let state = LeaseState::granted(grant.since, grant.ttl, self.terms.max_hold, now);
            if let Ok(state) = state {
                if self.client.registry.is_draining() {
                    return Err(Error::of(ErrorKind::Draining));
                }
                let (token, seat, active) = pending.keep();
                return Ok(self.granted(grant, state, token, seat, active));
            }
            // The answer came too late for its lease. The token goes back; a new one may be in time.
            if !waits || until.is_some_and(|until| until <= now) {
                return Err(Error::plain(
                    ErrorKind::Unavailable,
                    "the lock store answers too slowly for this ttl: the lease was over when it was \
                     granted",
                ));
            }
            drop(pending);
            active = self.client.held.enter();
        }
    }

    /// Enters a lease that the store granted.
    fn granted(
        self,
        grant: Grant,
        state: LeaseState,
        token: Token,
        seat: Seat,
        active: Active,
    ) -> MutexGuard {
        let Self { client, key, address, terms, .. } = self;
        let number = if terms.fencing { grant.fence } else { 0 };
        let chain = Chain::new(number, state.granted_at(), terms.ttl);
        let is_short = grant.ttl < terms.ttl;
        MutexGuard::new(Lease(Held::keep(Granted {
            client,
            key,
            address,
            token,
            chain,
            terms,
            state,
            is_short,
            seat,
            active,
        })))
    }

    /// Enters a lease that its holder in this process handed on `now`.
    fn inherit(self, lease: Handed, seat: Seat, active: Active, now: Instant) -> MutexGuard {
        let Self { client, key, address, terms, .. } = self;
        let Handed { token, chain, deadline, .. } = lease;
        MutexGuard::new(Lease(Held::keep(Granted {
            client,
            key,
            address,
            token,
            chain: chain.next(terms.ttl),
            terms,
            state: LeaseState::handed_on(deadline, terms.max_hold, now),
            is_short: is_short(now, deadline, terms.ttl),
            seat,
            active,
        })))
    }

    fn name(&self) -> &Name {
        self.address.name()
    }
}

/// An acquisition whose token may be in the store.
struct Pending<'a> {
    wish: &'a Wish,
    claim: Claim,
    /// `None` once the guard has it, or when nothing is left to release.
    seat: Option<Seat>,
    active: Option<Active>,
}

impl Pending<'_> {
    async fn ask(&mut self) -> Result<Grant, Error> {
        let answer = self.wish.client.store.try_acquire(&self.claim).await;
        self.settle(answer)
    }

    async fn wait(&mut self, until: Option<Instant>) -> Result<Grant, Error> {
        let seat = self.seat.as_ref();
        let report = |progress| {
            if let Some(seat) = seat {
                seat.report(progress);
            }
        };
        let waiting = Waiting::new(until, &report);
        let client = &self.wish.client;
        let last_word = until.map(|until| until.saturating_add(GRACE));
        let answer = tokio::select! {
            biased;
            answer = client.store.acquire(&self.claim, &waiting) => answer,
            () = client.registry.drained() => Err(Refusal::unsettled(Error::of(ErrorKind::Draining))),
            () = sleep_until_some(last_word) => Err(Refusal::unsettled(Error::of(ErrorKind::Unknown))),
        };
        self.settle(answer)
    }

    fn settle(&mut self, answer: Result<Grant, Refusal>) -> Result<Grant, Error> {
        answer.map_err(|refusal| {
            if refusal.settled {
                self.seat = None;
            } else if let Some(seat) = &self.seat {
                seat.set(Situation::Releasing);
            }
            refusal.error
        })
    }

    /// The token is held.
    fn keep(mut self) -> (Token, Seat, Active) {
        let seat = self.seat.take().expect("BUG: the seat stays until the claim is settled");
        let active = self.active.take().expect("BUG: it goes with the seat");
        (self.claim.token, seat, active)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            seat.set(Situation::Releasing);
            let Claim { name, token, ttl, .. } = &self.claim;
            let release = Release::new(name.clone(), *token, None);
            let job = Job::of_claim(release, Some(seat), self.wish.key.label(), *ttl);
            self.wish.client.janitor.open();
            self.wish.client.janitor.push(job);
        }
    }
}

/// Takes a lock for a guard.
pub(crate) async fn lock(
    client: Arc<Inner>,
    key: Result<Key, Error>,
    options: LockOptions,
) -> Result<MutexGuard, Error> {
    let wish = Wish::new(client, key, options)?;
    if scope::find(wish.client.id, wish.name()).is_some() {
        return Err(Error::of(ErrorKind::WouldDeadlock));
    }
    wish.acquire().await
}

/// A lock entered by `run` or the macro: taken, or shared with the task's outer holder.
#[derive(Debug)]
pub struct Entered {
    node: Arc<Node>,
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
    pub(crate) async fn enter(
        client: Arc<Inner>,
        key: Result<Key, Error>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let wish = Wish::new(client, key, options)?;
        let Some(outer) = scope::find(wish.client.id, wish.name()) else {
            let guard = wish.acquire().await?;
            return Ok(Self { node: Node::of(guard.lease()), how: How::Own(guard) });
        };
        let lease = outer.lease().clone();
        lease.0.observe().map_err(Error::lost)?;
        let busy = || Error::busy(lease.remaining());
        let turn = match wish.until() {
            _ if wish.terms.wait == Wait::None => {
                outer.child().try_lock_owned().map_err(|_| busy())?
            }
            None => outer.child().lock_owned().await,
            Some(until) => {
                timeout_at(until, outer.child().lock_owned()).await.map_err(|_| busy())?
            }
        };
        Ok(Self { node: Node::of(lease), how: How::Nested { _turn: turn } })
    }

    /// The lease that the body runs under.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.node.lease().clone()
    }

    /// Drives `body` while the lease is good. Does not borrow the entry.
    pub fn bound<F: Future>(&self, body: F) -> LeaseBound<F> {
        LeaseBound::new(self.lease(), Scoped::new(Arc::clone(&self.node), body))
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
        let body = Scoped::new(Arc::clone(&self.node), body);
        async move { Ok(body.await) }
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
