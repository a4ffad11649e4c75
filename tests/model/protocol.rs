//! The model: what may happen next, and what must hold whatever does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stateright::{Model, Property};

use super::state::{
    Ask, Client, FOREIGN, KINDS, Message, Next, Phase, Promise, Rare, Request, Span, State, Token,
    Trace, Ttl,
};

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

/// What happens, and what it is counted as if it may happen only so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Action(What, Option<Rare>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// The server executes a request. So many of those that it would hand the lock to do not listen.
    Execute(usize, u8),
    /// The same twice. A copy that comes later than what was sent behind it is one of another connection: see `Reconnect`.
    ExecuteTwice(usize, u8),
    LoseRequest(usize),
    Answer(usize),
    LoseAnswer(usize),
    Tell(usize),
    TellTwice(usize),
    LosePush(usize),
    Begin(usize),
    Claim(usize),
    GiveUpOnAnswer(usize),
    GiveUp {
        client: usize,
        pledged: bool,
    },
    Renew(usize, Ttl),
    HandOn(usize),
    End(usize),
    Reconnect(usize),
    Crash(usize),
    SendRelease(Token),
    GiveUpOnRelease(Token),
    /// The time comes after which all claims of the token that are under way are void.
    ClaimsBecomeVoid(Token),
    LockExpires,
    TicketExpires(usize),
    ForeignTakes,
}

/// A transition in the making.
pub(crate) struct Step<'a> {
    pub(crate) protocol: &'a Protocol,
    pub(crate) state: State,
    /// How many of those in the queue are still to be found not listening.
    pub(crate) skips: u8,
    newest: [u8; 3],
    events: Vec<Event>,
    impossible: bool,
}

