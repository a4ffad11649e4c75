//! Leases in the memory of this process.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::{
    AcquireContext, AcquireError, BoxFuture, Capabilities, Claim, ForceReleaseListener,
    ForceReleaseListeners, Grant, Inspect, LockRecord, Name, Owner, Release, ReleaseReply,
    Released, Renewal, Renewed, Store, StoreHealth, WaitEvent,
};
use crate::error::Error;
use crate::store::Token;
use crate::time::{Instant, sleep_until, sleep_until_some};

/// A store in the memory of this process: the reference for other stores, and for tests.
///
/// Locks expire, and waiters are served first come, first served. A clone shares the locks, so
/// several clients on clones behave as several processes on one server.
///
/// Under a paused tokio clock (with the feature `test-util`) its leases follow that clock.
///
/// ```
/// use lock_core::{LockClient, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let one = LockClient::builder(store.clone()).build()?;
/// let two = LockClient::builder(store).build()?;
/// let guard = one.mutex("k").lock().await?;
/// assert!(two.mutex("k").try_lock().await?.is_none());
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    listeners: Arc<ForceReleaseListeners>,
}

#[derive(Default)]
struct State {
    locks: HashMap<Name, LockState>,
    /// From this many names on, expired locks are removed.
    sweep_at: usize,
    /// The latest grant number.
    latest: u64,
}

#[derive(Default)]
struct LockState {
    holder: Option<CurrentHolder>,
    queue: VecDeque<Waiter>,
}

struct CurrentHolder {
    token: Token,
    expires: Instant,
    /// Released under `min_hold`: the token no longer counts, the name stays taken.
    spent: bool,
    number: u64,
}

struct Waiter {
    token: Token,
    ttl: Duration,
    woken: Arc<Notify>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets every lock, as a server that restarts without its data.
    #[cfg(feature = "test-util")]
    pub fn flush(&self) {
        let mut state = self.lock();
        for lock in state.locks.values_mut() {
            lock.holder = None;
            lock.wake_first();
        }
    }

    /// How many names are held or waited for.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn len(&self) -> usize {
        let mut state = self.lock();
        state.forget_expired(Instant::now());
        state.locks.len()
    }

    /// Whether no name is held or waited for.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the lock to `claim` if it is free and no other waiter is first; else returns how long
    /// the lock is taken. A claim that does not `stay` leaves the queue in the same step, so that
    /// the lock is not handed to a waiter that is gone.
    fn claim(&self, claim: &Claim, stay: bool) -> Result<Grant, Duration> {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep(now);
        let State { locks, latest, .. } = &mut *state;
        let lock = locks.entry(claim.name.clone()).or_default();
        lock.expire(now);
        if lock.holder.is_none() {
            let first = lock.queue.front().is_none_or(|first| first.token == claim.token);
            if first {
                lock.leave(claim.token);
                lock.grant(claim.token, claim.ttl, now, latest);
            } else {
                lock.wake_first();
            }
        }
        if let Some(holder) = &mut lock.holder
            && holder.token == claim.token
            && !holder.spent
        {
            holder.expires = holder.expires.max(now.saturating_add(claim.ttl));
            return Ok(Grant::new(holder.number, now, claim.ttl));
        }
        if !stay {
            lock.leave(claim.token);
        }
        Err(lock
            .holder
            .as_ref()
            .map_or(Duration::ZERO, |holder| holder.expires.saturating_since(now)))
    }

    /// Joins the queue; the first waiter is woken when the lock becomes free.
    fn queue(&self, claim: &Claim) -> Arc<Notify> {
        let mut state = self.lock();
        let lock = state.locks.entry(claim.name.clone()).or_default();
        if let Some(waiter) = lock.queue.iter().find(|waiter| waiter.token == claim.token) {
            return Arc::clone(&waiter.woken);
        }
        let woken = Arc::new(Notify::new());
        lock.queue.push_back(Waiter {
            token: claim.token,
            ttl: claim.ttl,
            woken: Arc::clone(&woken),
        });
        woken
    }

    async fn wait(
        &self,
        claim: &Claim,
        context: &AcquireContext<'_>,
    ) -> Result<Grant, AcquireError> {
        let woken = self.queue(claim);
        let _leave = LeaveOnDrop { store: self, claim };
        loop {
            let over = context.is_over();
            let left = match self.claim(claim, !over) {
                Ok(grant) => return Ok(grant),
                Err(left) if over => return Err(AcquireError::definite(Error::busy(left))),
                Err(left) => left,
            };
            context.report(WaitEvent::Busy(left));
            let expiry = Instant::now().saturating_add(left.max(MIN_PAUSE));
            tokio::select! {
                () = woken.notified() => {}
                () = sleep_until(expiry) => {}
                () = sleep_until_some(context.until()) => {}
            }
        }
    }
}

