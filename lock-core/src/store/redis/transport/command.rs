//! What the scripts are sent, and what they reply.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::clock::millis_left;
use crate::error::Error;
use crate::store::redis::error::Fault;
use crate::store::redis::keys::{self, Companion, Tag};
#[cfg(feature = "redis-quorum")]
use crate::store::redis::scripts::VOTE;
use crate::store::redis::scripts::{ACQUIRE, FREE, RELEASE, RENEW, Script};
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
        /// `None`: the renewal only lengthens.
        cut: Option<Cut>,
    },
    /// A claim or a renewal on a member of a quorum.
    #[cfg(feature = "redis-quorum")]
    Vote(VoteOperation),
}

/// What the script of a vote does for one lock.
#[cfg(feature = "redis-quorum")]
#[derive(Clone, Debug)]
pub(crate) struct VoteOperation {
    pub(crate) ttl_ms: u64,
    /// The server's time, in microseconds, after which it does nothing.
    pub(crate) void_after: u64,
    /// The number that it proposes; 0: none; -1: none, and a free lock is left so; -2: none, and a
    /// free lock is taken before those that wait for it.
    pub(crate) number: i64,
    /// Whether it is for a lease that is held.
    pub(crate) is_renewal: bool,
    /// The run id of the server; empty: it is not compared.
    pub(crate) run_id: Arc<str>,
    pub(crate) restart_delay_ms: u64,
}

/// How a renewal shortens an expiry that is later than any client asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cut {
    /// The longest time that it leaves to the lock.
    pub(crate) longest_ms: u64,
    /// The server's time, in microseconds, after which it does not cut.
    pub(crate) void_after: u64,
}

/// The place in a queue that a claim takes or refreshes.
#[derive(Clone, Debug)]
pub(crate) struct QueuePlace {
    /// `token:hand_off_ms:(=|#|~)inbox`: the same for as long as the token waits.
    pub(crate) member: Arc<str>,
    /// How long the server keeps the place without another claim.
    pub(crate) keep_ms: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Release,
    Claim,
    Renew,
    #[cfg(feature = "redis-quorum")]
    Vote,
}

/// The reply of the acquire script to a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcquireReply {
    Granted {
        us: u64,
        number: u64,
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
    /// Whether the holder's value is a token, so that its release hands the lock on.
    pub(crate) hands_on: bool,
}

/// The scripts mint no number beyond this, and fencing tokens have no room for much larger ones.
pub(crate) const LARGEST_NUMBER: u64 = 1 << 53;
/// Room for a name and its companions, a token and numbers.
const TYPICAL_LEN: usize = 384;

impl Command {
    pub(super) fn kind(&self) -> Kind {
        match self.operation {
            Operation::Claim { .. } => Kind::Claim,
            Operation::Release { .. } => Kind::Release,
            Operation::Renew { .. } => Kind::Renew,
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(_) => Kind::Vote,
        }
    }

    /// Whether it is for a lease that is held, so that it does not wait behind claims.
    pub(super) fn is_renewal(&self) -> bool {
        match &self.operation {
            Operation::Renew { .. } => true,
            Operation::Claim { .. } | Operation::Release { .. } => false,
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(vote) => vote.is_renewal,
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
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(_) => None,
        }
    }

    /// How it shortens the lock's expiry.
    fn cut(&self) -> Option<Cut> {
        match self.operation {
            Operation::Renew { cut, .. } => cut,
            Operation::Claim { .. } | Operation::Release { .. } => None,
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(_) => None,
        }
    }

