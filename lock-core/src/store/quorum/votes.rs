//! What came back from the ballots of one round.

use super::tally::{Reply, Tally, until};
use crate::error::Error;
use crate::store::{Purpose, Vote, VoteError};
use crate::time::Instant;

/// The votes of one round.
#[derive(Debug)]
pub(super) struct Votes {
    pub(super) tally: Tally,
    pub(super) errors: Vec<(usize, Error)>,
}

impl Votes {
    pub(super) fn new(members: usize, purpose: Purpose) -> Self {
        let number = if let Purpose::Number(number) = purpose { Some(number) } else { None };
        Self { tally: Tally::new(members, number), errors: Vec::new() }
    }

    pub(super) fn record(&mut self, member: usize, reply: Result<Vote, VoteError>) {
        let reply = match reply {
            Ok(vote) => Reply::Vote(vote),
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