impl Step<'_> {
    pub(crate) fn time(&mut self) -> u8 {
        self.newest[0] += 1;
        self.newest[0]
    }

    pub(crate) fn ticket(&mut self) -> u8 {
        self.newest[1] += 1;
        self.newest[1]
    }

    pub(crate) fn fence(&mut self) -> u8 {
        self.newest[2] += 1;
        self.newest[2]
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.protocol.broken == Some(rule)
    }

    pub(crate) fn count(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(crate) fn breach(&mut self, promise: Promise) {
        self.state.broken.get_or_insert(promise);
    }

    pub(crate) fn is_crashed(&self, token: Token) -> bool {
        self.state.clients[self.protocol.owner(token)].phase == Phase::Crashed
    }

    /// Nobody hears a grant for `token`.
    pub(crate) fn miss(&mut self, token: Token) {
        if self.is_crashed(token) {
            self.count(Event::DeadSkipped);
        } else {
            self.count(Event::Unheard);
            if !self.protocol.rare.iter().any(|(kind, _)| *kind == Rare::Unheard) {
                self.impossible = true;
            }
            self.pay(Rare::Unheard);
        }
    }

    fn pay(&mut self, rare: Rare) {
        let purse = self.protocol.purse(rare);
        let left = &mut self.state.left[purse];
        match left.checked_sub(1) {
            Some(less) => *left = less,
            None => self.impossible = true,
        }
    }

    fn crash(&mut self, client: usize) {
        self.count(Event::Crashed);
        let connection = self.state.clients[client].connection;
        self.state.clients[client] = Client { connection, ..Client::of(Phase::Crashed) };
        for token in self.protocol.tokens(client) {
            self.state.traces[token] = Trace::default();
        }
        self.state.replies.retain(|reply| usize::from(reply.client) != client);
    }

    fn claims_become_void(&mut self, token: Token) {
        for request in &mut self.state.requests {
            if let Ask::Claim { void, .. } = &mut request.ask
                && request.token == token
            {
                *void = true;
            }
        }
        if let Some(flight) = &mut self.state.traces[usize::from(token)].flight {
            flight.void = true;
        }
        let client = &mut self.state.clients[self.protocol.owner(token)];
        if client.token == token
            && let Some(asked) = &mut client.asked
        {
            asked.void = true;
        }
    }

    fn take(&mut self, action: Action) {
        match action.0 {
            What::Execute(index, _) => {
                let request = self.state.requests.remove(index);
                self.execute(request);
            }
            What::ExecuteTwice(index, _) => {
                self.count(Event::DoubledRequest);
                let request = self.state.requests.remove(index);
                self.execute(request);
                self.execute(request);
            }
            What::LoseRequest(index) => {
                self.count(Event::Lost);
                self.state.requests.remove(index);
            }
            What::Answer(index) => {
                let reply = self.state.replies.remove(index);
                self.answered(&reply);
            }
            What::LoseAnswer(index) => {
                self.count(Event::Lost);
                self.state.replies.remove(index);
            }
            What::Tell(index) => {
                let message = self.state.pushes.remove(index);
                self.told(message);
            }
            What::TellTwice(index) => {
                self.count(Event::DoubledPush);
                self.told(self.state.pushes[index]);
            }
            What::LosePush(index) => {
                self.count(Event::Lost);
                self.state.pushes.remove(index);
            }
            What::Begin(client) => self.begin(client),
            What::Claim(client) => self.claim(client),
            What::GiveUpOnAnswer(client) => self.give_up_on_the_answer(client),
            What::GiveUp { client, pledged } => self.give_up(client, pledged),
            What::Renew(client, ttl) => self.renew_lease(client, ttl),
            What::HandOn(client) => self.hand_on(client),
            What::End(client) => self.end(client),
            What::Reconnect(client) => {
                self.count(Event::Reconnected);
                self.reconnect(client);
            }
            What::Crash(client) => self.crash(client),
            What::SendRelease(token) => self.send_release(token),
            What::GiveUpOnRelease(token) => {
                self.state.traces[usize::from(token)].release = Some(0);
            }
            What::ClaimsBecomeVoid(token) => self.claims_become_void(token),
            What::LockExpires => self.expire(),
            What::TicketExpires(index) => {
                self.count(Event::TicketExpired);
                self.state.queue.remove(index);
            }
            What::ForeignTakes => self.taken_by_another(),
        }
    }

    /// Drops what nobody waits for: such answers and messages are ignored whenever they come.
    fn forget_ignored(&mut self) {
        let clients = &self.state.clients;
        let (replies, pushes) = (self.state.replies.len(), self.state.pushes.len());
        self.state.replies.retain(|reply| {
            let client = &clients[usize::from(reply.client)];
            let held = client.phase == Phase::Held && client.token == reply.token;
            client.asked.is_some_and(|asked| asked.sent == reply.sent)
                || self.state.traces[usize::from(reply.token)].release == Some(reply.sent)
                || held && reply.answer.is_about_lease()
        });
        self.state.pushes.retain(|message| {
            let client = &clients[self.protocol.owner(message.token)];
            client.phase == Phase::Waiting && client.token == message.token
        });
        let replies = replies - self.state.replies.len();
        let pushes = pushes - self.state.pushes.len();
        self.events.extend(std::iter::repeat_n(Event::AnswerIgnored, replies));
        self.events.extend(std::iter::repeat_n(Event::PushIgnored, pushes));
    }
}

