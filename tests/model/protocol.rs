//! The model: its size, what may be wrong with it, and what it comes across.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stateright::{Model, Property};

use super::promises;
use super::state::{Client, KINDS, Phase, Rare, Span, State, Token, Trace};
use super::step::{Action, Step};

/// One key, and clients that want it.
#[derive(Debug)]
pub(crate) struct Protocol {
    pub(crate) clients: u8,
    /// How often each wants it.
    pub(crate) turns: u8,
    /// What may happen, and how often, for all clients together.
    pub(crate) rare: Vec<(Rare, u8)>,
    /// Instead: how often anything of `rare` may happen in all.
    pub(crate) in_all: Option<u8>,
    /// Whether claims ask for a place at once.
    pub(crate) contended: bool,
    /// Whether waiters claim again at the end of a pause. Without faults nobody has to.
    pub(crate) pauses: bool,
    /// Whether the first client has a `min_hold`.
    pub(crate) min_hold: bool,
    /// A rule that is replaced by a wrong one.
    pub(crate) broken: Option<Broken>,
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
            broken: None,
            events: Arc::default(),
        }
    }
}

/// Rules that are wrong in one point: of peers, and of this protocol's first form.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Broken {
    // The scripts.
    VoidClaimsCount,
    FirstToAskTakes,
    TicketKept,
    ClaimShortens,
    ReleaseWithoutCompare,
    HoldKeepsToken,
    RenewalBySet,
    RenewalShortens,
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
}

/// What a run came across.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    GrantByMessage,
    GrantAheadOfTicket,
    GrantOfThePast,
    GrantOver,
    GrantToTheDead,
    GrantTooLate,
    DeadSkipped,
    Unheard,
    VoidClaim,
    ClaimOfHolder,
    ClaimUnanswered,
    ClaimPassedOn,
    DoubledRequest,
    DoubledPush,
    Lost,
    AnswerIgnored,
    PushIgnored,
    RenewalConfirmed,
    RenewalCrossesRelease,
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

    /// Where `State::left` counts what may happen.
    pub(crate) fn purse(&self, rare: Rare) -> usize {
        if self.in_all.is_some() { 0 } else { rare as usize }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut left = [0; KINDS];
        for (rare, times) in &self.rare {
            left[self.purse(*rare)] = self.in_all.unwrap_or(*times);
        }
        vec![State {
            lock: None,
            queue: Vec::new(),
            clients: vec![Client::of(Phase::Idle); usize::from(self.clients)],
            traces: vec![Trace::default(); usize::from(self.clients * self.turns)],
            requests: Vec::new(),
            replies: Vec::new(),
            pushes: Vec::new(),
            left,
            over: Span::default(),
            last: (0, 0),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.choices(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, events) = Step::of(self, last.clone(), action)?;
        for event in events {
            self.events.0[event as usize].fetch_add(1, Ordering::Relaxed);
        }
        if !self.min_hold {
            state.sort_clients(self.turns);
        }
        state.reduce();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
