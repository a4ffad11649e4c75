//! What the scripts are asked, and what they answer.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::error::Fault;
use super::keys;
use super::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use crate::store::{Name, ReleaseOutcome};
use crate::token::Token;

/// One thing that a script is asked. A call may carry many of a kind.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Claim {
        name: Name,
        token: Token,
        ttl_ms: u64,
        /// The server's time, in microseconds, after which the claim does nothing.
        void_after: u64,
        /// `None`: it does not queue.
        place: Option<Place>,
    },
    Release {
        name: Name,
        token: Token,
        /// The place that it may have in the queue.
        member: Option<Arc<str>>,
        hold_ms: u64,
    },
    Renew {
        name: Name,
        token: Token,
        ttl_ms: u64,
    },
}

/// A place in a queue.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// `token:claim_ms:(=|~)inbox`: the same for as long as the token waits.
    pub(super) member: Arc<str>,
    /// How long the place is kept without another claim.
    pub(super) life_ms: u64,
}

/// In which order things that are ready together are sent: what frees locks before what takes them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Kind {
    Release,
    Claim,
    Renew,
}

/// What the acquire script answers to a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Claimed {
    Granted { us: u64, fence: u64 },
    Queued { us: u64, taken: Taken, ticket: u64, place: u64 },
    Busy { us: u64, taken: Taken },
    Void { us: u64 },
}

/// By whom a lock is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Taken {
    /// For how long, if nobody renews it.
    pub(super) left: Duration,
    /// Whether the holder hands it on.
    pub(super) by_ours: bool,
}

/// Room for a name and its companions, a token and numbers.
const TYPICAL_LEN: usize = 320;

impl Ask {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Claim { .. } => Kind::Claim,
            Self::Release { .. } => Kind::Release,
            Self::Renew { .. } => Kind::Renew,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.name().namespace()
    }

    fn name(&self) -> &Name {
        match self {
            Self::Claim { name, .. } | Self::Release { name, .. } | Self::Renew { name, .. } => {
                name
            }
        }
    }
}

/// How the server is told which script to run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum By {
    /// By its digest, if the server knows it.
    Digest,
    /// By its text. `SCRIPT LOAD` would need another permission, and a restart in between would undo it.
    Text,
}

/// The call that asks all of `asks`, which are of one kind and namespace.
pub(super) fn command<'a>(asks: impl Iterator<Item = &'a Ask> + Clone, by: By) -> Option<Cmd> {
    let first = asks.clone().next()?;
    let (script, companions): (&Script, _) = match first.kind() {
        Kind::Claim => (&ACQUIRE, true),
        Kind::Release => (&RELEASE, true),
        Kind::Renew => (&RENEW, false),
    };
    let count = asks.clone().count();
    let keys = if companions { 1 + 3 * count } else { count };
    let mut cmd = Cmd::with_capacity(3 + keys + 5 * count, TYPICAL_LEN * count);
    match by {
        By::Digest => cmd.arg("EVALSHA").arg(&script.digest),
        By::Text => cmd.arg("EVAL").arg(script.text),
    };
    cmd.arg(keys);
    let mut buffer = String::with_capacity(TYPICAL_LEN);
    if companions {
        cmd.arg(keys::counter(first.namespace(), &mut buffer));
    }
    for ask in asks.clone() {
        let name = ask.name();
        cmd.arg(name.as_str());
        if companions {
            cmd.arg(keys::queue(name, &mut buffer));
            cmd.arg(keys::alive(name, &mut buffer));
        }
    }
    let mut text = [0; Token::TEXT_LEN];
    for ask in asks {
        match ask {
            Ask::Claim { token, ttl_ms, void_after, place, .. } => {
                cmd.arg(token.encode(&mut text)).arg(ttl_ms).arg(void_after);
                match place {
                    Some(place) => cmd.arg(&*place.member).arg(place.life_ms),
                    None => cmd.arg("").arg(0),
                };
            }
            Ask::Release { token, member, hold_ms, .. } => {
                cmd.arg(token.encode(&mut text));
                cmd.arg(member.as_deref().unwrap_or_default()).arg(hold_ms);
            }
            Ask::Renew { token, ttl_ms, .. } => {
                cmd.arg(token.encode(&mut text)).arg(ttl_ms);
            }
        }
    }
    Some(cmd)
}

/// The answers to a call that asked `count` things.
pub(super) fn answers(value: Value, count: usize) -> Result<Vec<Value>, Fault> {
    match value {
        Value::Array(answers) if answers.len() == count => Ok(answers),
        _ => Err(Fault::Garbled),
    }
}

/// Reads one answer of a script. An error in it is about this one alone.
pub(super) fn single(answer: Value) -> Result<Value, Fault> {
    answer.extract_error().map_err(Fault::Refused)
}

/// Reads the answer to a claim.
pub(super) fn claimed(answer: &Value) -> Result<Claimed, Fault> {
    use Value::Int;
    let Value::Array(items) = answer else { return Err(Fault::Garbled) };
    let taken = |left: i64, ours: i64| Taken {
        // A key without an expiry (-1): nobody knows when it goes.
        left: u64::try_from(left).map_or(Duration::MAX, Duration::from_millis),
        by_ours: ours == 1,
    };
    Ok(match *items.as_slice() {
        [Int(1), Int(us), Int(fence)] => {
            Claimed::Granted { us: positive(us)?, fence: positive(fence)? }
        }
        [Int(2), Int(us), Int(left), Int(ours), Int(ticket), Int(place)] => Claimed::Queued {
            us: positive(us)?,
            taken: taken(left, ours),
            ticket: positive(ticket)?,
            place: place.unsigned_abs(),
        },
        [Int(0), Int(us), Int(left), Int(ours)] => {
            Claimed::Busy { us: positive(us)?, taken: taken(left, ours) }
        }
        [Int(3), Int(us)] => Claimed::Void { us: positive(us)? },
        _ => return Err(Fault::Garbled),
    })
}

/// Reads the answer to a release: what it found, and the server's time unless the lock was ours until now.
pub(super) fn released(answer: &Value) -> Result<(ReleaseOutcome, Option<u64>), Fault> {
    use Value::Int;
    let items = match answer {
        Int(1) => return Ok((ReleaseOutcome::Ours, None)),
        Value::Array(items) => items.as_slice(),
        _ => return Err(Fault::Garbled),
    };
    let (outcome, us) = match *items {
        [Int(1), Int(us)] => (ReleaseOutcome::Ours, us),
        [Int(0), Int(us)] => (ReleaseOutcome::Nobody, us),
        [Int(2), Int(us)] => (ReleaseOutcome::Other, us),
        _ => return Err(Fault::Garbled),
    };
    Ok((outcome, Some(positive(us)?)))
}

fn positive(number: i64) -> Result<u64, Fault> {
    if number > 0 { Ok(number.unsigned_abs()) } else { Err(Fault::Garbled) }
}