/// A waiter that is not the first may find the lock free until the first waiter is polled. It looks
/// again after this pause.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Expired locks are not removed while there are fewer names than this.
const MIN_SWEEP: usize = 64;

/// Leaves the queue when the waiting future ends or is dropped.
struct LeaveOnDrop<'a> {
    store: &'a MemoryStore,
    claim: &'a Claim,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(lock) = state.locks.get_mut(&self.claim.name) {
            lock.leave(self.claim.token);
            lock.expire(Instant::now());
            if lock.holder.is_none() {
                lock.wake_first();
            }
            if lock.is_idle() {
                state.locks.remove(&self.claim.name);
            }
        }
    }
}

impl State {
    /// Forgets locks that expired without a release.
    fn forget_expired(&mut self, now: Instant) {
        self.locks.retain(|_, lock| {
            lock.expire(now);
            !lock.is_idle()
        });
    }

    /// Does so once the number of names has doubled, so that the cost per claim stays constant.
    fn sweep(&mut self, now: Instant) {
        if self.locks.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.forget_expired(now);
            self.sweep_at = self.locks.len() * 2;
        }
    }
}

impl LockState {
    fn expire(&mut self, now: Instant) {
        if self.holder.as_ref().is_some_and(|holder| holder.expires <= now) {
            self.holder = None;
        }
    }

    fn grant(&mut self, token: Token, ttl: Duration, now: Instant, latest: &mut u64) {
        *latest += 1;
        let expires = now.saturating_add(ttl);
        self.holder = Some(CurrentHolder { token, expires, spent: false, number: *latest });
    }

    fn leave(&mut self, token: Token) {
        self.queue.retain(|waiter| waiter.token != token);
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.front() {
            first.woken.notify_one();
        }
    }

    fn is_idle(&self) -> bool {
        self.holder.is_none() && self.queue.is_empty()
    }

    fn owner(&self, now: Instant) -> Option<Owner> {
        let CurrentHolder { token, expires, spent, .. } = self.holder.as_ref()?;
        Some(Owner::new(*token, Some(expires.saturating_since(now)), *spent))
    }
}

