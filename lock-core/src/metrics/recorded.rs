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
const STORE_UP: &str = "lock_store_up";
#[cfg(feature = "redis")]
const REQUEST: &str = "lock_store_request_seconds";
#[cfg(feature = "redis")]
const REQUEST_COMMANDS: &str = "lock_store_request_commands";
#[cfg(feature = "redis")]
const OUTAGE: &str = "lock_store_outage_seconds";
#[cfg(feature = "redis")]
const ACKS_MISSED: &str = "lock_store_replica_acks_missed_total";
#[cfg(feature = "redis-cluster")]
const REDIRECTIONS: &str = "lock_store_redirections_total";
#[cfg(feature = "redis-cluster")]
const MAPS: &str = "lock_store_slot_maps_total";
#[cfg(feature = "redis-quorum")]
const ROUNDS: &str = "lock_quorum_rounds_total";
#[cfg(feature = "redis-quorum")]
const VOTES: &str = "lock_quorum_votes";
#[cfg(feature = "redis-quorum")]
const TURNS: &str = "lock_quorum_turns_total";
#[cfg(feature = "redis-quorum")]
const REPAIRS: &str = "lock_quorum_repairs_total";
#[cfg(feature = "redis-quorum")]
const MEMBER_VOTES: &str = "lock_quorum_member_up";
#[cfg(feature = "redis-quorum")]
const MEMBER_CLOCK: &str = "lock_quorum_member_clock_seconds";

/// Why leases are lost. A release by the guard is no loss.
const LOSS_REASONS: [LostReason; 6] = [
    LostReason::Draining,
    LostReason::Expired,
    LostReason::ForceReleased,
    LostReason::Gone,
    LostReason::MaxHold,
    LostReason::TakenByOther,
];

fn reason_name(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Draining => "draining",
        LostReason::Expired => "expired",
        LostReason::ForceReleased => "force_released",
        LostReason::Gone => "gone",
        LostReason::MaxHold => "max_hold",
        LostReason::Released => "released",
        LostReason::TakenByOther => "taken_by_other",
    }
}

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
        // From 0 on, so that the first loss is an increase.
        for reason in LOSS_REASONS {
            drop(counter!(LOSSES, "key" => label, "reason" => reason_name(reason)));
        }
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
        WaitTimer { metrics: self.clone(), since, has_ended: false }
    }

    /// A lease begins. `by_store`: the store handed the lock on from another process.
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
        counter!(LOSSES, "key" => self.0.label, "reason" => reason_name(reason)).increment(1);
    }

    pub(crate) fn renewed(&self, is_confirmed: bool) {
        let counter = if is_confirmed { &self.0.renewed } else { &self.0.not_renewed };
        counter.increment(1);
    }
}

/// Counts an acquisition as waiting until it ends, or as cancelled if its future is dropped before:
/// when waits grow long, callers begin to give up.
pub(crate) struct WaitTimer {
    metrics: LockMetrics,
    since: Instant,
    has_ended: bool,
}

impl WaitTimer {
    pub(crate) fn end<T>(mut self, result: &Result<T, Error>) {
        self.has_ended = true;
        match result {
            Ok(_) => self.metrics.0.acquired.increment(1),
            Err(error) if error.is_busy() => self.metrics.0.busy.increment(1),
            Err(error) => self.count(error.kind().outcome()),
        }
    }

    /// Counts an outcome that is rare, so that its series begins with it.
    fn count(&self, outcome: &'static str) {
        counter!(ACQUISITIONS, "key" => self.metrics.0.label, "outcome" => outcome).increment(1);
    }
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        let Handles { waiting, wait, .. } = &*self.metrics.0;
        waiting.decrement(1.0);
        wait.record(Instant::now().saturating_since(self.since));
        if !self.has_ended {
            self.count("cancelled");
        }
    }
}

/// Counts a release until the store has confirmed it, or it is given up.
#[derive(Debug)]
pub(crate) struct PendingCount(());

