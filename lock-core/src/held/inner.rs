//! The shared record of one held lock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

use super::watchers::Watchers;
use crate::driver::{Due, PendingRelease};
use crate::error::LostReason;
use crate::fencing::FencingToken;
use crate::key::Key;
use crate::lease::{HandOffChain, LeaseEnd, LeaseState, lift_due, renewal_due};
use crate::metrics::LockMetrics;
use crate::options::ResolvedOptions;
use crate::registry::{HandedLease, LocalTurn, Status};
use crate::state::ClientState;
use crate::store::{Name, Release, Token};
use crate::time::Instant;
use crate::tracker::TrackerToken;

/// How long a release that leaves a turn to other clients keeps the key taken, as under a
/// `min_hold`: then it is free, and was handed to no waiter. If the release takes longer to arrive,
/// the key is handed on, and only the turn is missed.
const HOLD_FOR_OTHERS: Duration = Duration::from_millis(5);

/// A held lock.
pub(crate) struct LeaseInner {
    pub(crate) client: Arc<ClientState>,
    pub(crate) key: Key,
    pub(super) name: Name,
    pub(super) token: Token,
    chain: HandOffChain,
    pub(super) options: ResolvedOptions,
    pub(super) metrics: LockMetrics,
    /// The link of this lease's first entry in its task's scope.
    pub(super) link: OnceLock<ScopeLink>,
    record: Mutex<LeaseRecord>,
}

pub(super) struct LeaseRecord {
    pub(super) state: LeaseState,
    watchers: Watchers,
    /// Passed on when the lease ends, so that this process can claim the key again.
    pub(super) turn: Option<LocalTurn>,
    /// Counts the lease as held until its release is pending.
    tracked: Option<TrackerToken>,
    /// The lease's entry in the renewer's schedule.
    pub(super) due: Option<Due>,
    /// The lease was entered with less than its ttl, and the store has not confirmed all of it yet.
    pub(super) is_short: bool,
    /// A hold beyond the limit for a warning was logged.
    is_warned: bool,
    /// The longest ttl that was passed to `extend`, whether the store replied or not.
    extended_for: Duration,
    /// How many calls of `extend` have not ended.
    pub(super) extending: u32,
}

/// A call of `extend`. Until it ends, no renewal shortens the store's expiry.
pub(super) struct Extending<'a>(&'a LeaseInner);

impl Drop for Extending<'_> {
    fn drop(&mut self) {
        self.0.lock().extending -= 1;
    }
}

/// What becomes of a lease that its guard ends.
pub(crate) enum Ended {
    /// It had ended before.
    Before,
    /// The next holder in this process has it; it was held this long.
    HandedOn(Duration),
    /// It goes back to the store; it was held this long.
    GivenBack(PendingRelease<LocalTurn>, Duration),
}

/// A grant, by the store or by the previous holder in this process.
pub(crate) struct Granted {
    pub(crate) token: Token,
    pub(crate) chain: HandOffChain,
    pub(crate) state: LeaseState,
    /// Whether noticeably less than the ttl is left.
    pub(crate) is_short: bool,
    /// Whether the release of another process handed the lock on.
    pub(crate) is_from_hand_off: bool,
    pub(crate) turn: LocalTurn,
    pub(crate) tracked: TrackerToken,
}

/// Nested entries of a key pass through here one at a time, so that siblings (`join!`) exclude each
/// other as they would without the outer lock.
pub(crate) type ChildSlot = Arc<tokio::sync::Mutex<()>>;

/// A lease in the scope of a task.
#[derive(Clone, Debug)]
pub(crate) enum ScopeEntry {
    /// The first entry of the lease. Its link is part of the lease's record.
    First(Arc<LeaseInner>),
    /// A further entry, in another scope or deeper in the same one.
    More(Arc<Entry>),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) lease: Arc<LeaseInner>,
    pub(super) link: ScopeLink,
    /// Whether its nested entries share the slot of the first entry.
    pub(super) shares_slot: bool,
}

/// What lies around an entry, and the slot for what is nested in it.
#[derive(Debug, Default)]
pub(crate) struct ScopeLink {
    pub(super) outer: Option<ScopeEntry>,
    pub(super) child: OnceLock<ChildSlot>,
}

