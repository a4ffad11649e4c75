//! A lease that is held: what guard, renewer and watchers share, and the handle that watches it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

use crate::client::{Active, Inner};
use crate::driver::{Due, Job};
use crate::error::{Error, ErrorKind, LostReason};
use crate::fencing::FencingToken;
use crate::key::Key;
use crate::lease::{Chain, LeaseState, lift_due, renewal_due, renewal_patience, retry_due};
use crate::options::{Terms, check_ttl};
use crate::registry::{Address, Handed, Seat, Situation};
use crate::scope::Place;
use crate::store::{Name, Release, Renewal, Renewed};
use crate::time::{Deadline, Instant};
use crate::token::Token;
use crate::watch::{Watch, Watchers};

/// Watches a held lock, and can extend it, but not release it: that is the guard's right.
///
/// Cheap to clone and to send. It does not keep the lock: when the guard releases it, the lease is over.
#[derive(Clone)]
pub struct Lease(pub(crate) Arc<Held>);

/// The shared record of one held lock.
pub(crate) struct Held {
    pub(crate) client: Arc<Inner>,
    pub(crate) key: Key,
    address: Address,
    token: Token,
    chain: Chain,
    terms: Terms,
    /// Where its first entry stands among what that task holds.
    pub(crate) place: OnceLock<Place>,
    shared: Mutex<Shared>,
}

struct Shared {
    state: LeaseState,
    /// Who wants to know when the lease ends.
    watchers: Watchers,
    /// Given back when the lease ends, so that this process can claim the key again.
    seat: Option<Seat>,
    /// Counts the lease as held until its release begins.
    active: Option<Active>,
    /// Where the renewer has the lease in its schedule.
    due: Option<Due>,
    /// It was entered with less than its ttl, and the store has not confirmed the whole of it yet.
    is_short: bool,
}

/// What becomes of a lease that its guard ends.
pub(crate) enum Ended {
    /// It was ended before.
    Before,
    /// The next holder of this process has it; it was held this long.
    HandedOn(Duration),
    /// It goes back to the store; it was held this long.
    GivenBack(Job, Duration),
}

/// What the renewer shall do with a lease whose time has come.
pub(crate) enum OnDue {
    /// Nothing more: it is over.
    Forget,
    /// Look again then.
    LookAgain(Instant),
    Renew(Renewal),
}

