//! The readers of replies and messages, for tests that feed them arbitrary bytes.

use super::ask::{self, Answer, Claimed, Kind};
use super::waiter::Message;

/// What was understood.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// How many answers there were, read as those to claims, releases and renewals.
    pub answers: Vec<usize>,
    /// Fencing numbers and tickets.
    pub numbers: Vec<u64>,
}

/// Reads bytes as the reply to each kind of call for `count` things, and as a message for an inbox.
#[must_use]
pub fn read_reply(bytes: &[u8], count: usize) -> Reading {
    let mut reading = Reading::default();
    if let Some((_, message, _)) = std::str::from_utf8(bytes).ok().and_then(Message::parse) {
        reading.numbers.push(message.fence);
    }
    let Ok(value) = redis::parse_redis_value(bytes) else { return reading };
    for kind in [Kind::Claim, Kind::Release, Kind::Renew] {
        let Ok((us, values)) = ask::answers(value.clone(), kind, count) else { continue };
        reading.answers.push(values.len());
        for answer in values.into_iter().filter_map(|value| Answer::of(us, value).ok()) {
            match kind {
                Kind::Claim => match ask::claimed(&answer) {
                    Ok(Claimed::Granted { fence, .. }) => reading.numbers.push(fence),
                    Ok(Claimed::Queued { ticket, .. }) => reading.numbers.push(ticket),
                    Ok(Claimed::Busy { .. } | Claimed::Void { .. }) | Err(_) => {}
                },
                Kind::Release => drop(ask::released(&answer)),
                Kind::Renew => {}
            }
        }
    }
    reading
}