impl LeaseInner {
    /// Starts to keep a lease that was granted.
    pub(crate) fn keep(
        client: Arc<ClientState>,
        key: Key,
        name: Name,
        options: ResolvedOptions,
        granted: Granted,
    ) -> Arc<Self> {
        let Granted { token, chain, state, is_short, is_from_hand_off, turn, tracked } = granted;
        let metrics = client.metrics.of(key.label());
        metrics.entered(is_from_hand_off);
        let deadline = state.deadline();
        // A hand-off has set the status already; only `max_hold` may end the lease earlier.
        if !chain.is_handed_on() || options.max_hold.is_some() {
            turn.set_status(Status::Held(deadline));
        }
        let lifted = is_short && !state.ends_by_hold();
        let now = state.granted_at();
        let record = LeaseRecord {
            state,
            watchers: Watchers::default(),
            turn: Some(turn),
            tracked: Some(tracked),
            due: None,
            is_short,
            is_warned: false,
            extended_for: Duration::ZERO,
            extending: 0,
        };
        let lease = Arc::new(Self {
            client,
            key,
            name,
            token,
            chain,
            options,
            metrics,
            link: OnceLock::new(),
            record: Mutex::new(record),
        });
        let first = if lifted {
            lift_due(now, deadline)
        } else if options.renewal {
            renewal_due(now, deadline)
        } else {
            deadline
        };
        lease.schedule_at(first);
        lease
    }

