//! A model of fencing tokens on a quorum: claims that propose their number, on three members.
//!
//! No timing is assumed. Every claim that was ever sent may be executed at any time, any number of
//! times, or never; every reply may be lost; a lock may vanish at any moment; an adversary chooses
//! the numbers that are proposed, and a client acts on any set of replies. Members may forget
//! everything.

use stateright::{Model, Property};

/// What is modelled, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Votes {
    pub(crate) clients: usize,
    /// The largest number that a first claim proposes.
    pub(crate) numbers: u8,
    /// How often a client claims again with a larger number.
    pub(crate) repeats: u8,
    /// How many members forget.
    pub(crate) forgets: u8,
    /// For how long the clock runs.
    pub(crate) ticks: u8,
    pub(crate) wrong_rule: Option<WrongVote>,
}

/// A rule that is wrong in one point.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WrongVote {
    /// The last number that a member accepted counts as a vote if the claimant has the lock.
    EqualNumberCounts,
    /// A member accepts a number without comparing it.
    WithoutComparison,
    /// Each member counts by itself, and the largest number of a majority counts.
    MembersNumber,
    /// A member that forgot votes at once.
    WithoutDelay,
    /// A member accepts numbers that are far from its clock.
    WithoutWindow,
}

const MEMBERS: usize = 3;
const MAJORITY: u32 = 2;
const MOST_CLIENTS: usize = 3;
const MOST_CLAIMS: usize = 2;
/// How far from the clock a number may be, in ticks.
const WINDOW: u8 = 1;
/// Longer than two windows.
const DELAY: u8 = 3;

