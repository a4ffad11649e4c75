//! The actions that are possible in a state.

use super::protocol::{Protocol, WrongRule};
use super::state::{Command, FOREIGN, Message, Next, Phase, Rare, Request, State, Token, Ttl};
use super::step::{Action, What};

impl Protocol {
    /// Adds every action that is possible in `state`.
    pub(crate) fn choices(&self, state: &State, actions: &mut Vec<Action>) {
        Self::messages(state, actions);
        let calm = state.is_calm();
        for client in 0..state.clients.len() {
            self.client(state, client, calm, actions);
        }
        self.releases(state, actions);
        if state.lock.is_some() {
            actions.push(Action(What::ClockStepsBack, Some(Rare::ClockStep)));
            let rare = if self.expires_anyway(state) { None } else { Some(Rare::Expiry) };
            actions.push(Action(What::LockExpires, rare));
        } else {
            actions.push(Action(What::ForeignAcquires, Some(Rare::Foreign)));
        }
        for (index, (token, _)) in state.queue.iter().enumerate() {
            let rare = (!self.is_crashed(state, *token)).then_some(Rare::TicketExpiry);
            actions.push(Action(What::TicketExpires(index), rare));
        }
        actions.retain(|Action(_, rare)| {
            rare.is_none_or(|rare| {
                state.remaining[self.budget(rare)] > 0
                    && self.rare.iter().any(|(kind, _)| *kind == rare)
            })
        });
    }

    /// Whether a client waits with this token or holds the lock with it.
    pub(crate) fn is_live(&self, state: &State, token: Token) -> bool {
        let client = &state.clients[self.owner(token)];
        matches!(client.phase, Phase::Waiting | Phase::Held) && client.token == token
    }

    pub(crate) fn is_crashed(&self, state: &State, token: Token) -> bool {
        state.clients[self.owner(token)].phase == Phase::Crashed
    }

    /// Whether only its expiry can end the lock, because no holder will release it.
    pub(crate) fn expires_anyway(&self, state: &State) -> bool {
        state.lock.is_some_and(|lock| {
            lock.kept || lock.token == FOREIGN || self.is_crashed(state, lock.token)
        })
    }

    fn messages(state: &State, actions: &mut Vec<Action>) {
        let mut before: Option<&Request> = None;
        for (index, request) in state.requests.iter().enumerate() {
            let of = |request: &Request| (request.client, request.connection);
            // A connection delivers requests in order.
            if before.is_some_and(|before| of(before) == of(request)) {
                continue;
            }
            before = Some(request);
            let most = if matches!(request.command, Command::Renew { .. }) {
                0
            } else {
                state.queue.len()
            };
            #[allow(clippy::cast_possible_truncation)] // at most as long as there are tokens
            for skips in 0..=most as u8 {
                actions.push(Action(What::Execute(index, skips), None));
                actions.push(Action(What::ExecuteTwice(index, skips), Some(Rare::Duplicate)));
            }
            actions.push(Action(What::LoseRequest(index), Some(Rare::Loss)));
        }
        let mut answered = [false; 8];
        for (index, response) in state.responses.iter().enumerate() {
            if std::mem::replace(&mut answered[usize::from(response.client)], true) {
                continue;
            }
            actions.push(Action(What::DeliverResponse(index), None));
            actions.push(Action(What::LoseResponse(index), Some(Rare::Loss)));
        }
        let mut before: Option<&Message> = None;
        for (index, message) in state.pushes.iter().enumerate() {
            if before == Some(message) {
                continue;
            }
            before = Some(message);
            actions.push(Action(What::DeliverPush(index), None));
            actions.push(Action(What::DeliverPushTwice(index), Some(Rare::Duplicate)));
            actions.push(Action(What::LosePush(index), Some(Rare::Loss)));
        }
    }

