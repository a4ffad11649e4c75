//! Whether the members are as many servers: one that two addresses lead to would vote twice.
//!
//! Each connection learns which process it leads to, so this is known anew after each reconnect: a
//! name or a proxy that leads elsewhere by then is noticed. A vote is that of the process behind
//! the connection that carried the ballot, whatever is connected when the reply comes. Claims are
//! refused altogether, since the list of members is wrong. A held lease goes on if the servers,
//! each counted once, are a majority.

use std::sync::Arc;

use super::failure::Failure;
use super::votes::Voters;
use crate::store::{Member, Purpose, Vote, VoteError, Voted};

/// Refuses members of which two lead to one server.
pub(super) fn one_each(members: &[Arc<dyn Member>]) -> Result<(), Failure> {
    let open: Vec<_> = members.iter().map(|member| member.process()).collect();
    all_differ(members, &open)
}

/// Refuses members of which two had the vote of one server.
pub(super) fn one_vote_each(members: &[Arc<dyn Member>], voters: &Voters) -> Result<(), Failure> {
    all_differ(members, &voters.all())
}

fn all_differ(members: &[Arc<dyn Member>], by: &[Option<Arc<str>>]) -> Result<(), Failure> {
    for (index, process) in by.iter().enumerate().filter(|(_, process)| process.is_some()) {
        if let Some(before) = by[..index].iter().position(|other| other == process) {
            return Err(Failure::same_server(members, before, index));
        }
    }
    Ok(())
}

/// The reply of a member to a ballot. Of the votes of one server on a renewal the first one counts.
pub(super) fn counted_once(
    members: &[Arc<dyn Member>],
    voters: &Voters,
    index: usize,
    purpose: Purpose,
    reply: Result<Voted, VoteError>,
) -> Result<Voted, VoteError> {
    let voted = reply?;
    let process = voted.process.as_ref().filter(|_| voted.vote != Vote::Void);
    match process.and_then(|process| voters.voted(index, process)) {
        Some(before) if matches!(purpose, Purpose::Renew | Purpose::Repair) => {
            let error = Failure::same_server(members, before, index).into_error();
            Err(VoteError { error, definite: false })
        }
        _ => Ok(voted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::store::QuorumStore;
    use crate::time::Instant;

    /// Members without a connection: it was taken out while ballots were under way.
    fn members() -> Arc<[Arc<dyn Member>]> {
        let store = QuorumStore::builder(["redis://a/", "redis://b/", "redis://c/"]);
        let members = Arc::clone(&store.connect_lazy().unwrap().quorum.members);
        assert!(members.iter().all(|member| member.process().is_none()));
        members
    }

    fn by(process: &str) -> Result<Voted, VoteError> {
        let vote = Vote::Accepted { since: Instant::now() };
        Ok(Voted { vote, process: Some(process.into()) })
    }

    fn error_of(reply: Result<Voted, VoteError>) -> String {
        let failed = reply.unwrap_err();
        assert!(!failed.definite, "the server may have the lock");
        failed.error.to_string()
    }

    /// One server has two names. The connection of one name had just been taken out, and its vote
    /// counted as well.
    #[test]
    fn renewal_counts_once_for_a_server_whose_connection_is_gone() {
        let (members, voters) = (members(), Voters::new(3));
        let count = |index, reply| counted_once(&members, &voters, index, Purpose::Repair, reply);
        count(2, by("x")).unwrap();
        let error = error_of(count(0, by("x")));
        assert!(error.contains("are the same server"), "{error}");
        count(1, by("y")).unwrap();
    }

    /// The name before it led to the same server, did not reply, and took its vote away.
    #[test]
    fn renewal_counts_for_the_later_of_two_names_if_the_earlier_one_did_not_reply() {
        let (members, voters) = (members(), Voters::new(3));
        let count = |index, reply| counted_once(&members, &voters, index, Purpose::Renew, reply);
        let error = Error::plain(ErrorKind::Unknown, "no reply");
        count(0, Err(VoteError { error, definite: false })).unwrap_err();
        count(1, by("x")).unwrap();
        count(2, by("y")).unwrap();
        // It does, late.
        count(0, by("x")).unwrap_err();
    }

    /// A ballot that was void got no vote, and servers that do not name themselves are as many.
    #[test]
    fn renewal_counts_beside_replies_that_are_no_vote_of_the_same_server() {
        let (members, voters) = (members(), Voters::new(3));
        let count = |index, reply| counted_once(&members, &voters, index, Purpose::Renew, reply);
        let void = by("x").map(|voted| Voted { vote: Vote::Void, ..voted });
        count(0, void).unwrap();
        count(2, by("x")).unwrap();
        let voters = Voters::new(3);
        for index in 0..3 {
            let unnamed = by("x").map(|voted| Voted { process: None, ..voted });
            counted_once(&members, &voters, index, Purpose::Renew, unnamed).unwrap();
        }
        one_vote_each(&members, &voters).unwrap();
    }

    #[test]
    fn claim_with_two_votes_of_one_server_is_refused_though_its_connection_is_gone() {
        let (members, voters) = (members(), Voters::new(3));
        for (index, process) in [(1, "x"), (0, "y"), (2, "x")] {
            one_vote_each(&members, &voters).unwrap();
            let reply = counted_once(&members, &voters, index, Purpose::Number(1), by(process));
            reply.expect("what it has is released");
        }
        one_each(&members).expect("nothing is connected");
        let error = one_vote_each(&members, &voters).unwrap_err().into_error();
        assert!(error.to_string().contains("are the same server"), "{error}");
    }
}
