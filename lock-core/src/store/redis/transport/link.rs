//! One open connection: sends a command, waits no longer than its timeout, and reports what the
//! outcome says about the connection.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike as _;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::Semaphore;

use super::connector::Wire;
use super::replicas::ReplicaAcks;
use crate::store::redis::error::Fault;
use crate::time::{Instant, timeout_at};

/// An open connection, and how to judge it.
pub(crate) struct Link {
    wire: Wire,
    label: Arc<str>,
    timeouts: Timeouts,
    report: Report,
    /// Closed when the connection is abandoned; `None` for one that is kept for as long as it
    /// works.
    abandoned: Option<Semaphore>,
    acks: Option<ReplicaAcks>,
    /// Whether the server is a node of a cluster. It refuses what belongs to another node, and
    /// stays the right one for its own.
    is_to_node: bool,
}

/// Takes what a command says about its connection.
pub(super) type Report = Box<dyn Fn(Health) + Send + Sync>;

/// What a command says about its connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Health {
    /// The server replied.
    Answered,
    /// The server had time to reply, and did not.
    Silent,
    Broken,
    /// The server replied that it is not, or not yet, the one that has the locks.
    WrongServer,
    /// The caller gave the server too little time to tell.
    Unknown,
}

/// How long a command and a dial may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) request: Duration,
    pub(crate) connect: Duration,
}

impl Timeouts {
    /// When a command that is sent now is given up, if its caller waits until `until`.
    pub(crate) fn request_until(self, until: Option<Instant>) -> Instant {
        earlier(Instant::now().saturating_add(self.request), until)
    }

    /// When a dial that is begun now is given up, if its caller waits until `until`.
    pub(crate) fn connect_until(self, until: Option<Instant>) -> Instant {
        earlier(Instant::now().saturating_add(self.connect), until)
    }

    /// When a call that waits for nothing but the server is given up, dialling included.
    pub(crate) fn call_until(self) -> Instant {
        Instant::now().saturating_add(self.request.max(self.connect))
    }

    /// What it says about a connection that a command had no reply within `patience`.
    fn health_of_silence(self, patience: Duration) -> Health {
        if patience >= self.request / 2 { Health::Silent } else { Health::Unknown }
    }
}

fn earlier(limit: Instant, until: Option<Instant>) -> Instant {
    until.map_or(limit, |until| until.min(limit))
}

impl Health {
    fn of<T>(reply: &Result<T, Fault>, is_to_node: bool) -> Self {
        match reply {
            Err(fault) if fault.is_by_wrong_server() && !is_to_node => Self::WrongServer,
            Ok(_) | Err(Fault::Refused(_) | Fault::Unconfirmed(_)) => Self::Answered,
            Err(Fault::Silent(_)) => Self::Silent,
            // Where replies are garbled, later ones may belong to other commands.
            Err(Fault::Broken(_) | Fault::NotSent(_) | Fault::Garbled) => Self::Broken,
        }
    }
}

impl Link {
    pub(super) fn new(wire: Wire, label: Arc<str>, timeouts: Timeouts, report: Report) -> Self {
        Self { wire, label, timeouts, report, abandoned: None, acks: None, is_to_node: false }
    }

    /// The same, where replicas confirm what is written.
    pub(super) fn with_acks(mut self, acks: Option<ReplicaAcks>) -> Self {
        self.acks = acks;
        self
    }

    /// The same, for a connection that may be abandoned.
    pub(super) fn that_may_be_abandoned(mut self) -> Self {
        self.abandoned = Some(Semaphore::new(0));
        self
    }

    /// The same, to a node of a cluster.
    pub(super) fn of_node(mut self) -> Self {
        self.is_to_node = true;
        self
    }

    /// Ends the calls that are under way: their outcome is unknown, and a reply that is still to
    /// come does not count.
    pub(super) fn abandon(&self) {
        if let Some(abandoned) = &self.abandoned {
            abandoned.close();
        }
    }

    /// The output of `call`; `None` if the connection is abandoned before.
    async fn unless_abandoned<F: Future>(&self, call: F) -> Option<F::Output> {
        let Some(abandoned) = &self.abandoned else { return Some(call.await) };
        tokio::select! {
            biased;
            _closed = abandoned.acquire() => None,
            output = call => Some(output),
        }
    }