impl PendingCount {
    pub(crate) fn new() -> Self {
        gauge!(RELEASES_PENDING).increment(1.0);
        Self(())
    }
}

impl Drop for PendingCount {
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

#[cfg(feature = "redis-cluster")]
pub(crate) use self::cluster::{cluster_made, map_fetched, redirected};
#[cfg(feature = "redis-quorum")]
pub(crate) use self::quorum::QuorumMetrics;
#[cfg(feature = "redis")]
pub(crate) use self::store::{
    acks_missed, acks_wanted, connected, outage_ended, request_of, unreachable,
};

#[cfg(feature = "redis")]
mod store {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{
        ACKS_MISSED, CONNECTIONS, OUTAGE, REQUEST, REQUEST_COMMANDS, STORE_UP, counter, gauge,
        histogram,
    };
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

    /// A connection to `server`, by its URL without credentials, was opened.
    pub(crate) fn connected(server: &Arc<str>) {
        counter!(CONNECTIONS).increment(1);
        gauge!(STORE_UP, "server" => Arc::clone(server)).set(1.0);
    }

    /// No connection to `server` could be opened.
    pub(crate) fn unreachable(server: &Arc<str>) {
        gauge!(STORE_UP, "server" => Arc::clone(server)).set(0.0);
    }

    /// `server` was needed and could not be reached for so long. Now it is reached again, or
    /// another node has taken its place.
    pub(crate) fn outage_ended(server: &Arc<str>, took: Duration) {
        histogram!(OUTAGE, "server" => Arc::clone(server)).record(took);
    }

    /// Replicas have to confirm grants. From 0 on, so that the first that is missed is an increase.
    pub(crate) fn acks_wanted() {
        drop(counter!(ACKS_MISSED));
    }

    /// Too few replicas confirmed a call.
    pub(crate) fn acks_missed() {
        counter!(ACKS_MISSED).increment(1);
    }
}

#[cfg(feature = "redis-cluster")]
mod cluster {
    use super::{MAPS, REDIRECTIONS, counter};
    use crate::metrics::kinds::Redirection;

    fn name(how: Redirection) -> &'static str {
        match how {
            Redirection::Moved => "moved",
            Redirection::Ask => "ask",
            Redirection::TryAgain => "try_again",
            Redirection::NotServed => "not_served",
        }
    }

    fn outcome(is_done: bool) -> &'static str {
        if is_done { "done" } else { "failed" }
    }

    /// There is a cluster. From 0 on, so that the first redirection is an increase.
    pub(crate) fn cluster_made() {
        use Redirection::{Ask, Moved, NotServed, TryAgain};
        for how in [Moved, Ask, TryAgain, NotServed] {
            drop(counter!(REDIRECTIONS, "kind" => name(how)));
        }
        for is_done in [true, false] {
            drop(counter!(MAPS, "outcome" => outcome(is_done)));
        }
    }

    /// A node redirected a command.
    pub(crate) fn redirected(how: Redirection) {
        counter!(REDIRECTIONS, "kind" => name(how)).increment(1);
    }

    /// The map of the slots was fetched, or no node had it.
    pub(crate) fn map_fetched(is_done: bool) {
        counter!(MAPS, "outcome" => outcome(is_done)).increment(1);
    }
}

#[cfg(feature = "redis-quorum")]
mod quorum {
    use std::fmt;

    use super::{
        Counter, Gauge, Histogram, MEMBER_CLOCK, MEMBER_VOTES, REPAIRS, ROUNDS, TURNS, VOTES,
        counter, gauge, histogram,
    };
    use crate::metrics::kinds::Round;

    /// The metrics of one quorum, looked up once.
    pub(crate) struct QuorumMetrics {
        granted: Counter,
        again: Counter,
        taken: Counter,
        failed: Counter,
        votes: Histogram,
        turns_granted: Counter,
        turns_refused: Counter,
        members: Vec<Member>,
    }

    struct Member {
        repairs: Counter,
        votes: Gauge,
        clock: Gauge,
    }

