//! The transitions of the model.

use super::protocol::{Event, Protocol, WrongRule};
use super::state::{Client, Command, Next, Phase, Promise, Rare, Record, Span, State, Token, Ttl};

/// An event, and the limit that it counts against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Action(pub(crate) What, pub(crate) Option<Rare>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// The server executes a request. The first waiters to which it would hand the lock on, in
    /// the given number, have no subscriber.
    Execute(usize, u8),
    /// The server executes a request twice in a row. A copy that arrives after later requests comes
    /// from another connection: see `Reconnect`.
    ExecuteTwice(usize, u8),
    LoseRequest(usize),
    DeliverResponse(usize),
    LoseResponse(usize),
    DeliverPush(usize),
    DeliverPushTwice(usize),
    LosePush(usize),
    Begin(usize),
    Claim(usize),
    TimeOutClaim(usize),
    GiveUp {
        client: usize,
        handed_on: bool,
    },
    Renew(usize, Ttl),
    /// Renews, and brings the expiry back to what was asked.
    Cut(usize),
    HandOn(usize),
    End(usize),
    Reconnect(usize),
    Crash(usize),
    SendRelease(Token),
    TimeOutRelease(Token),
    /// The deadline of all in-flight claims of the token passes.
    ClaimsBecomeVoid(Token),
    /// The server's clock passes the time up to which the cut of the token counts.
    CutBecomesVoid(Token),
    ClockStepsBack,
    LockExpires,
    TicketExpires(usize),
    ForeignAcquires,
}

/// A transition in progress.
pub(crate) struct Step<'a> {
    pub(crate) protocol: &'a Protocol,
    pub(crate) state: State,
    /// The number of waiters in the queue that must still turn out to have no subscriber.
    pub(crate) skips: u8,
    newest: [u8; 3],
    events: Vec<Event>,
    impossible: bool,
}

impl<'a> Step<'a> {
    /// The state after `action` and the events on the way; `None` if the action is impossible.
    pub(crate) fn of(
        protocol: &'a Protocol,
        mut state: State,
        action: Action,
    ) -> Option<(State, Vec<Event>)> {
        let skips = match action.0 {
            What::Execute(_, skips) | What::ExecuteTwice(_, skips) => skips,
            _ => 0,
        };
        let newest = state.newest();
        let mut step =
            Self { protocol, state, skips, newest, events: Vec::new(), impossible: false };
        if let Some(rare) = action.1 {
            step.spend(rare);
        }
        step.apply(action);
        if step.skips > 0 || step.impossible {
            return None;
        }
        step.forget_ignored();
        Some((step.state, step.events))
    }

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

    pub(crate) fn breaks(&self, rule: WrongRule) -> bool {
        self.protocol.wrong_rule == Some(rule)
    }

    pub(crate) fn count(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(crate) fn breach(&mut self, promise: Promise) {
        self.state.breached.get_or_insert(promise);
    }

    pub(crate) fn is_crashed(&self, token: Token) -> bool {
        self.state.clients[self.protocol.owner(token)].phase == Phase::Crashed
    }

    /// A grant for `token` reaches no subscriber.
    pub(crate) fn miss(&mut self, token: Token) {
        if self.is_crashed(token) {
            self.count(Event::CrashedSkipped);
        } else {
            self.count(Event::NoSubscriber);
            if !self.protocol.rare.iter().any(|(kind, _)| *kind == Rare::NoSubscriber) {
                self.impossible = true;
            }
            self.spend(Rare::NoSubscriber);
        }
    }

    fn spend(&mut self, rare: Rare) {
        let budget = self.protocol.budget(rare);
        let left = &mut self.state.remaining[budget];
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
            self.state.records[token] = Record::default();
        }
        self.state.responses.retain(|response| usize::from(response.client) != client);
    }

    fn claims_become_void(&mut self, token: Token) {
        for request in &mut self.state.requests {
            if let Command::Claim { void, .. } = &mut request.command
                && request.token == token
            {
                *void = true;
            }
        }
        if let Some(in_doubt) = &mut self.state.records[usize::from(token)].in_doubt {
            in_doubt.void = true;
        }
        let client = &mut self.state.clients[self.protocol.owner(token)];
        if client.token == token
            && let Some(pending) = &mut client.pending
        {
            pending.void = true;
        }
    }

