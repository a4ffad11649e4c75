//! What the scripts are sent, and what they reply.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::store::redis::error::Fault;
use crate::store::redis::keys::{self, Tag};
use crate::store::redis::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use crate::store::{Name, Released, Token};

/// One request to a script. A call may carry many of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) name: Name,
    /// The hash tag of the lock's companion records.
    pub(crate) tag: Tag,
    pub(crate) token: Token,
    pub(crate) operation: Operation,
}

/// What a script does for one lock.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Claim {
        ttl_ms: u64,
        /// The server's time, in microseconds, after which the claim does nothing.
        void_after: u64,
        /// `None`: the claim does not queue.
        place: Option<QueuePlace>,
    },
    Release {
        /// The token's member of the queue, if it may have a place there.
        member: Option<Arc<str>>,
        hold_ms: u64,
    },
    Renew {
        ttl_ms: u64,
    },
}

/// The place in a queue that a claim takes or refreshes.
#[derive(Clone, Debug)]
pub(crate) struct QueuePlace {
    /// `token:claim_ms:(=|~)inbox`: the same for as long as the token waits.
    pub(crate) member: Arc<str>,
    /// How long the server keeps the place without another claim.
    pub(crate) life_ms: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Release,
    Claim,
    Renew,
}

/// The reply of the acquire script to a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcquireReply {
    Granted {
        us: u64,
        fence: u64,
    },
    /// `generation`: the connection that brought the reply.
    Queued {
        us: u64,
        holder: Holder,
        ticket: u64,
        place: u64,
        generation: u64,
    },
    Busy {
        us: u64,
        holder: Holder,
    },
    Void {
        us: u64,
    },
}

impl AcquireReply {
    /// The server's time, in microseconds.
    pub(crate) fn us(self) -> u64 {
        let (Self::Granted { us, .. }
        | Self::Queued { us, .. }
        | Self::Busy { us, .. }
        | Self::Void { us }) = self;
        us
    }
}

/// The holder of a lock, as the server sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Holder {
    /// How long the lock lasts if it is not renewed.
    pub(crate) left: Duration,
    /// Whether the holder's value is a token, so that its release hands the lock over.
    pub(crate) hands_over: bool,
}

/// The scripts mint no number beyond this, and fencing tokens have no room for much larger ones.
pub(crate) const LARGEST_NUMBER: u64 = 1 << 53;
/// Room for a name and its companions, a token and numbers.
const TYPICAL_LEN: usize = 320;

impl Command {
    pub(super) fn kind(&self) -> Kind {
        match self.operation {
            Operation::Claim { .. } => Kind::Claim,
            Operation::Release { .. } => Kind::Release,
            Operation::Renew { .. } => Kind::Renew,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.name.namespace()
    }

    /// Whether one call can carry both.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.kind() == other.kind()
            && self.member().is_some() == other.member().is_some()
            && self.tag == other.tag
            && self.namespace() == other.namespace()
    }

    fn member(&self) -> Option<&str> {
        match &self.operation {
            Operation::Claim { place, .. } => place.as_ref().map(|place| &*place.member),
            Operation::Release { member, .. } => member.as_deref(),
            Operation::Renew { .. } => None,
        }
    }

    /// How long the place that it takes is kept.
    fn life_ms(&self) -> Option<u64> {
        match &self.operation {
            Operation::Claim { place, .. } => place.as_ref().map(|place| place.life_ms),
            Operation::Release { .. } | Operation::Renew { .. } => None,
        }
    }
}

/// How a call names its script.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EvalMode {
    /// By its digest, which works if the server knows the script.
    Digest,
    /// By its text. `SCRIPT LOAD` would need another permission, and a restart in between would
    /// undo it.
    Text,
}

