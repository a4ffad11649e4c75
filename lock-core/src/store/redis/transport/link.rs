//! One open connection: sends a command, waits no longer than its timeout, and reports what the
//! outcome says about the connection.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike as _;
use redis::{Cmd, Value};

use super::connector::Wire;
use crate::store::redis::error::Fault;
use crate::time::{Instant, timeout_at};

/// An open connection, and how to judge it.
pub(crate) struct Link {
    wire: Wire,
    label: Arc<str>,
    timeouts: Timeouts,
    report: Report,
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
    Misplaced,
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
    pub(super) fn connect_until(self, until: Option<Instant>) -> Instant {
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
    fn of<T>(reply: &Result<T, Fault>) -> Self {
        match reply {
            Err(fault) if fault.is_by_wrong_server() => Self::Misplaced,
            Ok(_) | Err(Fault::Refused(_)) => Self::Answered,
            Err(Fault::Silent(_)) => Self::Silent,
            // Where replies are garbled, later ones may belong to other commands.
            Err(Fault::Broken(_) | Fault::NotSent(_) | Fault::Garbled) => Self::Broken,
        }
    }
}

impl Link {
    pub(super) fn new(wire: Wire, label: Arc<str>, timeouts: Timeouts, report: Report) -> Self {
        Self { wire, label, timeouts, report }
    }

    /// Sends a command and waits for its reply until `until`, but no longer than the request
    /// timeout. `read` reads the reply; one that it cannot read counts against the connection.
    pub(super) async fn request<T>(
        &self,
        cmd: &Cmd,
        until: Option<Instant>,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let until = self.timeouts.request_until(until);
        let patience = until.remaining();
        let mut wire = self.wire.clone();
        let Ok(reply) = timeout_at(until, wire.req_packed_command(cmd)).await else {
            self.report(self.timeouts.health_of_silence(patience));
            return Err(self.silent());
        };
        let reply = match reply {
            Ok(Value::ServerError(error)) => Err(Fault::refused(error)),
            Ok(value) => read(value),
            Err(error) => Err(Fault::of(error)),
        };
        self.report(Health::of(&reply));
        reply
    }

    pub(super) fn report(&self, health: Health) {
        (self.report)(health);
    }

    pub(super) fn silent(&self) -> Fault {
        Fault::silent(&self.label)
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    pub(super) fn wire(&self) -> Wire {
        self.wire.clone()
    }
}
