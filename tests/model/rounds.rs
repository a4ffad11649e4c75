//! A model of the tokens of a quorum's rounds: two clients, three members, no expiry.
//!
//! A claim is executed at any time until it is void, once or twice; a release at any time and any
//! number of times, also long after the client that sent it went on. So a lock goes only by a
//! release, and a client that entered must have a majority until it releases.

use stateright::{Model, Property};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    /// How many rounds each client begins.
    pub(crate) rounds: u8,
    /// A round that follows a failed one claims with the same token.
    pub(crate) token_again: bool,
    /// A majority of the members that answered is enough.
    pub(crate) of_those_that_answer: bool,
}

const CLIENTS: usize = 2;
const MEMBERS: usize = 3;

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Inside,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Client {
    phase: Phase,
    /// Counts rounds, from one.
    round: u8,
    /// Members that voted in this round, and those that refused, as bits.
    votes: u8,
    refusals: u8,
    /// Members that a claim of this round may still reach.
    claims: u8,
    /// Rounds that were released, as bits.
    released: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct State {
    /// By member: client and round of the token that has the lock.
    locks: [Option<(u8, u8)>; MEMBERS],
    clients: [Client; CLIENTS],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Begin {
        client: usize,
    },
    Claim {
        client: usize,
        member: usize,
        answered: bool,
    },
    Enter {
        client: usize,
    },
    /// Gives the round up, or leaves the section.
    Release {
        client: usize,
    },
    Released {
        client: usize,
        round: u8,
        member: usize,
    },
}

impl Rounds {
    /// Whether the token of one round is that of another.
    fn is_same(&self, one: u8, two: u8) -> bool {
        one == two || self.token_again
    }
}

impl Model for Rounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if client.round < self.rounds => {
                    actions.push(Action::Begin { client: index });
                }
                Phase::Idle => {}
                Phase::Asking => {
                    for member in (0..MEMBERS).filter(|member| client.claims >> member & 1 == 1) {
                        for answered in [true, false] {
                            actions.push(Action::Claim { client: index, member, answered });
                        }
                    }
                    let answered = (client.votes | client.refusals).count_ones();
                    let asked = if self.of_those_that_answer { answered } else { 3 };
                    if client.votes.count_ones() > asked / 2 {
                        actions.push(Action::Enter { client: index });
                    }
                    actions.push(Action::Release { client: index });
                }
                Phase::Inside => actions.push(Action::Release { client: index }),
            }
            for round in (1..=client.round).filter(|round| client.released >> round & 1 == 1) {
                for member in 0..MEMBERS {
                    actions.push(Action::Released { client: index, round, member });
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Begin { client } => {
                let client = &mut state.clients[client];
                client.round += 1;
                (client.phase, client.votes, client.refusals) = (Phase::Asking, 0, 0);
                client.claims = 0b111;
            }
            Action::Claim { client, member, answered } => {
                let owner = u8::try_from(client).unwrap();
                let client = &mut state.clients[client];
                client.claims &= !(1 << member);
                let lock = &mut state.locks[member];
                if lock.is_none() {
                    *lock = Some((owner, client.round));
                }
                let is_mine = lock.is_some_and(|(holder, round)| {
                    holder == owner && self.is_same(round, client.round)
                });
                if is_mine {
                    *lock = Some((owner, client.round));
                }
                if answered && is_mine {
                    client.votes |= 1 << member;
                } else if answered {
                    client.refusals |= 1 << member;
                }
            }
            Action::Enter { client } => state.clients[client].phase = Phase::Inside,
            Action::Release { client } => {
                let client = &mut state.clients[client];
                client.phase = Phase::Idle;
                client.released |= 1 << client.round;
                // A claim that comes later is void, or meets the release that is repeated.
                client.claims = 0;
            }
            Action::Released { client, round, member } => {
                let owner = u8::try_from(client).unwrap();
                let lock = &mut state.locks[member];
                if lock.is_some_and(|(holder, held)| holder == owner && self.is_same(held, round)) {
                    *lock = None;
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn inside(state: &State) -> usize {
            state.clients.iter().filter(|client| client.phase == Phase::Inside).count()
        }
        vec![
            Property::always("no two clients inside", |_, state: &State| inside(state) <= 1),
            Property::sometimes(
                "a client inside in its last round",
                |model: &Self, state: &State| {
                    let is_last = |client: &Client| {
                        client.phase == Phase::Inside && client.round == model.rounds
                    };
                    state.clients.iter().any(is_last)
                },
            ),
        ]
    }
}
