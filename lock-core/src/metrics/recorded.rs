//! The metrics, as the recorder of the program keeps them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::error::{Error, LostReason};
use crate::time::Instant;

const ACQUISITIONS: &str = "lock_acquisitions_total";
const WAITING: &str = "lock_waiting";
const WAIT: &str = "lock_wait_seconds";
const HELD: &str = "lock_held";
const HOLD: &str = "lock_hold_seconds";
const HAND_OFFS: &str = "lock_hand_offs_total";
const LOSSES: &str = "lock_losses_total";
const RENEWALS: &str = "lock_renewals_total";
const RENEWAL_LATENESS: &str = "lock_renewal_lateness_seconds";
const RELEASES_PENDING: &str = "lock_releases_pending";
const RELEASE_RETRIES: &str = "lock_release_retries_total";
#[cfg(feature = "redis")]
const CONNECTIONS: &str = "lock_store_connections_total";
#[cfg(feature = "redis")]
const REQUEST: &str = "lock_store_request_seconds";
#[cfg(feature = "redis")]
const REQUEST_COMMANDS: &str = "lock_store_request_commands";

/// The metrics of each label. A program has few labels: they are templates and literals.
pub(crate) struct LockMetricsByLabel(RwLock<HashMap<&'static str, LockMetrics>>);

impl std::fmt::Debug for LockMetricsByLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockMetricsByLabel").finish_non_exhaustive()
    }
}

/// The metrics of the locks with one label. Looked up once for each acquisition, so that nothing is
/// allocated afterwards.
#[derive(Clone)]
pub(crate) struct LockMetrics(Arc<Handles>);

struct Handles {
    label: &'static str,
    acquired: Counter,
    busy: Counter,
    waiting: Gauge,
    wait: Histogram,
    held: Gauge,
    hold: Histogram,
    handed_on_here: Counter,
    handed_on_by_store: Counter,
    renewed: Counter,
    not_renewed: Counter,
}

impl LockMetricsByLabel {
    /// For a new client, which tells the recorder what the metrics are.
    pub(crate) fn new() -> Self {
        describe();
        Self(RwLock::default())
    }

    pub(crate) fn of(&self, label: &'static str) -> LockMetrics {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(label).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            all.entry(label).or_insert_with(|| LockMetrics::new(label)).clone()
        })
    }
}

impl LockMetrics {
    fn new(label: &'static str) -> Self {
        Self(Arc::new(Handles {
            label,
            acquired: counter!(ACQUISITIONS, "key" => label, "outcome" => "acquired"),
            busy: counter!(ACQUISITIONS, "key" => label, "outcome" => "busy"),
            waiting: gauge!(WAITING, "key" => label),
            wait: histogram!(WAIT, "key" => label),
            held: gauge!(HELD, "key" => label),
            hold: histogram!(HOLD, "key" => label),
            handed_on_here: counter!(HAND_OFFS, "key" => label, "by" => "memory"),
            handed_on_by_store: counter!(HAND_OFFS, "key" => label, "by" => "store"),
            renewed: counter!(RENEWALS, "key" => label, "outcome" => "confirmed"),
            not_renewed: counter!(RENEWALS, "key" => label, "outcome" => "failed"),
        }))
    }

    /// An acquisition that began at `since` is under way.
    pub(crate) fn waiting(&self, since: Instant) -> WaitTimer {
        self.0.waiting.increment(1.0);
        WaitTimer { metrics: self.clone(), since }
    }

    /// A lease begins. `by_store`: the store handed the lock over from another process.
    pub(crate) fn entered(&self, by_store: bool) {
        self.0.held.increment(1.0);
        if by_store {
            self.0.handed_on_by_store.increment(1);
        }
    }

    /// A lease goes to the next task of this process.
    pub(crate) fn handed_on(&self) {
        self.0.handed_on_here.increment(1);
    }

    /// A guard is gone, after its lock was held for `held`.
    pub(crate) fn ended(&self, held: Duration) {
        self.0.held.decrement(1.0);
        self.0.hold.record(held);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        let reason = match reason {
            LostReason::Draining => "draining",
            LostReason::Expired => "expired",
            LostReason::ForceReleased => "force_released",
            LostReason::Gone => "gone",
            LostReason::MaxHold => "max_hold",
            LostReason::Released => "released",
            LostReason::TakenByOther => "taken_by_other",
        };
        counter!(LOSSES, "key" => self.0.label, "reason" => reason).increment(1);
    }