impl Client {
    const fn of(phase: Phase) -> Self {
        Self {
            phase,
            turn: 0,
            token: 0,
            connection: 0,
            contended: false,
            asked: None,
            next: Next::Never,
            voids: 0,
            place: None,
            early: None,
            lease: Span([0; 3]),
            fence: (0, 0),
        }
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
    fn purse(&self, rare: Rare) -> usize {
        if self.in_all.is_some() { 0 } else { rare as usize }
    }

    /// Whether somebody waits for it or holds it.
    fn is_live(&self, state: &State, token: Token) -> bool {
        let client = &state.clients[self.owner(token)];
        matches!(client.phase, Phase::Waiting | Phase::Held) && client.token == token
    }

    fn is_crashed(&self, state: &State, token: Token) -> bool {
        state.clients[self.owner(token)].phase == Phase::Crashed
    }

    /// Whether the time of a lock is what ends it, as its holder does not.
    fn expires_anyway(&self, state: &State) -> bool {
        state.lock.is_some_and(|lock| {
            lock.kept || lock.token == FOREIGN || self.is_crashed(state, lock.token)
        })
    }

    fn messages(state: &State, actions: &mut Vec<Action>) {
        let mut before: Option<&Request> = None;
        for (index, request) in state.requests.iter().enumerate() {
            let of = |request: &Request| (request.client, request.connection);
            // A connection keeps the order.
            if before.is_some_and(|before| of(before) == of(request)) {
                continue;
            }
            before = Some(request);
            let most = if matches!(request.ask, Ask::Renew(_)) { 0 } else { state.queue.len() };
            #[allow(clippy::cast_possible_truncation)] // no longer than there are tokens
            for skips in 0..=most as u8 {
                actions.push(Action(What::Execute(index, skips), None));
                actions.push(Action(What::ExecuteTwice(index, skips), Some(Rare::Double)));
            }
            actions.push(Action(What::LoseRequest(index), Some(Rare::Loss)));
        }
        let mut answered = [false; 8];
        for (index, reply) in state.replies.iter().enumerate() {
            if std::mem::replace(&mut answered[usize::from(reply.client)], true) {
                continue;
            }
            actions.push(Action(What::Answer(index), None));
            actions.push(Action(What::LoseAnswer(index), Some(Rare::Loss)));
        }
        let mut before: Option<&Message> = None;
        for (index, message) in state.pushes.iter().enumerate() {
            if before == Some(message) {
                continue;
            }
            before = Some(message);
            actions.push(Action(What::Tell(index), None));
            actions.push(Action(What::TellTwice(index), Some(Rare::Double)));
            actions.push(Action(What::LosePush(index), Some(Rare::Loss)));
        }
    }

    fn client(&self, state: &State, client: usize, calm: bool, actions: &mut Vec<Action>) {
        let me = &state.clients[client];
        let has_next = me.turn + 1 < self.turns;
        match me.phase {
            Phase::Idle => actions.push(Action(What::Begin(client), None)),
            Phase::Waiting => {
                match (me.asked, me.next) {
                    (Some(asked), _) => {
                        let rare = state.is_under_way(client, asked.sent).then_some(Rare::Timeout);
                        actions.push(Action(What::GiveUpOnAnswer(client), rare));
                    }
                    (None, Next::Now) => actions.push(Action(What::Claim(client), None)),
                    (None, Next::Later) if self.pauses => {
                        // The pause ends at any moment; it has to only when nothing else goes on.
                        let rare = if calm { None } else { Some(Rare::Refresh) };
                        actions.push(Action(What::Claim(client), rare));
                    }
                    (None, Next::Later | Next::Never) => {}
                }
                let give_up = |pledged| What::GiveUp { client, pledged };
                actions.push(Action(give_up(false), Some(Rare::Cancel)));
                if has_next {
                    actions.push(Action(give_up(true), Some(Rare::Cancel)));
                }
                if me.asked.is_some_and(|asked| !asked.void) {
                    let void = What::ClaimsBecomeVoid(me.token);
                    actions.push(Action(void, Some(Rare::Void)));
                }
            }
            Phase::Held => {
                actions.push(Action(What::End(client), None));
                if me.lease.outlasts(&state.over) {
                    actions.push(Action(What::Renew(client, Ttl::Full), Some(Rare::Renew)));
                    actions.push(Action(What::Renew(client, Ttl::Long), Some(Rare::Extend)));
                    if has_next && !self.min_hold {
                        actions.push(Action(What::HandOn(client), Some(Rare::HandOn)));
                    }
                }
            }
            Phase::Done | Phase::Crashed => {}
        }
        let releases = self.tokens(client).any(|token| state.traces[token].release.is_some());
        let works = !matches!(me.phase, Phase::Done | Phase::Crashed) || releases;
        if works && me.phase != Phase::Crashed {
            actions.push(Action(What::Crash(client), Some(Rare::Crash)));
            actions.push(Action(What::Reconnect(client), Some(Rare::Reconnect)));
        }
    }

    fn releases(&self, state: &State, actions: &mut Vec<Action>) {
        for token in 0..self.clients * self.turns {
            let trace = &state.traces[usize::from(token)];
            match trace.release {
                None => continue,
                Some(0) => actions.push(Action(What::SendRelease(token), None)),
                Some(sent) => {
                    let under_way = state.is_under_way(self.owner(token), sent);
                    let rare = under_way.then_some(Rare::Timeout);
                    actions.push(Action(What::GiveUpOnRelease(token), rare));
                }
            }
            if trace.flight.is_some_and(|flight| !flight.void) {
                actions.push(Action(What::ClaimsBecomeVoid(token), None));
            }
        }
    }
}

impl State {
    /// Whether something that was sent may still be answered.
    fn is_under_way(&self, client: usize, sent: u8) -> bool {
        let connection = self.clients[client].connection;
        self.requests.iter().any(|request| {
            usize::from(request.client) == client
                && request.connection == connection
                && request.sent == sent
        }) || self
            .replies
            .iter()
            .any(|reply| usize::from(reply.client) == client && reply.sent == sent)
    }