    impl QuorumMetrics {
        /// Of these members.
        pub(crate) fn new(members: impl IntoIterator<Item = String>) -> Self {
            let member = |server: String| Member {
                repairs: counter!(REPAIRS, "server" => server.clone()),
                votes: gauge!(MEMBER_VOTES, "server" => server.clone()),
                clock: gauge!(MEMBER_CLOCK, "server" => server),
            };
            Self {
                granted: counter!(ROUNDS, "outcome" => "granted"),
                again: counter!(ROUNDS, "outcome" => "again"),
                taken: counter!(ROUNDS, "outcome" => "taken"),
                failed: counter!(ROUNDS, "outcome" => "failed"),
                votes: histogram!(VOTES),
                turns_granted: counter!(TURNS, "outcome" => "granted"),
                turns_refused: counter!(TURNS, "outcome" => "refused"),
                members: members.into_iter().map(member).collect(),
            }
        }

        /// A round for a claim is over, in which so many members voted for it.
        pub(crate) fn round(&self, round: Round, votes: usize) {
            let counter = match round {
                Round::Granted => &self.granted,
                Round::Again => &self.again,
                Round::Taken => &self.taken,
                Round::Failed => &self.failed,
            };
            counter.increment(1);
            // There are few members.
            self.votes.record(f64::from(u32::try_from(votes).unwrap_or(u32::MAX)));
        }

        /// The conductor gave a waiter its turn, and the votes granted it the lock or did not.
        pub(crate) fn turn(&self, is_granted: bool) {
            let counter = if is_granted { &self.turns_granted } else { &self.turns_refused };
            counter.increment(1);
        }

        /// A member took a lock again for its holder.
        pub(crate) fn repaired(&self, member: usize) {
            self.members[member].repairs.increment(1);
        }

        /// A member votes, or does not.
        pub(crate) fn votes(&self, member: usize, does: bool) {
            self.members[member].votes.set(if does { 1.0 } else { 0.0 });
        }

        /// The clock of a member is so far ahead of the median.
        pub(crate) fn clock_is_ahead(&self, member: usize, seconds: f64) {
            self.members[member].clock.set(seconds);
        }
    }

    impl fmt::Debug for QuorumMetrics {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("QuorumMetrics").finish_non_exhaustive()
        }
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
        describe_gauge!(STORE_UP, "Whether the last dial of the store succeeded: 1, else 0");
        describe_histogram!(REQUEST, Unit::Seconds, "How long the store took to reply to a call");
        describe_histogram!(REQUEST_COMMANDS, Unit::Count, "How many commands shared a call");
        describe_histogram!(
            OUTAGE,
            Unit::Seconds,
            "How long a server that was needed could not be reached, or was not replaced"
        );
        describe_counter!(
            ACKS_MISSED,
            Unit::Count,
            "Calls with claims or renewals that too few replicas confirmed"
        );
    }
    #[cfg(feature = "redis-cluster")]
    {
        describe_counter!(
            REDIRECTIONS,
            Unit::Count,
            "Commands that a node sent elsewhere, by kind"
        );
        describe_counter!(MAPS, Unit::Count, "Questions for the map of the slots, by outcome");
    }
    #[cfg(feature = "redis-quorum")]
    {
        describe_counter!(ROUNDS, Unit::Count, "Rounds of votes for claims, by their outcome");
        describe_histogram!(VOTES, Unit::Count, "How many members voted for a claim in a round");
        describe_counter!(
            TURNS,
            Unit::Count,
            "Turns that conductors gave to waiters, and whether the votes agreed"
        );
        describe_counter!(REPAIRS, Unit::Count, "Held locks that a member took again");
        describe_gauge!(MEMBER_VOTES, "Whether a member of the quorum votes: 1, else 0");
        describe_gauge!(
            MEMBER_CLOCK,
            Unit::Seconds,
            "How far the clock of a member is ahead of the median of all"
        );
    }
}
