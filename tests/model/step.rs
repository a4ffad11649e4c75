//! What happens: one transition at a time.

use super::protocol::{Broken, Event, Protocol};
use super::state::{Ask, Client, Next, Phase, Promise, Rare, Span, State, Token, Trace, Ttl};

/// What happens, and what it is counted as if it may happen only so often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Action(pub(crate) What, pub(crate) Option<Rare>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
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

impl<'a> Step<'a> {
    /// The state after `action`, and what was come across; none if it cannot happen.
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
            step.pay(rare);
        }
        step.take(action);
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
    pub(crate) const fn of(phase: Phase) -> Self {
        Self {
            phase,
            turn: 0,
            token: 0,
            connection: 0,
            contended: false,
            asked: None,
            next: Next::Never,
            place: None,
            early: None,
            lease: Span([0; 3]),
            fence: (0, 0),
        }
    }
}
