//! The readers of replies and messages, for tests that feed them arbitrary bytes.

use super::transport::{AcquireReply, Kind, Reply, read_acquire, read_release, replies};
use super::wait::GrantMessage;

/// What was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// How many replies there were, read as those to claims, releases and renewals.
    pub answers: Vec<usize>,
    /// The numbers of grants, and tickets.
    pub numbers: Vec<u64>,
}

/// Reads the reply to votes, which must not panic.
#[cfg(feature = "redis-quorum")]
fn read_votes(value: redis::Value, count: usize) {
    let Ok((us, values)) = replies(value, Kind::Vote, count) else { return };
    for reply in values.into_iter().filter_map(|value| Reply::new(us, value, None).ok()) {
        drop(super::vote::read_vote(&reply, crate::time::Instant::now()));
    }
}

/// Reads bytes as the reply to each kind of call with `count` commands, and as a message to an
/// inbox.
#[must_use]
pub fn read_reply(bytes: &[u8], count: usize) -> Reading {
    let mut reading = Reading::default();
    if let Some((_, message, _)) = std::str::from_utf8(bytes).ok().and_then(GrantMessage::parse) {
        reading.numbers.push(message.number);
    }
    let Ok(value) = redis::parse_redis_value(bytes) else { return reading };
    for kind in [Kind::Claim, Kind::Release, Kind::Renew] {
        let Ok((us, values)) = replies(value.clone(), kind, count) else { continue };
        reading.answers.push(values.len());
        for reply in values.into_iter().filter_map(|value| Reply::new(us, value, None).ok()) {
            match kind {
                Kind::Claim => match read_acquire(&reply, 1) {
                    Ok(AcquireReply::Granted { number, .. }) => reading.numbers.push(number),
                    Ok(AcquireReply::Queued { ticket, .. }) => reading.numbers.push(ticket),
                    Ok(AcquireReply::Busy { .. } | AcquireReply::Void { .. }) | Err(_) => {}
                },
                Kind::Release => drop(read_release(&reply)),
                Kind::Renew => {}
                #[cfg(feature = "redis-quorum")]
                Kind::Vote => {}
            }
        }
    }
    #[cfg(feature = "redis-quorum")]
    read_votes(value, count);
    reading
}