    /// Sends a command and waits for its reply until `until`, but no longer than the request
    /// timeout. `read` reads the reply; one that it cannot read counts against the connection.
    pub(super) async fn request<T>(
        &self,
        cmd: &Cmd,
        until: Option<Instant>,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut wire = self.wire.clone();
        let read = |value| match value {
            Value::ServerError(error) => Err(Fault::refused(error)),
            value => read(value),
        };
        self.reply(wire.req_packed_command(cmd), until, read).await
    }

    /// The same for several commands that are sent in one write.
    pub(super) async fn request_all<T>(
        &self,
        pipeline: &Pipeline,
        until: Option<Instant>,
        read: impl FnOnce(Vec<Value>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut wire = self.wire.clone();
        let count = pipeline.len();
        self.reply(wire.req_packed_commands(pipeline, 0, count), until, read).await
    }

    /// Sends a command to a node of a cluster that is about to take its slot. What asks the node to
    /// serve it travels in one write with it, so that nothing comes between.
    pub(super) async fn request_asking(&self, cmd: &Cmd) -> Result<Value, Fault> {
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(cmd.clone());
        let read = |replies| {
            let mut replies = without_asking(replies)?;
            let reply = replies.pop().ok_or(Fault::Garbled)?;
            reply.extract_error().map_err(Fault::refused)
        };
        self.request_all(&both, None, read).await
    }

    async fn reply<R, T>(
        &self,
        call: impl Future<Output = RedisResult<R>>,
        until: Option<Instant>,
        read: impl FnOnce(R) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let until = self.timeouts.request_until(until);
        let patience = until.remaining();
        let call = timeout_at(until, call);
        let Some(replied) = self.unless_abandoned(call).await else { return Err(Fault::gone()) };
        let Ok(reply) = replied else {
            self.report(self.timeouts.health_of_silence(patience));
            return Err(self.silent());
        };
        let reply = reply.map_err(Fault::of).and_then(read);
        self.report(Health::of(&reply, self.is_to_node));
        reply
    }

    pub(super) fn report(&self, health: Health) {
        (self.report)(health);
    }

    pub(super) fn silent(&self) -> Fault {
        Fault::silent(&self.label)
    }

    pub(super) fn acks(&self) -> Option<ReplicaAcks> {
        self.acks
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    pub(super) fn wire(&self) -> Wire {
        self.wire.clone()
    }
}

/// The replies to commands that have `ASKING` before each, but for a last one without a key. The
/// replies to `ASKING` are left out.
///
/// The first of them, the call, is judged by its own reply: a node that has the slot by now
/// executes it, whatever it says to `ASKING`. Only if it refuses the call does that tell why.
pub(super) fn without_asking(replies: Vec<Value>) -> Result<Vec<Value>, Fault> {
    let (mut replies, mut kept) = (replies.into_iter(), Vec::new());
    while let Some(asking) = replies.next() {
        let Some(reply) = replies.next() else {
            kept.push(asking);
            break;
        };
        if let (Value::ServerError(error), Value::ServerError(_), true) =
            (asking, &reply, kept.is_empty())
        {
            return Err(Fault::refused(error));
        }
        kept.push(reply);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> Value {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn call_behind_asking_is_judged_by_its_own_reply() {
        let forbidden = || error("NOPERM this user has no permissions to run the 'asking' command");
        let kept = without_asking(vec![forbidden(), Value::Int(1)]).unwrap();
        assert_eq!(kept, [Value::Int(1)]);
        let refused = without_asking(vec![forbidden(), error("MOVED 1 a:1")]).unwrap_err();
        assert!(refused.is_permanent() && refused.elsewhere().is_none(), "{refused:?}");
        let kept = without_asking(vec![Value::Okay, error("TRYAGAIN later")]).unwrap();
        assert!(matches!(kept.as_slice(), [Value::ServerError(_)]), "{kept:?}");
    }

    #[test]
    fn reply_to_each_asking_is_left_out() {
        let replies = [Value::Okay, Value::Int(1), Value::Okay, Value::Okay, Value::Okay];
        let mut replies = replies.to_vec();
        replies.extend([Value::Int(1), Value::Int(2)]);
        let kept = without_asking(replies).unwrap();
        assert_eq!(kept, [Value::Int(1), Value::Okay, Value::Int(1), Value::Int(2)]);
    }
}
