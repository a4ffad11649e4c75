//! The readers of replies and messages, for tests that feed them arbitrary bytes.

use super::transport::{AcquireReply, Kind, Reply, read_acquire, read_release, replies};
use super::wait::GrantMessage;

/// What was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// How many replies there were, read as those to claims, releases and renewals.
    pub answers: Vec<usize>,
    /// Fencing numbers and tickets.
    pub numbers: Vec<u64>,
}

/// Reads bytes as the reply to each kind of call with `count` commands, and as a message to an
/// inbox.
#[must_use]
pub fn read_reply(bytes: &[u8], count: usize) -> Reading {
    let mut reading = Reading::default();
    if let Some((_, message, _)) = std::str::from_utf8(bytes).ok().and_then(GrantMessage::parse) {
        reading.numbers.push(message.fence);
    }
    let Ok(value) = redis::parse_redis_value(bytes) else { return reading };
    for kind in [Kind::Claim, Kind::Release, Kind::Renew] {
        let Ok((us, values)) = replies(value.clone(), kind, count) else { continue };
        reading.answers.push(values.len());
        for reply in values.into_iter().filter_map(|value| Reply::new(us, value).ok()) {
            match kind {
                Kind::Claim => match read_acquire(&reply, 1) {
                    Ok(AcquireReply::Granted { fence, .. }) => reading.numbers.push(fence),
                    Ok(AcquireReply::Queued { ticket, .. }) => reading.numbers.push(ticket),
                    Ok(AcquireReply::Busy { .. } | AcquireReply::Void { .. }) | Err(_) => {}
                },
                Kind::Release => drop(read_release(&reply)),
                Kind::Renew => {}
            }
        }
    }
    reading
}
