//! Why a round failed: what each member said.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::tally::{Reply, majority};
use super::votes::Votes;
use crate::error::{Error, ErrorKind};
use crate::store::{Member, Vote};

/// The members, whose names the errors tell.
type Members = [Arc<dyn Member>];

/// A round without a majority.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    error: Error,
    /// Members that do not vote for a while, and for how long.
    quarantined: Vec<(usize, Duration)>,
}

/// What each member said, as the source of an error.
#[derive(Debug)]
struct Replies(String);

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Replies {}

impl Failure {
    /// Of a round in which no majority could be had.
    pub(super) fn of(members: &Members, votes: &Votes) -> Self {
        let mut failure = Self { error: error_of(members, votes), quarantined: Vec::new() };
        for (member, reply) in votes.tally.replies().iter().enumerate() {
            if let Reply::Vote(Vote::Quarantined { left }) = reply {
                failure.quarantined.push((member, *left));
            }
        }
        failure
    }

    /// Of rounds whose numbers were refused.
    pub(super) fn numbers(members: &Members, votes: &Votes, is_too_large: bool) -> Self {
        let what = if is_too_large {
            "the clocks of the lock servers are apart by more than a second: synchronise them"
        } else {
            "other claims were numbered before this one, several times in a row"
        };
        Self::plain(unavailable(what, replies(members, votes)))
    }

    /// Of a claim that found too few connections.
    pub(super) fn unconnected(members: &Members, open: usize, failed: &[(usize, Error)]) -> Self {
        let what = no_majority(open, members.len());
        let mut error = unavailable(what, reasons(members, failed));
        let missing = members.len() - majority(members.len());
        if failed.iter().filter(|(_, error)| error.is_permanent()).count() > missing {
            error = error.permanent();
        }
        Self::plain(error)
    }

    pub(super) fn same_server(members: &Members, one: usize, two: usize) -> Self {
        let (one, two) = (&members[one], &members[two]);
        let what = format!("`{one}` and `{two}` are the same server: a quorum needs several");
        Self::plain(Error::plain(ErrorKind::Unavailable, what).permanent())
    }

    /// Of a claim whose token was released meanwhile.
    pub(super) fn released() -> Self {
        let what = "the claim was released before it was granted";
        Self::plain(Error::plain(ErrorKind::Unknown, what))
    }

    fn plain(error: Error) -> Self {
        Self { error, quarantined: Vec::new() }
    }

    pub(super) fn error(&self) -> &Error {
        &self.error
    }

    pub(super) fn into_error(self) -> Error {
        self.error
    }

    /// Members that do not vote for a while, and for how long.
    pub(super) fn quarantined(&self) -> &[(usize, Duration)] {
        &self.quarantined
    }
}

/// The error of a round in which no majority could be had. "Busy" only if other tokens certainly
/// keep the lock from this one.
fn error_of(members: &Members, votes: &Votes) -> Error {
    if let Some(left) = votes.tally.busy_for() {
        return Error::busy(left);
    }
    let wrong_type = votes.errors.iter().find(|(_, error)| error.kind() == ErrorKind::WrongType);
    if let Some((_, error)) = wrong_type {
        return error.clone();
    }
    let mut error = unavailable(what_happened(members, votes), replies(members, votes));
    let most = members.len() - majority(members.len());
    if votes.errors.iter().filter(|(_, error)| error.is_permanent()).count() > most {
        error = error.permanent();
    }
    if votes.tally.may_be_held() {
        return error.in_doubt("the others may have voted for it");
    }
    error
}

fn what_happened(members: &Members, votes: &Votes) -> String {
    let answered = votes.tally.answered();
    if answered < majority(members.len()) {
        return no_majority(answered, members.len());
    }
    let quarantined = votes.tally.replies().iter().enumerate().filter_map(|it| match it {
        (member, Reply::Vote(Vote::Quarantined { left })) => Some((*left, member)),
        _ => None,
    });
    let mut quarantined: Vec<_> = quarantined.collect();
    quarantined.sort_unstable();
    match quarantined.first() {
        Some((left, member)) => format!(
            "{} of {} lock servers may have forgotten locks, so they do not vote yet: the first, \
             {}, votes again in {left:.0?}",
            quarantined.len(),
            members.len(),
            members[*member],
        ),
        None => format!(
            "no majority: {} of {} lock servers have the lock for this claim",
            votes.tally.holding(),
            members.len()
        ),
    }
}

pub(super) fn no_majority(answered: usize, members: usize) -> String {
    format!("no majority: {answered} of {members} lock servers answered")
}

pub(super) fn unavailable(what: impl Into<String>, replies: String) -> Error {
    Error::unavailable(what.into(), Replies(replies))
}

/// Why each of these members failed.
pub(super) fn reasons(members: &Members, failed: &[(usize, Error)]) -> String {
    let texts = failed.iter().map(|(member, error)| reason(&*members[*member], error));
    texts.collect::<Vec<_>>().join("; ")
}

/// Why a member failed, down to the cause: that there is no connection says less than why.
pub(super) fn reason(member: &dyn Member, error: &Error) -> String {
    let (label, text) = (member.to_string(), error.text_with_causes());
    if text.contains(&label) { text } else { format!("{label}: {text}") }
}

/// What each member said.
fn replies(members: &Members, votes: &Votes) -> String {
    let text = |(member, reply): (usize, &Reply)| {
        let label = &members[member];
        match reply {
            Reply::Open | Reply::Failed { .. } => {
                let error = votes.errors.iter().find(|(index, _)| *index == member);
                match error {
                    Some((_, error)) => reason(&**label, error),
                    None => format!("{label} did not answer in time"),
                }
            }
            Reply::Vote(Vote::Accepted { .. }) => format!("{label} voted for the claim"),
            Reply::Vote(Vote::Refused { .. }) => format!("{label} refused the number"),
            Reply::Vote(Vote::Taken { left, .. }) if *left == Duration::MAX => {
                format!("{label}: another owner has the lock")
            }
            Reply::Vote(Vote::Taken { left, .. }) => {
                format!("{label}: another owner has the lock for {left:.1?}")
            }
            Reply::Vote(Vote::Free) => format!("{label} keeps the lock for its waiters"),
            Reply::Vote(Vote::Quarantined { left }) => {
                format!("{label} may have forgotten locks and votes again in {left:.0?}")
            }
            Reply::Vote(Vote::Void) => format!("{label} got the claim too late"),
        }
    };
    let texts: Vec<String> = votes.tally.replies().iter().enumerate().map(text).collect();
    texts.join("; ")
}
