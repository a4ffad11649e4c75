//! What came back from the ballots of one round.

use std::sync::{Arc, Mutex, PoisonError};

use super::tally::{Reply, Tally, until};
use crate::error::Error;
use crate::store::{Purpose, VoteError, Voted};
use crate::time::Instant;

/// The votes of one round.
#[derive(Debug)]
pub(super) struct Votes {
    pub(super) tally: Tally,
    pub(super) errors: Vec<(usize, Error)>,
    pub(super) voters: Arc<Voters>,
}

/// By member: the process that gave its vote, if it names itself. Also of votes that come when the
/// round is over.
#[derive(Debug)]
pub(super) struct Voters(Mutex<Vec<Option<Arc<str>>>>);

impl Voters {
    pub(super) fn new(members: usize) -> Self {
        Self(Mutex::new(vec![None; members]))
    }

    /// A process gave the vote of a member. Returns another member whose vote it gave before.
    pub(super) fn voted(&self, member: usize, process: &Arc<str>) -> Option<usize> {
        let mut voters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = voters.iter().position(|voter| voter.as_ref() == Some(process));
        voters[member] = Some(Arc::clone(process));
        before.filter(|before| *before != member)
    }

    pub(super) fn all(&self) -> Vec<Option<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Votes {
    pub(super) fn new(members: usize, purpose: Purpose) -> Self {
        let number = if let Purpose::Number(number) = purpose { Some(number) } else { None };
        let (tally, voters) = (Tally::new(members, number), Arc::new(Voters::new(members)));
        Self { tally, errors: Vec::new(), voters }
    }

    pub(super) fn record(&mut self, member: usize, reply: Result<Voted, VoteError>) {
        let reply = match reply {
            Ok(voted) => Reply::Vote(voted.vote),
            Err(failed) => {
                self.errors.push((member, failed.error));
                Reply::Failed { definite: failed.definite }
            }
        };
        self.tally.record(member, reply);
    }

    /// The earliest time from which each member of a majority holds the lock.
    pub(super) fn since_of_majority(&self) -> Option<Instant> {
        let since: Vec<_> = self
            .tally
            .replies()
            .iter()
            .map(|reply| if let Reply::Vote(vote) = reply { vote.since() } else { None })
            .collect();
        until(&since)
    }
}