/// The call that carries all of `commands`, which [go together](Command::goes_with). `inbox` is the
/// channel on which this connection receives grants.
pub(super) fn call<'a>(
    commands: impl Iterator<Item = &'a Command> + Clone,
    inbox: Option<&str>,
    mode: EvalMode,
) -> Option<Cmd> {
    let first = commands.clone().next()?;
    let script: &Script = match first.kind() {
        Kind::Claim => &ACQUIRE,
        Kind::Release => &RELEASE,
        Kind::Renew => &RENEW,
    };
    let count = commands.clone().count();
    let has_queues = first.kind() != Kind::Renew;
    let keys = if has_queues { 1 + 2 * count } else { count };
    let mut cmd = Cmd::with_capacity(5 + keys + 4 * count, TYPICAL_LEN * count);
    match mode {
        EvalMode::Digest => cmd.arg("EVALSHA").arg(&script.digest),
        EvalMode::Text => cmd.arg("EVAL").arg(script.text),
    };
    cmd.arg(keys);
    let mut buffer = String::with_capacity(TYPICAL_LEN);
    if has_queues {
        cmd.arg(keys::counter(first.namespace(), first.tag, &mut buffer));
    }
    for command in commands.clone() {
        cmd.arg(command.name.as_str());
    }
    if has_queues {
        for command in commands.clone() {
            cmd.arg(keys::queue(&command.name, command.tag, &mut buffer));
        }
    }
    match first.kind() {
        Kind::Claim => {
            cmd.arg(commands.clone().filter_map(Command::life_ms).max().unwrap_or(0));
        }
        Kind::Release => {
            cmd.arg(inbox.unwrap_or_default());
        }
        Kind::Renew => {}
    }
    let mut text = [0; Token::TEXT_LEN];
    for command in commands.clone() {
        cmd.arg(command.token.encode(&mut text));
        match &command.operation {
            Operation::Claim { ttl_ms, void_after, .. } => cmd.arg(ttl_ms).arg(void_after),
            Operation::Release { hold_ms, .. } => cmd.arg(hold_ms),
            Operation::Renew { ttl_ms } => cmd.arg(ttl_ms),
        };
    }
    if first.member().is_some() {
        for command in commands {
            cmd.arg(command.member().unwrap_or_default());
        }
    }
    Some(cmd)
}

/// Reads the reply to a call that carried `count` commands of `kind`: the server's time, or 0 if
/// the script did not read it, and one value for each command.
pub(crate) fn replies(value: Value, kind: Kind, count: usize) -> Result<(u64, Vec<Value>), Fault> {
    let Value::Array(mut values) = value else { return Err(Fault::Garbled) };
    let us = match (kind, values.first()) {
        (Kind::Renew, _) => 0,
        (Kind::Claim | Kind::Release, Some(Value::Int(us))) => {
            let us = u64::try_from(*us).map_err(|_| Fault::Garbled)?;
            values.remove(0);
            us
        }
        _ => return Err(Fault::Garbled),
    };
    if values.len() != count {
        return Err(Fault::Garbled);
    }
    // What one command meets at the wrong server, all do: it writes nothing.
    let mut refused = values.iter().filter_map(|value| match value {
        Value::ServerError(error) => Some(Fault::refused(error.clone())),
        _ => None,
    });
    refused.find(Fault::is_by_wrong_server).map_or(Ok((us, values)), Err)
}

/// The reply to one command.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The server's time, in microseconds; 0 if the script did not read it.
    pub(crate) us: u64,
    pub(crate) value: Value,
}

impl Reply {
    /// An error in `value` is about this command alone.
    pub(crate) fn new(us: u64, value: Value) -> Result<Self, Fault> {
        let value = value.extract_error().map_err(Fault::refused)?;
        Ok(Self { us, value })
    }
}

/// Reads the reply to a claim, which came on connection `generation`.
pub(crate) fn read_acquire(
    Reply { us, value }: &Reply,
    generation: u64,
) -> Result<AcquireReply, Fault> {
    use Value::{Array, Int};
    let us = *us;
    let holder = |left: i64, has_token: i64| Holder {
        // A key without an expiry (-1) may stay for ever.
        left: u64::try_from(left).map_or(Duration::MAX, Duration::from_millis),
        hands_over: has_token == 1,
    };
    let items = match value {
        Int(-1) => return Ok(AcquireReply::Void { us }),
        Int(fence) => return Ok(AcquireReply::Granted { us, fence: minted(*fence)? }),
        Array(items) => items.as_slice(),
        _ => return Err(Fault::Garbled),
    };
    match *items {
        [Int(2), Int(left), Int(has_token), Int(ticket), Int(place)] => Ok(AcquireReply::Queued {
            us,
            holder: holder(left, has_token),
            ticket: minted(ticket)?,
            place: place.unsigned_abs(),
            generation,
        }),
        [Int(0), Int(left), Int(has_token)] => {
            Ok(AcquireReply::Busy { us, holder: holder(left, has_token) })
        }
        _ => Err(Fault::Garbled),
    }
}

/// Reads the reply to a release: what it found, and the server's time unless the token held the
/// lock until now.
pub(crate) fn read_release(reply: &Reply) -> Result<(Released, Option<u64>), Fault> {
    let released = match reply.value {
        Value::Int(1 | 3) => Released::InTime,
        Value::Int(0) => Released::Expired,
        Value::Int(2) => Released::TakenByOther,
        _ => return Err(Fault::Garbled),
    };
    Ok((released, (reply.us > 0).then_some(reply.us)))
}

/// A number that the scripts may have minted.
fn minted(number: i64) -> Result<u64, Fault> {
    let number = u64::try_from(number).ok().filter(|number| (1..=LARGEST_NUMBER).contains(number));
    number.ok_or(Fault::Garbled)
}