    /// How long the place that it takes is kept.
    fn keep_ms(&self) -> Option<u64> {
        match &self.operation {
            Operation::Claim { place, .. } => place.as_ref().map(|place| place.keep_ms),
            Operation::Release { .. } | Operation::Renew { .. } => None,
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(_) => None,
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

impl EvalMode {
    fn name(self, script: &Script, cmd: &mut Cmd) {
        match self {
            Self::Digest => cmd.arg("EVALSHA").arg(&script.digest),
            Self::Text => cmd.arg("EVAL").arg(script.text),
        };
    }
}

/// The same as [`call`], for votes.
#[cfg(feature = "redis-quorum")]
fn votes<'a>(commands: impl Iterator<Item = &'a Command> + Clone, mode: EvalMode) -> Option<Cmd> {
    let first = commands.clone().next()?;
    let votes = commands.filter_map(|command| match &command.operation {
        Operation::Vote(vote) => Some((command, vote)),
        _ => None,
    });
    let count = votes.clone().count();
    let keys = 1 + 3 * count;
    let mut cmd = Cmd::with_capacity(5 + keys + 4 * count, TYPICAL_LEN * count);
    mode.name(&VOTE, &mut cmd);
    let mut buffer = String::with_capacity(TYPICAL_LEN);
    cmd.arg(keys).arg(keys::birth_mark(first.namespace(), first.tag, &mut buffer));
    for (command, _) in votes.clone() {
        cmd.arg(command.name.as_str());
    }
    for (command, _) in votes.clone() {
        cmd.arg(keys::number(&command.name, command.tag, &mut buffer));
    }
    let mut alive = Companion::Alive.names(first.namespace(), first.tag);
    for (command, _) in votes.clone() {
        cmd.arg(alive.of(&command.name));
    }
    // One connection leads to one process, and one store has one delay.
    let (_, any) = votes.clone().next()?;
    cmd.arg(&*any.run_id).arg(any.restart_delay_ms);
    let mut text = [0; Token::TEXT_LEN];
    for (command, vote) in votes {
        cmd.arg(command.token.encode(&mut text));
        cmd.arg(vote.ttl_ms).arg(vote.void_after).arg(vote.number);
    }
    Some(cmd)
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
        #[cfg(feature = "redis-quorum")]
        Kind::Vote => return votes(commands, mode),
    };
    let count = commands.clone().count();
    // A counter, locks, queues and their expiries; of renewals, locks alone.
    let keys = if first.kind() == Kind::Renew { count } else { 1 + 3 * count };
    let mut cmd = Cmd::with_capacity(5 + keys + 4 * count, TYPICAL_LEN * count);
    mode.name(script, &mut cmd);
    cmd.arg(keys);
    add_keys(&mut cmd, first, commands.clone());
    match first.kind() {
        Kind::Claim => {
            cmd.arg(commands.clone().filter_map(Command::keep_ms).max().unwrap_or(0));
        }
        Kind::Release => {
            cmd.arg(inbox.unwrap_or_default());
        }
        Kind::Renew => {}
        #[cfg(feature = "redis-quorum")]
        Kind::Vote => {}
    }
    add_arguments(&mut cmd, first, commands);
    Some(cmd)
}

/// What the scripts find in `KEYS`.
fn add_keys<'a>(
    cmd: &mut Cmd,
    first: &Command,
    commands: impl Iterator<Item = &'a Command> + Clone,
) {
    let has_queues = first.kind() != Kind::Renew;
    if has_queues {
        let mut buffer = String::with_capacity(TYPICAL_LEN);
        cmd.arg(keys::counter(first.namespace(), first.tag, &mut buffer));
    }
    for command in commands.clone() {
        cmd.arg(command.name.as_str());
    }
    if has_queues {
        let mut queues = Companion::Queue.names(first.namespace(), first.tag);
        for command in commands.clone() {
            cmd.arg(queues.of(&command.name));
        }
        let mut alive = Companion::Alive.names(first.namespace(), first.tag);
        for command in commands {
            cmd.arg(alive.of(&command.name));
        }
    }
}

/// What the scripts find in `ARGV` for each command. What none of them needs is left out.
fn add_arguments<'a>(
    cmd: &mut Cmd,
    first: &Command,
    commands: impl Iterator<Item = &'a Command> + Clone,
) {
    let mut text = [0; Token::TEXT_LEN];
    for command in commands.clone() {
        cmd.arg(command.token.encode(&mut text));
        match &command.operation {
            Operation::Claim { ttl_ms, void_after, .. } => cmd.arg(ttl_ms).arg(void_after),
            Operation::Release { hold_ms, .. } => cmd.arg(hold_ms),
            Operation::Renew { ttl_ms, .. } => cmd.arg(ttl_ms),
            #[cfg(feature = "redis-quorum")]
            Operation::Vote(_) => &mut *cmd,
        };
    }
    if commands.clone().any(|command| command.cut().is_some()) {
        for command in commands.clone() {
            let cut = command.cut().unwrap_or(Cut { longest_ms: 0, void_after: 0 });
            cmd.arg(cut.longest_ms).arg(cut.void_after);
        }
    }
    if first.member().is_some() {
        for command in commands {
            cmd.arg(command.member().unwrap_or_default());
        }
    }
}

