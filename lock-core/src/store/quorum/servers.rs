//! Whether the members are as many servers: one that two addresses lead to would vote twice.
//!
//! Each connection learns which process it leads to, so this is known anew after each reconnect: a
//! name or a proxy that leads elsewhere by then is noticed. Claims are refused altogether, since
//! the list of members is wrong. A held lease goes on if the servers, each counted once, are a
//! majority.

use std::sync::Arc;

use super::failure::Failure;
use crate::store::{Member, Purpose, Vote, VoteError};

/// Refuses members of which two lead to one server.
pub(super) fn one_each(members: &[Arc<dyn Member>]) -> Result<(), Failure> {
    (1..members.len()).try_for_each(|index| is_another(members, index))
}

/// The reply of a member to a ballot. A renewal by the server of a member before it does not count.
pub(super) fn counted_once(
    members: &[Arc<dyn Member>],
    index: usize,
    purpose: Purpose,
    reply: Result<Vote, VoteError>,
) -> Result<Vote, VoteError> {
    if !matches!(purpose, Purpose::Renew | Purpose::Repair) {
        return reply;
    }
    let vote = reply?;
    is_another(members, index)
        .map(|()| vote)
        .map_err(|failure| VoteError { error: failure.into_error(), definite: false })
}

/// Refuses a member that leads to the same server as one before it.
fn is_another(members: &[Arc<dyn Member>], index: usize) -> Result<(), Failure> {
    let Some(process) = members[index].process() else { return Ok(()) };
    let is_same = |it: &Arc<dyn Member>| it.process().as_ref() == Some(&process);
    match members[..index].iter().position(is_same) {
        Some(before) => Err(Failure::same_server(members, before, index)),
        None => Ok(()),
    }
}
