//! The search through all states of the model.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::promises;
use super::protocol::Protocol;
use super::state::{Client, KINDS, Phase, Record, Span, State};
use super::step::{Action, Step};

/// The result of a search through all states.
pub(crate) struct Found {
    pub(crate) states: usize,
    /// The properties that do not hold, with the shortest path to a counterexample.
    pub(crate) refuted: Vec<(&'static str, String)>,
}

/// Visits all states, or stops when a property does not hold.
pub(crate) fn explore<M>(name: &str, model: M) -> Found
where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + 'static,
{
    let since = Instant::now();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states in {:.1} s", since.elapsed().as_secs_f32());
    let discoveries = checker.discoveries().into_iter();
    let refuted = discoveries.map(|(property, path)| {
        let steps: Vec<_> =
            path.into_actions().iter().map(|action| format!("  {action:?}\n")).collect();
        (property, steps.concat())
    });
    Found { states, refuted: refuted.collect() }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut remaining = [0; KINDS];
        for (rare, times) in &self.rare {
            remaining[self.budget(*rare)] = self.in_all.unwrap_or(*times);
        }
        vec![State {
            lock: None,
            queue: Vec::new(),
            clients: vec![Client::of(Phase::Idle); usize::from(self.clients)],
            records: vec![Record::default(); usize::from(self.clients * self.turns)],
            requests: Vec::new(),
            responses: Vec::new(),
            pushes: Vec::new(),
            remaining,
            expired: Span::default(),
            stepped: false,
            last: (0, 0),
            breached: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.choices(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, events) = Step::of(self, last.clone(), action)?;
        for event in events {
            self.events.count(event);
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
