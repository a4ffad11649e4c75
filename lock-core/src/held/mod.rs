//! A lease that is held: what guard, renewer and watchers share.

mod lease;
mod renewal;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

pub use self::lease::Lease;
pub(crate) use self::renewal::OnDue;
use crate::client::Inner;
use crate::driver::{Due, Job};
use crate::error::LostReason;
use crate::fencing::FencingToken;
use crate::key::Key;
use crate::lease::{Chain, LeaseState, lift_due, renewal_due};
use crate::options::Terms;
use crate::registry::{Address, Handed, Seat, Situation};
use crate::scope::Place;
use crate::store::Token;
use crate::store::{Name, Release};
use crate::time::Instant;
use crate::tracker::TrackerToken;
use crate::watch::Watchers;

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
    active: Option<TrackerToken>,
    /// Where the renewer has the lease in its schedule.
    due: Option<Due>,
    /// It was entered with less than its ttl, and the store has not confirmed the whole of it yet.
    is_short: bool,
    /// The longest that its guard has asked for beside its ttl, whether the store answered or not.
    extended_for: Duration,
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

/// What the holder of a lease got.
pub(crate) struct Granted {
    pub(crate) token: Token,
    pub(crate) chain: Chain,
    pub(crate) state: LeaseState,
    /// Whether noticeably less than the ttl of the terms is left.
    pub(crate) is_short: bool,
    pub(crate) seat: Seat,
    pub(crate) active: TrackerToken,
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
            extended_for: Duration::ZERO,
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

    /// What is left of the lease, or why it is over. If it is not, the store may be asked to keep it for `ttl` from now on.
    pub(crate) fn extends(&self, ttl: Duration) -> Result<Duration, LostReason> {
        self.with(|shared, now| {
            let left = shared.state.check(now)?;
            shared.extended_for = shared.extended_for.max(ttl);
            Ok(left)
        })
    }

    /// The lease is over for `reason`, unless it was already.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.with(|shared, now| shared.state.lose(reason, now));
    }

    /// Ends the lease for its guard. From here on no renewal is sent, and late answers move nothing.
    pub(crate) fn end(&self) -> Ended {
        let (first, lost, seat, active, due, state, chain, now) = self.with(|shared, now| {
            let lost = shared.state.check(now).err();
            let first = shared.state.begin_release();
            let Shared { state, seat, active, due, extended_for, .. } = shared;
            let chain = self.chain.asked_for(*extended_for);
            (first, lost, seat.take(), active.take(), due.take(), state.clone(), chain, now)
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
                    chain,
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
        let (label, ttl) = (self.key.label(), chain.longest_ttl());
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
