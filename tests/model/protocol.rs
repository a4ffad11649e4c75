//! The model: its bounds, its deliberately wrong rules, and the events that it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::state::{Rare, Token};

/// One key, and the clients that acquire it.
#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) clients: u8,
    /// How often each client acquires the key.
    pub(crate) turns: u8,
    /// The rare events that may happen, with the maximum number of each for all clients together.
    pub(crate) rare: Vec<(Rare, u8)>,
    /// If set, the maximum number of all rare events together; replaces the numbers in `rare`.
    pub(crate) in_all: Option<u8>,
    /// Whether the first claim of a client already requests a place in the queue.
    pub(crate) contended: bool,
    /// Whether waiters claim again after a pause. Without faults, this is never needed.
    pub(crate) pauses: bool,
    /// Whether the first client has a `min_hold`.
    pub(crate) min_hold: bool,
    /// The rule that is replaced by a wrong one.
    pub(crate) wrong_rule: Option<WrongRule>,
    pub(crate) events: Arc<Events>,
}

impl Default for Protocol {
    fn default() -> Self {
        Self {
            clients: 2,
            turns: 1,
            rare: Vec::new(),
            in_all: None,
            contended: true,
            pauses: true,
            min_hold: false,
            wrong_rule: None,
            events: Arc::default(),
        }
    }
}

/// Rules that are wrong in one point: rules of other lock crates, and of early versions of this
/// one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WrongRule {
    // The scripts.
    VoidClaimsCount,
    FirstToAskTakes,
    TicketKept,
    ClaimShortens,
    ReleaseWithoutCompare,
    HoldKeepsToken,
    RenewalBySet,
    RenewalShortens,
    CutCountsForEver,
    // The client.
    DeadlineFromReply,
    GrantDeadlineFromReceipt,
    GrantWithoutTicket,
    UnansweredClaimsCount,
    NoClaimAfterSubscribing,
    LateAnswerEnters,
    EntryForgetsClaim,
    ReleaseFinalAtFirstAnswer,
    CancelKeepsPlace,
    FenceKept,
    HandOnBeginsLease,
    CutForgetsLease,
    CutBesideAnother,
    RenewalBehindCutCounts,
}

/// The events that a run counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    GrantByMessage,
    GrantAheadOfTicket,
    GrantForOldTicket,
    GrantExpired,
    GrantToCrashed,
    GrantTooLate,
    CrashedSkipped,
    NoSubscriber,
    VoidClaim,
    ClaimOfHolder,
    ClaimUnanswered,
    ClaimPassedOn,
    DuplicatedRequest,
    DuplicatedPush,
    Lost,
    ResponseIgnored,
    PushIgnored,
    RenewalConfirmed,
    RenewalCrossesRelease,
    ClockWentBack,
    Cut,
    CutVoid,
    RenewalBehindCut,
    LeaseLost,
    HandedOn,
    KeptForMinHold,
    MinHoldOver,
    ReleaseNotFinal,
    TicketExpired,
    Reconnected,
    Crashed,
}

const EVENTS: usize = Event::Crashed as usize + 1;

#[derive(Debug, Default)]
pub(crate) struct Events([AtomicUsize; EVENTS]);

impl Events {
    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self, event: Event) -> usize {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}

impl Protocol {
    pub(crate) fn token(&self, client: usize, turn: u8) -> Token {
        #[allow(clippy::cast_possible_truncation)] // there are two or three
        let client = client as u8;
        client * self.turns + turn
    }

    pub(crate) fn owner(&self, token: Token) -> usize {
        usize::from(token / self.turns)
    }

    pub(crate) fn tokens(&self, client: usize) -> std::ops::Range<usize> {
        let turns = usize::from(self.turns);
        client * turns..(client + 1) * turns
    }

    /// The index in `State::remaining` that counts `rare`.
    pub(crate) fn budget(&self, rare: Rare) -> usize {
        if self.in_all.is_some() { 0 } else { rare as usize }
    }
}
