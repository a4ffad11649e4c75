//! The promises, as properties of all states.

use stateright::Property;

use super::protocol::Protocol;
use super::state::{Client, FOREIGN, Next, Phase, Promise, State};

pub(crate) fn all() -> Vec<Property<Protocol>> {
    fn kept(state: &State, promise: Promise) -> bool {
        state.breached != Some(promise)
    }
    vec![
        Property::always("no two leases at a time", |_, state: &State| {
            state.clients.iter().filter(|client| state.believes(client)).count() <= 1
        }),
        Property::always(
            "a lease that a client believes in is on the server",
            |_, state: &State| {
                state.clients.iter().filter(|client| state.believes(client)).all(|client| {
                    state.lock.is_some_and(|lock| !lock.kept && lock.token == client.token)
                })
            },
        ),
        Property::always("fences grow", |_, state| kept(state, Promise::FencesGrow)),
        Property::always("only the holder releases", |_, state| {
            kept(state, Promise::OthersAreNotReleased)
        }),
        Property::always("a released lock stays released", |_, state| {
            kept(state, Promise::ReleasedStaysReleased)
        }),
        Property::always("a renewal creates nothing", |_, state| {
            kept(state, Promise::NothingIsResurrected)
        }),
        Property::always("one grant per acquisition", |_, state| kept(state, Promise::OneGrant)),
        Property::always("first in, first out", |_, state| kept(state, Promise::FirstInFirstOut)),
        Property::always("nothing is left behind", |protocol: &Protocol, state: &State| {
            let owned = |token| protocol.is_live(state, token) || protocol.is_crashed(state, token);
            !state.is_quiet()
                || state
                    .lock
                    .is_none_or(|lock| lock.kept || lock.token == FOREIGN || owned(lock.token))
                    && state.queue.iter().all(|(token, _)| owned(*token))
        }),
        Property::always("no client waits forever", |protocol: &Protocol, state: &State| {
            let acts = |client: &Client| client.next == Next::Later && protocol.pauses;
            let waits = |client: &&Client| client.phase == Phase::Waiting;
            !state.is_calm()
                || state.lock.is_some() && protocol.expires_anyway(state)
                || state.clients.iter().filter(waits).all(acts)
        }),
    ]
}

impl State {
    fn believes(&self, client: &Client) -> bool {
        client.phase == Phase::Held && client.lease.outlasts(&self.expired)
    }
}