    fn cut_becomes_void(&mut self, token: Token) {
        for request in &mut self.state.requests {
            if let Command::Renew { cut: Some(cut), .. } = &mut request.command
                && request.token == token
            {
                cut.void = true;
            }
        }
        if let Some(cut) = &mut self.state.records[usize::from(token)].cut {
            cut.void = true;
        }
    }

    fn apply(&mut self, action: Action) {
        match action.0 {
            What::Execute(index, _) => {
                let request = self.state.requests.remove(index);
                self.execute(request);
            }
            What::ExecuteTwice(index, _) => {
                self.count(Event::DuplicatedRequest);
                let request = self.state.requests.remove(index);
                self.execute(request);
                self.execute(request);
            }
            What::LoseRequest(index) => {
                self.count(Event::Lost);
                self.state.requests.remove(index);
            }
            What::DeliverResponse(index) => {
                let response = self.state.responses.remove(index);
                self.receive(&response);
            }
            What::LoseResponse(index) => {
                self.count(Event::Lost);
                self.state.responses.remove(index);
            }
            What::DeliverPush(index) => {
                let message = self.state.pushes.remove(index);
                self.notified(message);
            }
            What::DeliverPushTwice(index) => {
                self.count(Event::DuplicatedPush);
                self.notified(self.state.pushes[index]);
            }
            What::LosePush(index) => {
                self.count(Event::Lost);
                self.state.pushes.remove(index);
            }
            What::Begin(client) => self.begin(client),
            What::Claim(client) => self.claim(client),
            What::TimeOutClaim(client) => self.time_out_claim(client),
            What::GiveUp { client, handed_on } => self.give_up(client, handed_on),
            What::Renew(client, ttl) => self.renew_lease(client, ttl, false),
            What::Cut(client) => self.renew_lease(client, Ttl::Full, true),
            What::HandOn(client) => self.hand_on(client),
            What::End(client) => self.end(client),
            What::Reconnect(client) => {
                self.count(Event::Reconnected);
                self.reconnect(client);
            }
            What::Crash(client) => self.crash(client),
            What::SendRelease(token) => self.send_release(token),
            What::TimeOutRelease(token) => {
                self.state.records[usize::from(token)].release = Some(0);
            }
            What::ClaimsBecomeVoid(token) => self.claims_become_void(token),
            What::CutBecomesVoid(token) => self.cut_becomes_void(token),
            What::ClockStepsBack => self.clock_steps_back(),
            What::LockExpires => self.expire(),
            What::TicketExpires(index) => {
                self.count(Event::TicketExpired);
                self.state.queue.remove(index);
            }
            What::ForeignAcquires => self.taken_by_foreign_client(),
        }
    }

    /// Drops responses and messages that no client awaits. They would be ignored at any time.
    fn forget_ignored(&mut self) {
        let clients = &self.state.clients;
        let (responses, pushes) = (self.state.responses.len(), self.state.pushes.len());
        self.state.responses.retain(|response| {
            let client = &clients[usize::from(response.client)];
            let held = client.phase == Phase::Held && client.token == response.token;
            client.pending.is_some_and(|pending| pending.sent == response.sent)
                || self.state.records[usize::from(response.token)].release == Some(response.sent)
                || held && response.reply.is_about_lease()
        });
        self.state.pushes.retain(|message| {
            let client = &clients[self.protocol.owner(message.token)];
            client.phase == Phase::Waiting && client.token == message.token
        });
        let responses = responses - self.state.responses.len();
        let pushes = pushes - self.state.pushes.len();
        self.events.extend(std::iter::repeat_n(Event::ResponseIgnored, responses));
        self.events.extend(std::iter::repeat_n(Event::PushIgnored, pushes));
    }
}

impl Client {
    pub(crate) const fn of(phase: Phase) -> Self {
        Self {
            phase,
            turn: 0,
            token: 0,
            connection: 0,
            contended: false,
            pending: None,
            next: Next::Never,
            place: None,
            early: None,
            lease: Span([0; 3]),
            fence: (0, 0),
        }
    }
}