    /// Schedules the lease with the client's renewer.
    pub(super) fn schedule_at(self: &Arc<Self>, at: Instant) {
        let weak: std::sync::Weak<Self> = Arc::downgrade(self);
        let due = self.client.renewer.schedule(weak, at);
        let stale = {
            let mut record = self.lock();
            // A release in between found no entry to remove, so it is removed here. Another task
            // may have scheduled the lease later than this one.
            let outdated = record.due.is_some_and(|other| other.came_after(due));
            if outdated || record.state.is_released() { Some(due) } else { record.due.replace(due) }
        };
        if let Some(stale) = stale {
            self.client.renewer.forget(stale);
        }
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// What is left of the lease, or why it has ended.
    pub(crate) fn observe(&self) -> Result<Duration, LostReason> {
        self.update(|record, now| record.state.check(now))
    }

    /// Why the lease has ended, if that was noticed; else wakes the task of `cx` when it ends.
    pub(super) fn watch(&self, id: &mut Option<u64>, cx: &Context<'_>) -> Option<LostReason> {
        let mut record = self.lock();
        let reason = record.state.end_reason();
        if reason.is_none() {
            record.watchers.register(id, cx.waker());
        }
        reason
    }

    /// Removes the watcher `id`.
    pub(super) fn unwatch(&self, id: u64) {
        self.lock().watchers.remove(id);
    }

    /// How many tasks wait for its end.
    #[cfg(feature = "test-util")]
    pub(crate) fn watchers(&self) -> usize {
        self.update(|record, _| record.watchers.len())
    }

    /// How long it has been held.
    pub(crate) fn held_for(&self) -> Duration {
        let granted = self.update(|record, _| record.state.granted_at());
        Instant::now().saturating_since(granted)
    }

    /// What is left of the lease, or why it has ended. If it has not, the store may now be asked to
    /// keep the lock for `ttl`.
    pub(super) fn begin_extend(
        &self,
        ttl: Duration,
    ) -> Result<(Duration, Extending<'_>), LostReason> {
        let left = self.update(|record, now| {
            let left = record.state.check(now)?;
            record.extended_for = record.extended_for.max(ttl);
            record.extending += 1;
            Ok(left)
        })?;
        Ok((left, Extending(self)))
    }

    /// Logs once that the lease was held for longer than the limit for a warning.
    pub(super) fn warn_if_long(&self, held: Duration) {
        let Some(limit) = self.client.slow.hold.filter(|limit| held > *limit) else { return };
        if std::mem::replace(&mut self.lock().is_warned, true) {
            return;
        }
        tracing::warn!(
            target: "lock_core", key = self.key.label(), held_seconds = held.as_secs_f64(),
            limit_seconds = limit.as_secs_f64(), fence = %self.fencing_token(),
            "the lock is held for longer than the limit for a warning"
        );
    }

    /// Ends the lease for its guard. From here on no renewal is sent, and late replies move
    /// nothing.
    pub(crate) fn end(&self) -> Ended {
        let taken = self.update(|record, now| {
            let lost = record.state.check(now).err();
            let first = record.state.begin_release();
            TakenRecord {
                first,
                lost,
                now,
                state: record.state.clone(),
                chain: self.chain.requested(record.extended_for),
                turn: record.turn.take(),
                tracked: record.tracked.take(),
                due: record.due.take(),
            }
        });
        // `_tracked`: the lease counts as held until the next holder, which waits, or the releaser
        // counts it.
        let TakenRecord { first, lost, now, state, chain, turn, tracked: _tracked, due } = taken;
        let good = lost.is_none();
        if let Some(due) = due {
            self.client.renewer.forget(due);
        }
        if !first {
            return Ended::Before;
        }
        let held = now.saturating_since(state.granted_at());
        // With its turn, the lease ended unnoticed until now.
        if let (Some(reason), true) = (lost, turn.is_some()) {
            self.report_loss(reason, held, now);
        }
        self.metrics.ended(held);
        self.warn_if_long(held);
        let (confirmed_until, label) = (state.confirmed_until(), self.key.label());
        let min_hold = self.options.min_hold;
        let leaves_turn = good
            && turn.is_some()
            && self.options.turns_for_others
            && min_hold.is_none()
            && self.client.turns_for_others.leaves_turn(&self.name, now);
        let turn = match turn {
            Some(turn) if good && min_hold.is_none() && !leaves_turn => {
                let lease = HandedLease { token: self.token, chain, confirmed_until, label };
                match turn.hand_on(lease, now) {
                    Ok(()) => {
                        self.metrics.handed_on();
                        return Ended::HandedOn(held);
                    }
                    // The release below is of this lease.
                    Err((turn, _lease)) => Some(turn),
                }
            }
            turn => turn,
        };
        if let Some(turn) = &turn {
            turn.set_status_at(Status::Releasing, now);
        }
        let min_hold_ends = if leaves_turn {
            Some(now.saturating_add(HOLD_FOR_OTHERS))
        } else {
            min_hold.map(|least| state.granted_at().saturating_add(least))
        };
        let release = Release::new(self.name.clone(), self.token, min_hold_ends);
        let good_until = good.then(|| state.deadline());
        let end = LeaseEnd { at: now, good_until, confirmed_until };
        let releaser = &self.client.releaser;
        let pending = releaser.pending(release, turn, label, chain.longest_ttl(), Some(end));
        Ended::GivenBack(pending, held)
    }

    pub(super) fn fencing_token(&self) -> FencingToken {
        self.chain.fencing_token(self.options.fencing)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LeaseRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the record. If the lease has ended by then, wakes the watchers and passes
    /// the turn on.
    pub(super) fn update<R>(&self, act: impl FnOnce(&mut LeaseRecord, Instant) -> R) -> R {
        let now = Instant::now();
        let mut record = self.lock();
        let result = act(&mut record, now);
        let Err(reason) = record.state.check(now) else { return result };
        let watchers = std::mem::take(&mut record.watchers);
        let held_for = now.saturating_since(record.state.granted_at());
        // A released lease keeps the turn for the release, so that the key is claimed again only
        // behind it.
        let turn = if reason == LostReason::Released { None } else { record.turn.take() };
        drop(record);
        if turn.is_some() {
            self.report_loss(reason, held_for, now);
        }
        drop(turn);
        watchers.wake();
        result
    }

    /// Tells operators that the lease ended before its guard.
    fn report_loss(&self, reason: LostReason, held_for: Duration, now: Instant) {
        self.metrics.lost(reason);
        self.client.losses.push(self.key.clone(), self.fencing_token(), reason, held_for, now);
        tracing::warn!(
            target: "lock_core", key = self.key.label(), fence = %self.fencing_token(), %reason,
            "lock lost"
        );
    }
}

/// What [`LeaseInner::end`] takes out of the record.
struct TakenRecord {
    /// Whether this call ends the lease.
    first: bool,
    /// Why the lease had ended before this call.
    lost: Option<LostReason>,
    now: Instant,
    state: LeaseState,
    chain: HandOffChain,
    turn: Option<LocalTurn>,
    tracked: Option<TrackerToken>,
    due: Option<Due>,
}

impl fmt::Debug for LeaseInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseInner").field("key", &self.key).finish_non_exhaustive()
    }
}