impl Store for MemoryStore {
    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            self.claim(claim, false).map_err(|left| AcquireError::definite(Error::busy(left)))
        })
    }

    fn acquire<'a>(
        &'a self,
        claim: &'a Claim,
        context: &'a AcquireContext<'a>,
    ) -> BoxFuture<'a, Result<Grant, AcquireError>> {
        Box::pin(async move {
            match self.claim(claim, true) {
                Ok(grant) => Ok(grant),
                Err(_) => self.wait(claim, context).await,
            }
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Renewed, Error>>> {
        Box::pin(
            async move { renewals.iter().map(|renewal| Ok(self.renew_one(renewal))).collect() },
        )
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(async move { Ok(ReleaseReply::definite(self.release_one(release))) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().with_fair().with_fencing()
    }

    fn inspector(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

impl Inspect for MemoryStore {
    fn inspect<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<LockRecord, Error>> {
        Box::pin(async move {
            let now = Instant::now();
            let mut state = self.lock();
            let State { locks, latest, .. } = &mut *state;
            let (owner, waiting) = locks.get_mut(name).map_or((None, 0), |lock| {
                lock.expire(now);
                (lock.owner(now), lock.queue.len())
            });
            Ok(LockRecord::new(owner, u64::try_from(waiting).ok(), *latest))
        })
    }

    fn force_release<'a>(
        &'a self,
        name: &'a Name,
        owner: &'a Owner,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let now = Instant::now();
            let mut state = self.lock();
            let State { locks, latest, .. } = &mut *state;
            let Some(lock) = locks.get_mut(name) else { return Ok(false) };
            lock.expire(now);
            let is_owner = |holder: &CurrentHolder| {
                owner.token == Some(holder.token) && owner.is_released == holder.spent
            };
            if !lock.holder.as_ref().is_some_and(is_owner) {
                return Ok(false);
            }
            lock.hand_on(now, latest);
            if lock.is_idle() {
                locks.remove(name);
            }
            drop(state);
            if let Some(token) = owner.token.filter(|_| !owner.is_released) {
                self.listeners.tell(token);
            }
            Ok(true)
        })
    }

    fn report_forced_releases(&self, listener: Weak<dyn ForceReleaseListener>) {
        self.listeners.add(listener);
    }

    fn list<'a>(
        &'a self,
        namespace: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Name>, Error>> {
        Box::pin(async move {
            let now = Instant::now();
            let mut state = self.lock();
            state.forget_expired(now);
            let held = state.locks.iter().filter(|(_, lock)| lock.holder.is_some());
            // A client without a namespace may have been the first with such a name.
            let is_in = |name: &&str| {
                name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with(':'))
            };
            let names = held.map(|(name, _)| name.as_str()).filter(is_in);
            Ok(names.take(most).filter_map(Name::from_store).collect())
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<StoreHealth, Error>> {
        Box::pin(async { Ok(StoreHealth::new("memory", Vec::new())) })
    }
}

#[cfg(all(feature = "redis-quorum", feature = "test-util"))]
impl MemoryStore {
    /// For members of a simulated quorum: takes the lock for `token` if it is free, no token waits
    /// for it and `takes`; lengthens it if the token has it.
    pub(crate) fn vote(&self, name: &Name, token: Token, ttl: Duration, takes: bool) -> Held {
        let now = Instant::now();
        let mut state = self.lock();
        state.sweep(now);
        let State { locks, latest, .. } = &mut *state;
        let lock = locks.entry(name.clone()).or_default();
        lock.expire(now);
        let others_wait = lock.queue.iter().any(|waiter| waiter.token != token);
        if lock.holder.is_none() && takes && !others_wait {
            lock.grant(token, ttl, now, latest);
        }
        match &mut lock.holder {
            Some(holder) if holder.token == token && !holder.spent => {
                holder.expires = holder.expires.max(now.saturating_add(ttl));
                Held::ByToken
            }
            Some(holder) => Held::ByOther(holder.expires.saturating_since(now)),
            None => {
                lock.wake_first();
                if lock.is_idle() {
                    locks.remove(name);
                }
                Held::Free
            }
        }
    }
}

/// Who has a lock, after a vote.
#[cfg(all(feature = "redis-quorum", feature = "test-util"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    ByToken,
    /// For so long.
    ByOther(Duration),
    Free,
}

impl MemoryStore {
    fn renew_one(&self, renewal: &Renewal) -> Renewed {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(lock) = state.locks.get_mut(&renewal.name) else { return Renewed::Gone };
        lock.expire(now);
        match &mut lock.holder {
            Some(holder) if holder.token == renewal.token && !holder.spent => {
                holder.expires = holder.expires.max(now.saturating_add(renewal.ttl));
                Renewed::Kept { since: now }
            }
            Some(_) => Renewed::TakenByOther,
            None => Renewed::Gone,
        }
    }

    pub(crate) fn release_one(&self, release: &Release) -> Released {
        let now = Instant::now();
        let mut state = self.lock();
        let State { locks, latest, .. } = &mut *state;
        let Some(lock) = locks.get_mut(&release.name) else { return Released::Expired };
        lock.expire(now);
        let outcome = match &mut lock.holder {
            Some(holder) if holder.token == release.token => {
                if !holder.spent {
                    match release.min_hold_ends {
                        Some(until) if until > now => {
                            (holder.spent, holder.expires) = (true, until);
                        }
                        _ => lock.hand_on(now, latest),
                    }
                }
                Released::InTime
            }
            Some(_) => Released::TakenByOther,
            None => Released::Expired,
        };
        if lock.is_idle() {
            locks.remove(&release.name);
        }
        outcome
    }
}

impl LockState {
    /// Gives the lock to the first waiter directly, so that no newcomer can take it in between.
    fn hand_on(&mut self, now: Instant, latest: &mut u64) {
        self.holder = None;
        if let Some(first) = self.queue.pop_front() {
            self.grant(first.token, first.ttl, now, latest);
            first.woken.notify_one();
        }
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    fn claim(key: &str, ttl: Duration) -> Claim {
        let name = Name::new(Some("test"), &Key::new(key.to_owned()).unwrap()).unwrap();
        Claim::new(name, Token::fresh().unwrap(), ttl)
    }

    /// The release hands the lock to a waiter whose future is about to return "busy".
    #[test]
    fn waiter_that_gave_up_is_not_handed_the_lock() {
        let store = MemoryStore::new();
        let (holder, waiter) =
            (claim("k", Duration::from_secs(60)), claim("k", Duration::from_secs(60)));
        store.claim(&holder, true).unwrap();
        let _turn = store.queue(&waiter);
        // The wait has ended, and its future was not dropped yet.
        let left = store.claim(&waiter, false).unwrap_err();
        assert!(left > Duration::ZERO);
        let release = Release::new(holder.name, holder.token, None);
        assert_eq!(store.release_one(&release), Released::InTime);
        assert!(store.lock().locks.is_empty(), "the lock went to a waiter that gave up");
    }

    #[test]
    fn expired_locks_are_forgotten_without_a_release() {
        let store = MemoryStore::new();
        for number in 0..10 * MIN_SWEEP {
            store.claim(&claim(&number.to_string(), Duration::ZERO), true).unwrap();
        }
        assert!(store.lock().locks.len() <= MIN_SWEEP, "{}", store.lock().locks.len());
    }
}