    pub(crate) fn renewed(&self, is_confirmed: bool) {
        let counter = if is_confirmed { &self.0.renewed } else { &self.0.not_renewed };
        counter.increment(1);
    }
}

/// Counts an acquisition as waiting until it ends, or its future is dropped.
pub(crate) struct WaitTimer {
    metrics: LockMetrics,
    since: Instant,
}

impl WaitTimer {
    pub(crate) fn end<T>(self, result: &Result<T, Error>) {
        let Handles { label, acquired, busy, wait, .. } = &*self.metrics.0;
        wait.record(Instant::now().saturating_since(self.since));
        match result {
            Ok(_) => acquired.increment(1),
            Err(error) if error.is_busy() => busy.increment(1),
            Err(error) => {
                let outcome = error.kind().outcome();
                counter!(ACQUISITIONS, "key" => *label, "outcome" => outcome).increment(1);
            }
        }
    }
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        self.metrics.0.waiting.decrement(1.0);
    }
}

/// Counts a release until the store has confirmed it, or it is given up.
#[derive(Debug)]
pub(crate) struct PendingRelease(());

impl PendingRelease {
    pub(crate) fn new() -> Self {
        gauge!(RELEASES_PENDING).increment(1.0);
        Self(())
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        gauge!(RELEASES_PENDING).decrement(1.0);
    }
}

pub(crate) fn release_retried() {
    counter!(RELEASE_RETRIES).increment(1);
}

/// A renewal is sent `by` later than it was due. Losses begin here.
pub(crate) fn renewal_late(by: Duration) {
    histogram!(RENEWAL_LATENESS).record(by);
}

#[cfg(feature = "redis")]
pub(crate) use self::store::{connected, request_of};

#[cfg(feature = "redis")]
mod store {
    use super::{CONNECTIONS, REQUEST, REQUEST_COMMANDS, counter, histogram};
    use crate::time::Instant;

    /// A call that carries `commands` is sent.
    pub(crate) fn request_of(commands: usize) -> RequestTimer {
        // A call carries no more than fit exactly.
        histogram!(REQUEST_COMMANDS).record(f64::from(u32::try_from(commands).unwrap_or(u32::MAX)));
        RequestTimer(Instant::now())
    }

    /// Measures how long the server takes to reply.
    #[derive(Debug)]
    pub(crate) struct RequestTimer(Instant);

    impl RequestTimer {
        pub(crate) fn end(self) {
            histogram!(REQUEST).record(Instant::now().saturating_since(self.0));
        }
    }

    pub(crate) fn connected() {
        counter!(CONNECTIONS).increment(1);
    }
}

/// Tells the recorder what the metrics are.
fn describe() {
    describe_counter!(ACQUISITIONS, Unit::Count, "Attempts to take a lock, by their outcome");
    describe_gauge!(WAITING, Unit::Count, "Acquisitions under way");
    describe_histogram!(WAIT, Unit::Seconds, "How long acquisitions took, whatever their outcome");
    describe_gauge!(HELD, Unit::Count, "Guards that are alive");
    describe_histogram!(HOLD, Unit::Seconds, "How long guards lived");
    describe_counter!(
        HAND_OFFS,
        Unit::Count,
        "Leases that went to a waiter: of this process (memory), or to this process (store)"
    );
    describe_counter!(LOSSES, Unit::Count, "Leases that ended before their guards, by reason");
    describe_counter!(RENEWALS, Unit::Count, "Replies to renewals");
    describe_histogram!(
        RENEWAL_LATENESS,
        Unit::Seconds,
        "How much later than due renewals were sent: what grows before leases are lost"
    );
    describe_gauge!(RELEASES_PENDING, Unit::Count, "Releases that the store has not confirmed");
    describe_counter!(RELEASE_RETRIES, Unit::Count, "Releases that were sent again");
    #[cfg(feature = "redis")]
    {
        describe_counter!(CONNECTIONS, Unit::Count, "Connections to the store that were opened");
        describe_histogram!(REQUEST, Unit::Seconds, "How long the store took to reply to a call");
        describe_histogram!(REQUEST_COMMANDS, Unit::Count, "How many commands shared a call");
    }
}