/// Reads the reply to a call that carried `count` commands of `kind`: the server's time, or 0 if
/// the script did not read it, and one value for each command.
pub(crate) fn replies(value: Value, kind: Kind, count: usize) -> Result<(u64, Vec<Value>), Fault> {
    let Value::Array(mut values) = value else { return Err(Fault::Garbled) };
    let us = match (kind, values.as_mut_slice()) {
        // Of another form than other replies, so that a reply to another call is not taken for it.
        (Kind::Renew, [Value::Array(replies), Value::Int(us)]) => {
            let us = *us;
            values = std::mem::take(replies);
            us
        }
        (Kind::Claim | Kind::Release, [Value::Int(us), ..]) => {
            let us = *us;
            values.remove(0);
            us
        }
        #[cfg(feature = "redis-quorum")]
        (Kind::Vote, [Value::Int(us), ..]) => {
            let us = *us;
            values.remove(0);
            us
        }
        _ => return Err(Fault::Garbled),
    };
    let us = u64::try_from(us).map_err(|_| Fault::Garbled)?;
    if values.len() != count {
        return Err(Fault::Garbled);
    }
    // A wrong server refuses every command, so one such error decides for the whole call.
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
    /// Why what it rests on may be lost with the server, if replicas are to have it.
    pub(crate) unconfirmed: Option<Error>,
}

impl Reply {
    /// An error in `value` is about this command alone.
    pub(crate) fn new(us: u64, value: Value, unconfirmed: Option<Error>) -> Result<Self, Fault> {
        let value = value.extract_error().map_err(Fault::refused)?;
        Ok(Self { us, value, unconfirmed })
    }
}

/// Reads the reply to a claim, which came on connection `generation`.
pub(crate) fn read_acquire(
    Reply { us, value, unconfirmed }: &Reply,
    generation: u64,
) -> Result<AcquireReply, Fault> {
    use Value::{Array, Int};
    let us = *us;
    let holder =
        |left: i64, has_token: i64| Holder { left: millis_left(left), hands_on: has_token == 1 };
    let items = match value {
        Int(-1) => return Ok(AcquireReply::Void { us }),
        Int(number) => {
            let number = minted(*number)?;
            return match unconfirmed {
                None => Ok(AcquireReply::Granted { us, number }),
                Some(error) => Err(Fault::Unconfirmed(error.clone())),
            };
        }
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

/// The call that frees a lock without its queue. It is rare, so it goes by the text of its script.
pub(crate) fn free(name: &Name, token: Token, hold_ms: u64) -> Cmd {
    let mut text = [0; Token::TEXT_LEN];
    let mut cmd = Cmd::new();
    cmd.arg("EVAL").arg(FREE).arg(1).arg(name.as_str()).arg(token.encode(&mut text)).arg(hold_ms);
    cmd
}

/// Reads the reply to that.
pub(crate) fn read_freed(value: &Value) -> Result<(Released, Option<u64>), Fault> {
    let Value::Array(items) = value else { return Err(Fault::Garbled) };
    let [Value::Int(us), value] = items.as_slice() else { return Err(Fault::Garbled) };
    let us = u64::try_from(*us).map_err(|_| Fault::Garbled)?;
    read_release(&Reply::new(us, value.clone(), None)?)
}

/// A number that the scripts may have minted.
fn minted(number: i64) -> Result<u64, Fault> {
    let number = u64::try_from(number).ok().filter(|number| (1..=LARGEST_NUMBER).contains(number));
    number.ok_or(Fault::Garbled)
}