    fn client(&self, state: &State, client: usize, calm: bool, actions: &mut Vec<Action>) {
        let me = &state.clients[client];
        let has_next = me.turn + 1 < self.turns;
        match me.phase {
            Phase::Idle => actions.push(Action(What::Begin(client), None)),
            Phase::Waiting => {
                match (me.pending, me.next) {
                    (Some(pending), _) => {
                        let rare =
                            state.awaits_response(client, pending.sent).then_some(Rare::Timeout);
                        actions.push(Action(What::TimeOutClaim(client), rare));
                    }
                    (None, Next::Now) => actions.push(Action(What::Claim(client), None)),
                    (None, Next::Later) if self.pauses => {
                        // The pause may end at any moment, but must end only when nothing else can
                        // happen.
                        let rare = if calm { None } else { Some(Rare::Refresh) };
                        actions.push(Action(What::Claim(client), rare));
                    }
                    (None, Next::Later | Next::Never) => {}
                }
                let give_up = |handed_on| What::GiveUp { client, handed_on };
                actions.push(Action(give_up(false), Some(Rare::Cancel)));
                if has_next {
                    actions.push(Action(give_up(true), Some(Rare::Cancel)));
                }
                if me.pending.is_some_and(|pending| !pending.void) {
                    let void = What::ClaimsBecomeVoid(me.token);
                    actions.push(Action(void, Some(Rare::Void)));
                }
            }
            Phase::Held => {
                actions.push(Action(What::End(client), None));
                if me.lease.outlasts(&state.expired) {
                    actions.push(Action(What::Renew(client, Ttl::Full), Some(Rare::Renew)));
                    actions.push(Action(What::Renew(client, Ttl::Long), Some(Rare::Extend)));
                    if self.may_cut(state, client) {
                        actions.push(Action(What::Cut(client), Some(Rare::Renew)));
                    }
                    if has_next && !self.min_hold {
                        actions.push(Action(What::HandOn(client), Some(Rare::HandOn)));
                    }
                }
            }
            Phase::Done | Phase::Crashed => {}
        }
        if state.records[usize::from(me.token)].cut.is_some_and(|cut| !cut.void)
            && me.phase == Phase::Held
        {
            actions.push(Action(What::CutBecomesVoid(me.token), None));
        }
        let releases = self.tokens(client).any(|token| state.records[token].release.is_some());
        let works = !matches!(me.phase, Phase::Done | Phase::Crashed) || releases;
        if works && me.phase != Phase::Crashed {
            actions.push(Action(What::Crash(client), Some(Rare::Crash)));
            actions.push(Action(What::Reconnect(client), Some(Rare::Reconnect)));
        }
    }

    /// `in_doubt.rs`, `renewing`: whether the client may cut. It may have seen the server's clock
    /// go back, and no other call of the token is under way.
    fn may_cut(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        let record = &state.records[usize::from(me.token)];
        let sent = state.requests.iter().any(|request| {
            let is_mine = usize::from(request.client) == client && request.token == me.token;
            is_mine
                && request.connection == me.connection
                && matches!(request.command, Command::Renew { .. })
        });
        let answered = state
            .responses
            .iter()
            .any(|response| response.token == me.token && response.reply.is_about_lease());
        let claims = record.in_doubt.is_some_and(|in_doubt| !in_doubt.void);
        let is_alone = !sent && !answered && !claims && record.cut.is_none_or(|cut| cut.void);
        state.stepped && (is_alone || self.wrong_rule == Some(WrongRule::CutBesideAnother))
    }

    fn releases(&self, state: &State, actions: &mut Vec<Action>) {
        for token in 0..self.clients * self.turns {
            let record = &state.records[usize::from(token)];
            match record.release {
                None => continue,
                Some(0) => actions.push(Action(What::SendRelease(token), None)),
                Some(sent) => {
                    let in_flight = state.awaits_response(self.owner(token), sent);
                    let rare = in_flight.then_some(Rare::Timeout);
                    actions.push(Action(What::TimeOutRelease(token), rare));
                }
            }
            if record.in_doubt.is_some_and(|in_doubt| !in_doubt.void) {
                actions.push(Action(What::ClaimsBecomeVoid(token), None));
            }
        }
    }
}

impl State {
    /// Whether a reply to what was sent may still arrive.
    fn awaits_response(&self, client: usize, sent: u8) -> bool {
        let connection = self.clients[client].connection;
        self.requests.iter().any(|request| {
            usize::from(request.client) == client
                && request.connection == connection
                && request.sent == sent
        }) || self
            .responses
            .iter()
            .any(|response| usize::from(response.client) == client && response.sent == sent)
    }

    /// Whether no message or release is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.requests.is_empty()
            && self.responses.is_empty()
            && self.pushes.is_empty()
            && self.records.iter().all(|record| record.release.is_none())
    }

    /// Whether the state is quiet and every client that still has work can only wait.
    pub(crate) fn is_calm(&self) -> bool {
        self.is_quiet()
            && self.clients.iter().all(|client| match client.phase {
                Phase::Idle | Phase::Held => false,
                Phase::Waiting => client.pending.is_none() && client.next != Next::Now,
                Phase::Done | Phase::Crashed => true,
            })
    }
}