#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Member {
    /// The client that has the lock, counted from one.
    holder: u8,
    /// The last number that it accepted.
    last: u8,
    /// When it votes again.
    votes_at: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Client {
    claims: u8,
    numbers: [u8; MOST_CLAIMS],
    /// The members that voted for its last claim, as bits.
    votes: u8,
    /// What they numbered, if they do.
    counted: [u8; MEMBERS],
    /// The largest number that a refusal named.
    refused: u8,
    /// The largest number that was granted when it sent its last claim.
    granted_before: u8,
    granted: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct State {
    members: [Member; MEMBERS],
    clients: [Client; MOST_CLIENTS],
    forgets: u8,
    now: u8,
    twice: bool,
    not_above: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Tick,
    Vanish { member: usize },
    Forget { member: usize },
    Claim { client: usize, number: u8 },
    Execute { client: usize, claim: usize, member: usize, answered: bool },
    Enter { client: usize, number: u8 },
}

impl State {
    /// Puts clients and members into an order: which one is which does not matter.
    fn rename(&mut self) {
        let mut order: [usize; MOST_CLIENTS] = std::array::from_fn(|index| index);
        order.sort_by_key(|index| {
            let Client { claims, numbers, refused, granted_before, granted, votes, .. } =
                self.clients[*index];
            // Those that are not modelled stay last.
            let is_idle = self.clients[*index] == Client::default();
            (is_idle, claims, numbers, refused, granted_before, granted, votes.count_ones())
        });
        self.clients = order.map(|index| self.clients[index]);
        for member in &mut self.members {
            if let Some(holder) = usize::from(member.holder).checked_sub(1) {
                let place = order.iter().position(|index| *index == holder).unwrap();
                member.holder = u8::try_from(place).unwrap() + 1;
            }
        }
        let mut order: [usize; MEMBERS] = std::array::from_fn(|index| index);
        order.sort_by_key(|index| {
            let of_clients = self.clients.map(|it| (it.votes >> index & 1, it.counted[*index]));
            (self.members[*index], of_clients)
        });
        self.members = order.map(|index| self.members[index]);
        for client in &mut self.clients {
            let votes = order.iter().enumerate();
            let votes = votes.map(|(place, index)| (client.votes >> index & 1) << place).sum();
            (client.votes, client.counted) = (votes, order.map(|index| client.counted[index]));
        }
    }
}

impl Votes {
    fn is_timed(&self) -> bool {
        self.ticks > 0
    }

    fn breaks(&self, rule: WrongVote) -> bool {
        self.wrong_rule == Some(rule)
    }

    /// Executes a claim. Gives whether the member votes, what it numbers, and what a refusal says.
    fn execute(&self, state: &mut State, client: usize, number: u8, member: usize) -> (bool, u8) {
        let (now, me) = (state.now, u8::try_from(client).unwrap() + 1);
        let member = &mut state.members[member];
        // vote.lua | taken = may_take and redis.call('SET', lock, token, 'NX', 'PX', ttl)
        if member.holder == 0 {
            member.holder = me;
        }
        // vote.lua | local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
        if member.holder != me {
            return (false, member.last);
        }
        if self.breaks(WrongVote::MembersNumber) {
            member.last += 1;
            return (true, member.last);
        }
        let is_near = !self.is_timed()
            || self.breaks(WrongVote::WithoutWindow)
            || number + WINDOW >= now && number <= now + WINDOW;
        let is_larger = number > member.last
            || self.breaks(WrongVote::WithoutComparison)
            || self.breaks(WrongVote::EqualNumberCounts) && number == member.last;
        // vote.lua | return math.max(tonumber(redis.call('GET', numbers) or 0) or 0, us - WINDOW)
        if !(is_near && is_larger) {
            return (false, member.last.max(1));
        }
        // vote.lua | redis.call('SET', numbers, number)
        member.last = member.last.max(number);
        (true, 0)
    }
}

impl Model for Votes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { forgets: self.forgets, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        for (index, member) in state.members.iter().enumerate() {
            if member.holder != 0 {
                actions.push(Action::Vanish { member: index });
            }
            if state.forgets > 0 && (member.holder != 0 || member.last != 0) {
                actions.push(Action::Forget { member: index });
            }
        }
        for (index, client) in state.clients[..self.clients].iter().enumerate() {
            if client.granted > 0 {
                continue;
            }
            if client.claims == 0 {
                let near =
                    |number: &u8| !self.is_timed() || number.abs_diff(state.now) <= 2 * WINDOW;
                for number in (1..=self.numbers).filter(near) {
                    actions.push(Action::Claim { client: index, number });
                }
            } else if client.refused > 0 && client.claims <= self.repeats {
                let number = client.refused + 1;
                actions.push(Action::Claim { client: index, number });
            }
            for claim in 0..usize::from(client.claims) {
                for member in 0..MEMBERS {
                    actions.push(Action::Execute { client: index, claim, member, answered: false });
                    if claim + 1 == usize::from(client.claims) {
                        let answered = true;
                        actions.push(Action::Execute { client: index, claim, member, answered });
                    }
                }
            }
            if client.votes.count_ones() >= MAJORITY {
                if self.breaks(WrongVote::MembersNumber) {
                    let counted = (0..MEMBERS).filter(|member| client.votes >> member & 1 == 1);
                    let number = counted.map(|member| client.counted[member]).max().unwrap_or(0);
                    actions.push(Action::Enter { client: index, number });
                } else {
                    let number = client.numbers[usize::from(client.claims) - 1];
                    actions.push(Action::Enter { client: index, number });
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        let granted = last.clients.iter().map(|client| client.granted).max().unwrap_or(0);
        match action {
            Action::Tick => state.now += 1,
            Action::Vanish { member } => state.members[member].holder = 0,
            Action::Forget { member } => {
                state.forgets -= 1;
                let delay = if self.breaks(WrongVote::WithoutDelay) { 0 } else { DELAY };
                // vote.lua | local left = quarantine()
                let votes_at = if self.is_timed() { state.now + delay } else { 0 };
                state.members[member] = Member { votes_at, ..Member::default() };
            }
            Action::Claim { client, number } => {
                let client = &mut state.clients[client];
                client.numbers[usize::from(client.claims)] = number;
                client.claims += 1;
                (client.votes, client.refused, client.counted) = (0, 0, [0; MEMBERS]);
                client.granted_before = granted;
            }
            Action::Execute { client, claim, member, answered } => {
                // vote.lua | elseif left > 0 then
                if state.now < state.members[member].votes_at {
                    return None;
                }
                let number = state.clients[client].numbers[claim];
                let (votes, told) = self.execute(&mut state, client, number, member);
                if answered {
                    let client = &mut state.clients[client];
                    if votes {
                        client.votes |= 1 << member;
                        client.counted[member] = told;
                    } else {
                        client.refused = client.refused.max(told);
                    }
                }
            }
            Action::Enter { client, number } => {
                state.twice |= last.clients.iter().any(|other| other.granted == number);
                let client = &mut state.clients[client];
                state.not_above |= number <= client.granted_before;
                client.granted = number;
                (client.votes, client.refused, client.counted) = (0, 0, [0; MEMBERS]);
            }
        }
        state.rename();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no number is granted twice", |_, state: &State| !state.twice),
            Property::always(
                "a number is above those that were granted before its claim was sent",
                |_, state: &State| !state.not_above,
            ),
            Property::sometimes("all clients are granted", |model: &Self, state: &State| {
                state.clients[..model.clients].iter().all(|client| client.granted > 0)
            }),
        ]
    }
}