impl Lease {
    /// What is locked.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The number of this grant: send it along with each write to a resource that checks it.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fence()
    }

    /// How long the lease is good for if nothing renews it; zero when it is over. Reads the clock, does no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.observe().unwrap_or(Duration::ZERO)
    }

    /// Whether the lease is good at this moment. Reads the clock, does no I/O.
    ///
    /// An answer about the past as soon as it is given: the process may be paused right after. What
    /// must not happen twice needs the [fencing token](Self::fencing_token) at the resource as well.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.observe().is_ok()
    }

    /// Waits until the lease is over, and says why.
    ///
    /// Ready at the local deadline, as exactly as the runtime's timers are, even if no answer comes from the store. A
    /// runtime that is blocked, or a machine that was suspended, tells it late: [`is_valid`](Self::is_valid) is exact.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: a lost lease stays lost, and the next call says so at once.
    pub async fn lost(&self) -> LostReason {
        let mut watch = Watch::new(self.clone());
        let mut deadline = pin!(Deadline::default());
        poll_fn(|cx| watch.poll_end(deadline.as_mut(), cx)).await
    }

    /// Makes the lease last at least `ttl` from now, or until `max_hold`; one round trip. Never shortens it.
    ///
    /// Later renewals keep the lock's own ttl, and do not shorten this one either.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may have lengthened its expiry without the lease knowing: it
    /// then ends earlier here than there, which is safe.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lease is over, [`Unknown`](ErrorKind::Unknown) or
    /// [`Unavailable`](ErrorKind::Unavailable) if the store did not confirm: the lease keeps the deadline that
    /// it had. [`InvalidOptions`](ErrorKind::InvalidOptions) if `ttl` is not within 100 ms and 24 h.
    pub fn extend(&self, ttl: Duration) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let held = Arc::clone(&self.0);
        async move {
            check_ttl(ttl)?;
            let left = held.observe().map_err(Error::lost)?;
            held.client.ensure_running()?;
            let until = Instant::now().saturating_add(left);
            let renewal = Renewal::new(held.name().clone(), held.token, ttl, until);
            let answer = held.client.store.renew(std::slice::from_ref(&renewal)).await.pop();
            held.apply(answer.unwrap_or_else(|| Err(Error::of(ErrorKind::Unknown))), ttl)?;
            held.observe().map(|_| ()).map_err(Error::lost)
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.0.key)
            .field("fencing_token", &self.0.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// What the holder of a lease got.
pub(crate) struct Granted {
    pub(crate) token: Token,
    pub(crate) chain: Chain,
    pub(crate) state: LeaseState,
    /// Whether noticeably less than the ttl of the terms is left.
    pub(crate) is_short: bool,
    pub(crate) seat: Seat,
    pub(crate) active: Active,
}

impl Held {
    /// Starts to keep a lease that was granted, by the store or by its holder before.
    pub(crate) fn keep(
        client: Arc<Inner>,
        key: Key,
        address: Address,
        terms: Terms,
        granted: Granted,
    ) -> Arc<Self> {
        let Granted { token, chain, state, is_short, seat, active } = granted;
        let deadline = state.deadline();
        // One to whom the lease was handed is known to hold it, until `max_hold` at most.
        if !chain.is_handed_on() || terms.max_hold.is_some() {
            seat.set(Situation::Held(deadline));
        }
        let lifted = is_short && !state.ends_by_hold();
        let now = state.granted_at();
        let shared = Shared {
            state,
            watchers: Watchers::default(),
            seat: Some(seat),
            active: Some(active),
            due: None,
            is_short,
        };
        let held = Arc::new(Self {
            client,
            key,
            address,
            token,
            chain,
            terms,
            place: OnceLock::new(),
            shared: Mutex::new(shared),
        });
        let first = if lifted {
            lift_due(now, deadline)
        } else if terms.renewal {
            renewal_due(now, deadline)
        } else {
            deadline
        };
        held.schedule(first);
        held
    }

    pub(crate) fn name(&self) -> &Name {
        self.address.name()
    }

    /// Whether what is due next is a renewal that may as well be sent a little earlier.
    pub(crate) fn is_renewed_regularly(&self) -> bool {
        self.terms.renewal && self.with(|shared, _| shared.state.is_sure() && !shared.is_short)
    }

    /// What is left of the lease, or why it is over.
    pub(crate) fn observe(&self) -> Result<Duration, LostReason> {
        self.with(|shared, now| shared.state.check(now))
    }

    /// Has the task of `cx` woken when the lease ends; why it has, if somebody said so already.
    pub(crate) fn watch(&self, place: &mut Option<u64>, cx: &Context<'_>) -> Option<LostReason> {
        let mut shared = self.lock();
        let told = shared.state.told();
        if told.is_none() {
            shared.watchers.register(place, cx.waker());
        }
        told
    }

    /// Forgets the watcher at `place`.
    pub(crate) fn unwatch(&self, place: u64) {
        self.lock().watchers.remove(place);
    }

    /// How many watch for its end.
    #[cfg(feature = "test-util")]
    pub(crate) fn watchers(&self) -> usize {
        self.with(|shared, _| shared.watchers.len())
    }

    /// How long it has been held.
    pub(crate) fn held_for(&self) -> Duration {
        let granted = self.with(|shared, _| shared.state.granted_at());
        Instant::now().saturating_since(granted)
    }

    /// The lease is over for `reason`, unless it was already.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.with(|shared, now| shared.state.lose(reason, now));
    }

    /// Takes in the answer to a renewal for `ttl`.
    pub(crate) fn apply(&self, answer: Result<Renewed, Error>, ttl: Duration) -> Result<(), Error> {
        let now = Instant::now();
        match answer {
            Ok(Renewed::Kept { since }) => {
                let deadline = self.with(|shared, now| {
                    shared.state.renewed(since, ttl, now);
                    shared.is_short &= ttl < self.terms.ttl;
                    shared.seat.is_some().then(|| shared.state.deadline())
                });
                if let Some(deadline) = deadline {
                    self.with_seat(|seat| seat.set(Situation::Held(deadline)));
                }
            }
            Ok(Renewed::Nobody) => self.lose(LostReason::Gone),
            Ok(Renewed::Other) => self.lose(LostReason::TakenByOther),
            Err(_) if mutant!("failed-renewal-is-a-loss") => self.lose(LostReason::Gone),
            Err(_) if mutant!("failed-renewal-counts") => {
                self.with(|shared, now| shared.state.renewed(now, ttl, now));
            }
            Err(error) => {
                self.with(|shared, _| shared.state.doubted(now));
                return Err(error);
            }
        }
        Ok(())
    }

    /// What the renewer shall do now that the lease is due.
    pub(crate) fn on_due(&self) -> OnDue {
        let next = self.with(|shared, now| {
            shared.due = None;
            if !mutant!("renewal-after-release") {
                shared.state.check(now).ok()?;
            }
            let deadline = shared.state.deadline();
            if !(self.terms.renewal || shared.is_short) || shared.state.ends_by_hold() {
                return Some(Err(deadline));
            }
            Some(Ok(renewal_patience(now, deadline)))
        });
        match next {
            None => OnDue::Forget,
            Some(Err(deadline)) => OnDue::LookAgain(deadline),
            Some(Ok(until)) => {
                OnDue::Renew(Renewal::new(self.name().clone(), self.token, self.terms.ttl, until))
            }
        }
    }

    /// Takes in the answer to the renewer's renewal, and has the lease looked at again in time.
    pub(crate) fn on_renewed(self: &Arc<Self>, answer: Result<Renewed, Error>, jitter: u8) {
        let was_sure =
            self.with(|shared, now| shared.state.check(now).is_ok() && shared.state.is_sure());
        let failed = match self.apply(answer, self.terms.ttl) {
            Ok(()) => false,
            Err(error) => {
                // Once for each doubt, not for each try.
                if was_sure {
                    tracing::warn!(
                        target: "lock_core", key = self.key.label(), fence = %self.fence(), %error,
                        "lock not renewed; trying again until its deadline"
                    );
                }
                true
            }
        };
        let next = self.with(|shared, now| {
            shared.state.check(now).ok()?;
            let deadline = shared.state.deadline();
            Some(if failed {
                retry_due(now, deadline, jitter).min(deadline)
            } else if self.terms.renewal {
                renewal_due(now, deadline)
            } else {
                deadline
            })
        });
        if let Some(next) = next {
            self.schedule(next);
        }
    }

    /// Has the renewer look at the lease at `at`.
    pub(crate) fn schedule(self: &Arc<Self>, at: Instant) {
        let due = self.client.renewer.schedule(Arc::downgrade(self), at);
        // A release that came in between has nothing to take back, so it is done here.
        let stale = {
            let mut shared = self.lock();
            if shared.state.is_released() { Some(due) } else { shared.due.replace(due) }
        };
        if let Some(stale) = stale {
            self.client.renewer.forget(stale);
        }
    }

    /// Ends the lease for its guard. From here on no renewal is sent, and late answers move nothing.
    pub(crate) fn end(&self) -> Ended {
        let (first, lost, seat, active, due, state, now) = self.with(|shared, now| {
            let lost = shared.state.check(now).err();
            let first = shared.state.begin_release();
            let Shared { state, seat, active, due, .. } = shared;
            (first, lost, seat.take(), active.take(), due.take(), state.clone(), now)
        });
        if let Some(due) = due
            && !mutant!("renewal-after-release")
        {
            self.client.renewer.forget(due);
        }
        if !first {
            return Ended::Before;
        }
        let held = now.saturating_since(state.granted_at());
        // Counted as held until somebody else counts: the next holder, who waits, or the janitor.
        let _active = active;
        let seat = match seat {
            Some(seat)
                if (lost.is_none() || mutant!("lost-lease-is-handed-on"))
                    && self.terms.min_hold.is_none() =>
            {
                let lease = Handed {
                    token: self.token,
                    chain: self.chain,
                    deadline: state.confirmed_until(),
                    label: self.key.label(),
                };
                match seat.hand_on(lease, now) {
                    Ok(()) => return Ended::HandedOn(held),
                    Err(seat) => Some(seat),
                }
            }
            seat => seat,
        };
        self.client.janitor.open();
        if let Some(seat) = &seat {
            seat.set_at(Situation::Releasing, now);
        }
        let hold_until = self.terms.min_hold.filter(|_| !mutant!("min-hold-is-ignored"));
        let hold_until = hold_until.map(|least| state.granted_at().saturating_add(least));
        let release = Release::new(self.name().clone(), self.token, hold_until);
        let (label, ttl) = (self.key.label(), self.chain.longest_ttl());
        let good_until = if lost.is_none() { Some(state.deadline()) } else { None };
        let confirmed = state.confirmed_until();
        let job = Job::of_lease(release, seat, label, ttl, good_until, confirmed, now);
        Ended::GivenBack(job, held)
    }

    fn fence(&self) -> FencingToken {
        self.chain.fence(self.terms.fencing)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_seat(&self, act: impl FnOnce(&Seat)) {
        let shared = self.lock();
        if let Some(seat) = &shared.seat {
            act(seat);
        }
    }

    /// Runs `act` on the shared record. If the lease ends in it, tells the watchers and gives the seat back.
    fn with<R>(&self, act: impl FnOnce(&mut Shared, Instant) -> R) -> R {
        let now = Instant::now();
        let mut shared = self.lock();
        let result = act(&mut shared, now);
        let Err(reason) = shared.state.check(now) else { return result };
        let watchers = std::mem::take(&mut shared.watchers);
        // On a release the seat goes along with it, so that the key is claimed again only behind it.
        let stays = reason == LostReason::Released || mutant!("lost-lease-is-handed-on");
        let seat = if stays { None } else { shared.seat.take() };
        drop(shared);
        if seat.is_some() {
            tracing::warn!(
                target: "lock_core", key = self.key.label(), fence = %self.fence(), %reason, "lock lost"
            );
        }
        drop(seat);
        watchers.wake();
        result
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("key", &self.key).finish_non_exhaustive()
    }
}
