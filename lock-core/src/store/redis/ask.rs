//! What the scripts are asked, and what they answer.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::error::Fault;
use super::keys;
use super::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use crate::store::Token;
use crate::store::{Name, Released};

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

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

/// The scripts mint none beyond this, and fencing tokens have no room for much larger ones.
pub(super) const LARGEST_NUMBER: u64 = 1 << 53;
/// Room for a name and its companions, a token and numbers.
const TYPICAL_LEN: usize = 320;

impl AsRef<Self> for Ask {
    fn as_ref(&self) -> &Self {
        self
    }
}

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

    /// Whether both can travel in one call.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.kind() == other.kind()
            && self.member().is_some() == other.member().is_some()
            && self.namespace() == other.namespace()
    }

    fn token(&self) -> Token {
        match self {
            Self::Claim { token, .. } | Self::Release { token, .. } | Self::Renew { token, .. } => {
                *token
            }
        }
    }

    fn member(&self) -> Option<&str> {
        match self {
            Self::Claim { place, .. } => place.as_ref().map(|place| &*place.member),
            Self::Release { member, .. } => member.as_deref(),
            Self::Renew { .. } => None,
        }
    }

    /// The place that it asks for.
    fn place(&self) -> Option<&Place> {
        match self {
            Self::Claim { place, .. } => place.as_ref(),
            Self::Release { .. } | Self::Renew { .. } => None,
        }
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

/// The call that asks all of `asks`, which [go together](Ask::goes_with). `inbox` is where the connection hears of grants.
pub(super) fn command<'a>(
    asks: impl Iterator<Item = &'a Ask> + Clone,
    inbox: Option<&str>,
    by: By,
) -> Option<Cmd> {
    let first = asks.clone().next()?;
    let script: &Script = match first.kind() {
        Kind::Claim => &ACQUIRE,
        Kind::Release => &RELEASE,
        Kind::Renew => &RENEW,
    };
    let count = asks.clone().count();
    let queues = first.kind() != Kind::Renew;
    let keys = if queues { 1 + 2 * count } else { count };
    let mut cmd = Cmd::with_capacity(5 + keys + 4 * count, TYPICAL_LEN * count);
    match by {
        By::Digest => cmd.arg("EVALSHA").arg(&script.digest),
        By::Text => cmd.arg("EVAL").arg(script.text),
    };
    cmd.arg(keys);
    let mut buffer = String::with_capacity(TYPICAL_LEN);
    if queues {
        cmd.arg(keys::counter(first.namespace(), &mut buffer));
    }
    for ask in asks.clone() {
        cmd.arg(ask.name().as_str());
    }
    if queues {
        for ask in asks.clone() {
            cmd.arg(keys::queue(ask.name(), &mut buffer));
        }
    }
    match first.kind() {
        Kind::Claim => {
            let lives = asks.clone().filter_map(Ask::place).map(|place| place.life_ms);
            cmd.arg(lives.max().unwrap_or(0));
        }
        Kind::Release => {
            cmd.arg(inbox.unwrap_or_default());
        }
        Kind::Renew => {}
    }
    let mut text = [0; Token::TEXT_LEN];
    for ask in asks.clone() {
        cmd.arg(ask.token().encode(&mut text));
        match ask {
            Ask::Claim { ttl_ms, void_after, .. } => cmd.arg(ttl_ms).arg(void_after),
            Ask::Release { hold_ms, .. } => cmd.arg(hold_ms),
            Ask::Renew { ttl_ms, .. } => cmd.arg(ttl_ms),
        };
    }
    if first.member().is_some() {
        for ask in asks {
            cmd.arg(ask.member().unwrap_or_default());
        }
    }
    Some(cmd)
}

/// What a call of `kind` that asked `count` things answers to each, and the server's time, or 0 if the script did not look.
pub(super) fn answers(value: Value, kind: Kind, count: usize) -> Result<(u64, Vec<Value>), Fault> {
    let Value::Array(mut answers) = value else { return Err(Fault::Garbled) };
    let us = match (kind, answers.first()) {
        (Kind::Renew, _) => 0,
        (Kind::Claim | Kind::Release, Some(Value::Int(us))) => {
            let us = u64::try_from(*us).map_err(|_| Fault::Garbled)?;
            answers.remove(0);
            us
        }
        _ => return Err(Fault::Garbled),
    };
    if answers.len() == count { Ok((us, answers)) } else { Err(Fault::Garbled) }
}

/// What one thing that was asked was answered.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The server's time, in microseconds; 0 if it was not looked at.
    pub(super) us: u64,
    pub(super) value: Value,
}

impl Answer {
    /// An error is about this one alone.
    pub(super) fn of(us: u64, value: Value) -> Result<Self, Fault> {
        let value = value.extract_error().map_err(Fault::Refused)?;
        Ok(Self { us, value })
    }
}

/// Reads the answer to a claim.
pub(super) fn claimed(Answer { us, value }: &Answer) -> Result<Claimed, Fault> {
    use Value::{Array, Int};
    let us = *us;
    let taken = |left: i64, ours: i64| Taken {
        // A key without an expiry (-1): nobody knows when it goes.
        left: u64::try_from(left).map_or(Duration::MAX, Duration::from_millis),
        by_ours: ours == 1,
    };
    let items = match value {
        Int(-1) => return Ok(Claimed::Void { us }),
        Int(fence) => return Ok(Claimed::Granted { us, fence: minted(*fence)? }),
        Array(items) => items.as_slice(),
        _ => return Err(Fault::Garbled),
    };
    match *items {
        [Int(2), Int(left), Int(ours), Int(ticket), Int(place)] => Ok(Claimed::Queued {
            us,
            taken: taken(left, ours),
            ticket: minted(ticket)?,
            place: place.unsigned_abs(),
        }),
        [Int(0), Int(left), Int(ours)] => Ok(Claimed::Busy { us, taken: taken(left, ours) }),
        _ => Err(Fault::Garbled),
    }
}

/// Reads the answer to a release: what it found, and the server's time unless the lock was ours until now.
pub(super) fn released(answer: &Answer) -> Result<(Released, Option<u64>), Fault> {
    let outcome = match answer.value {
        Value::Int(1 | 3) => Released::InTime,
        Value::Int(0) => Released::Expired,
        Value::Int(2) => Released::TakenByOther,
        _ => return Err(Fault::Garbled),
    };
    Ok((outcome, (answer.us > 0).then_some(answer.us)))
}

/// A number that the script may have minted.
fn minted(number: i64) -> Result<u64, Fault> {
    let number = u64::try_from(number).ok().filter(|number| (1..=LARGEST_NUMBER).contains(number));
    number.ok_or(Fault::Garbled)
}