    /// Whether nothing is under way, and nobody has anything to do but to wait.
    fn is_quiet(&self) -> bool {
        self.requests.is_empty()
            && self.replies.is_empty()
            && self.pushes.is_empty()
            && self.traces.iter().all(|trace| trace.release.is_none())
    }

    fn is_calm(&self) -> bool {
        self.is_quiet()
            && self.clients.iter().all(|client| match client.phase {
                Phase::Idle | Phase::Held => false,
                Phase::Waiting => client.asked.is_none() && client.next != Next::Now,
                Phase::Done | Phase::Crashed => true,
            })
    }

    fn believes(&self, client: &Client) -> bool {
        client.phase == Phase::Held && client.lease.outlasts(&self.over)
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
        Self::messages(state, actions);
        let calm = state.is_calm();
        for client in 0..state.clients.len() {
            self.client(state, client, calm, actions);
        }
        self.releases(state, actions);
        if state.lock.is_some() {
            let rare = if self.expires_anyway(state) { None } else { Some(Rare::Expiry) };
            actions.push(Action(What::LockExpires, rare));
        } else {
            actions.push(Action(What::ForeignTakes, Some(Rare::Foreign)));
        }
        for (index, (token, _)) in state.queue.iter().enumerate() {
            let rare = (!self.is_crashed(state, *token)).then_some(Rare::TicketExpiry);
            actions.push(Action(What::TicketExpires(index), rare));
        }
        actions.retain(|Action(_, rare)| {
            rare.is_none_or(|rare| {
                state.left[self.purse(rare)] > 0 && self.rare.iter().any(|(kind, _)| *kind == rare)
            })
        });
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let skips = match action.0 {
            What::Execute(_, skips) | What::ExecuteTwice(_, skips) => skips,
            _ => 0,
        };
        let mut state = last.clone();
        let newest = state.newest();
        let events = Vec::new();
        let mut step = Step { protocol: self, state, skips, newest, events, impossible: false };
        if let Some(rare) = action.1 {
            step.pay(rare);
        }
        step.take(action);
        if step.skips > 0 || step.impossible {
            return None;
        }
        step.forget_ignored();
        for event in &step.events {
            self.events.0[*event as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut state = step.state;
        if !self.min_hold {
            state.sort_clients(self.turns);
        }
        state.reduce();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn kept(state: &State, promise: Promise) -> bool {
            state.broken != Some(promise)
        }
        vec![
            Property::always("no two leases at a time", |_, state: &State| {
                state.clients.iter().filter(|client| state.believes(client)).count() <= 1
            }),
            Property::always("a lease that is believed in is on record", |_, state: &State| {
                state.clients.iter().filter(|client| state.believes(client)).all(|client| {
                    state.lock.is_some_and(|lock| !lock.kept && lock.token == client.token)
                })
            }),
            Property::always("fences grow", |_, state| kept(state, Promise::FencesGrow)),
            Property::always("only the holder releases", |_, state| {
                kept(state, Promise::OthersAreNotReleased)
            }),
            Property::always("what is released stays released", |_, state| {
                kept(state, Promise::ReleasedStaysReleased)
            }),
            Property::always("a renewal creates nothing", |_, state| {
                kept(state, Promise::NothingIsResurrected)
            }),
            Property::always("one grant for an acquisition", |_, state| {
                kept(state, Promise::OneGrant)
            }),
            Property::always("first in, first out", |_, state| {
                kept(state, Promise::FirstInFirstOut)
            }),
            Property::always("nothing is left behind", |protocol: &Self, state: &State| {
                let owned =
                    |token| protocol.is_live(state, token) || protocol.is_crashed(state, token);
                !state.is_quiet()
                    || state
                        .lock
                        .is_none_or(|lock| lock.kept || lock.token == FOREIGN || owned(lock.token))
                        && state.queue.iter().all(|(token, _)| owned(*token))
            }),
            Property::always("nobody waits for ever", |protocol: &Self, state: &State| {
                let acts = |client: &Client| client.next == Next::Later && protocol.pauses;
                let waits = |client: &&Client| client.phase == Phase::Waiting;
                !state.is_calm()
                    || state.lock.is_some() && protocol.expires_anyway(state)
                    || state.clients.iter().filter(waits).all(acts)
            }),
        ]
    }
}
