//! Votes: claims and renewals on a server that is a member of a quorum.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::error::Fault;
use super::protocol::{Server, void, way};
use super::servers::Hop;
use super::transport::{LARGEST_NUMBER, Operation, Reply, VoteOperation, millis_left, millis_up};
use crate::error::{Error, ErrorKind};
use crate::store::{Ballot, Purpose, Vote, VoteError, Voted};
use crate::time::Instant;

impl<P> Server<P> {
    /// Casts a ballot, and once more if the connection breaks, or if it was void because the
    /// server's clock stepped.
    pub(super) async fn vote(&self, ballot: &Ballot) -> Result<Voted, VoteError> {
        match self.vote_if_in_time(ballot).await {
            Ok(Voted { vote: Vote::Void, .. }) => self.vote_if_in_time(ballot).await,
            reply => reply,
        }
    }

    async fn vote_if_in_time(&self, ballot: &Ballot) -> Result<Voted, VoteError> {
        let until = Some(ballot.until);
        let mut route = self.servers().route(&ballot.name);
        let mut in_doubt = None::<Error>;
        loop {
            let reply = match route.hop(until).await {
                Ok(hop) => {
                    let vote = self.vote_once(&hop, ballot).await;
                    vote.map(|vote| Voted { vote, process: hop.live.process() })
                }
                Err(fault) => Err(fault),
            };
            let fault = match reply {
                Ok(voted) => return Ok(voted),
                Err(fault) => fault,
            };
            let first = (!fault.is_without_effect()).then(|| Error::from(fault.clone()));
            if let Err(fault) = route.after(fault, until).await {
                let definite = fault.is_without_effect() && in_doubt.is_none();
                let error = Error::from(fault);
                let error = match in_doubt {
                    Some(first) => error.after(&first),
                    None => error,
                };
                return Err(VoteError { error, definite });
            }
            in_doubt = in_doubt.or(first);
        }
    }

    async fn vote_once(&self, hop: &Hop<'_>, ballot: &Ballot) -> Result<Vote, Fault> {
        let since = Instant::now();
        let run_id = if ballot.terms.durable { "".into() } else { Arc::clone(&hop.live.run_id) };
        if run_id.is_empty() && !ballot.terms.durable {
            return Err(Fault::NotSent(untold()));
        }
        let void = void(hop, since);
        let sent = self.in_doubt().sent(ballot.token, void, way(&hop.live));
        let operation = Operation::Vote(VoteOperation {
            ttl_ms: millis_up(ballot.ttl),
            void_after: void.after,
            number: match ballot.purpose {
                Purpose::Number(number) => i64::try_from(number).unwrap_or(i64::MAX),
                Purpose::Lock => 0,
                Purpose::Renew => -1,
                Purpose::Repair => -2,
            },
            is_renewal: matches!(ballot.purpose, Purpose::Repair | Purpose::Renew),
            run_id,
            restart_delay_ms: millis_up(ballot.terms.restart_delay),
        });
        let command = self.command(&ballot.name, ballot.token, operation);
        let reply = hop.reply(hop.submit(command, Some(ballot.until))).await;
        let vote = match reply.as_ref() {
            Ok(reply) => read_vote(reply, since),
            // Something else than a lock has the name.
            Err(fault) if fault.is_wrong_type() && ballot.purpose == Purpose::Repair => {
                Ok(Vote::Taken { left: Duration::MAX, least: 0 })
            }
            Err(fault) => Err(fault.clone()),
        };
        sent.answered(&vote);
        if let Ok(reply) = &reply {
            hop.connection.clock().record(reply.us, since, hop.live.generation);
        }
        vote
    }
}

/// Reads the reply to a vote that was sent at `since`.
pub(super) fn read_vote(Reply { value, .. }: &Reply, since: Instant) -> Result<Vote, Fault> {
    use Value::{Array, Int};
    let number = |number: i64| {
        u64::try_from(number).ok().filter(|number| *number <= LARGEST_NUMBER).ok_or(Fault::Garbled)
    };
    let items = match value {
        Int(-1) => return Ok(Vote::Void),
        Array(items) => items.as_slice(),
        _ => return Err(Fault::Garbled),
    };
    match *items {
        [Int(1), Int(_)] => Ok(Vote::Accepted { since }),
        [Int(3), Int(least)] => Ok(Vote::Refused { since, least: number(least)? }),
        [Int(0), Int(left), Int(least)] => {
            Ok(Vote::Taken { left: millis_left(left), least: number(least)? })
        }
        [Int(2)] => Ok(Vote::Free),
        [Int(4), Int(left)] => Ok(Vote::Quarantined { left: millis_left(left) }),
        _ => Err(Fault::Garbled),
    }
}

fn untold() -> Error {
    Error::plain(
        ErrorKind::Unavailable,
        "the server does not tell its run id, so a restart without its data would not be noticed: \
         permit `+info`",
    )
}
